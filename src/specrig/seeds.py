"""Numbers and random generators that depend on keys alone: not on the order of calls, the machine or PYTHONHASHSEED."""

from __future__ import annotations

import hashlib
import random


def number(*keys: object) -> int:
    """A 64-bit number."""
    text = "\x1f".join(str(key) for key in keys)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def generator(*keys: object) -> random.Random:
    """A generator that is seeded with the `number` of `keys`."""
    return random.Random(number(*keys))
