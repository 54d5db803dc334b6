"""Speculative decoding: drafts, verification, key/value cache and the one loop. Token ids only, no files, no config."""
