"""Measurement: runs the cells of a study and writes their records."""
