"""What training measured of a head, as its config.json says it under `specrig`."""

from __future__ import annotations

from typing import Any


def measured(config: Any) -> dict[str, Any]:
    """The recorded values; empty for a head that was not trained here. Raises ValueError where it is no object."""
    found = getattr(config, "specrig", None) or {}
    if not isinstance(found, dict):
        raise ValueError("config.json: `specrig` is no object")
    return found


def rates(config: Any, key: str) -> list[Any]:
    """`accuracy` (a list of rates for each head) or `first` (one list). Raises ValueError for other values."""
    found = measured(config).get(key) or []
    lists = found if key == "accuracy" else [found]
    if not isinstance(lists, list) or not all(isinstance(each, list) and all(map(_is_rate, each)) for each in lists):
        raise ValueError(f"config.json: `specrig.{key}` are no rates from 0 to 1")
    return found


def _is_rate(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value <= 1
