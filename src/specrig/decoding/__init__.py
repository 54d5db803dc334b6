"""Speculative decoding: drafts, verification and the one loop. Token ids only, no files, no config."""
