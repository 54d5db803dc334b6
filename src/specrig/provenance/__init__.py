"""Provenance: the code, the files and the machine that a result rests on."""
