"""SpecRig: a reproducible experiment pipeline for speculative decoding."""

__version__ = "0.2.0"
