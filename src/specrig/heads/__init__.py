"""Trained heads: one module a kind, with its checkpoint format."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def initialise(name: str, folder: Path, target: Any, draft: Any, seed: int) -> None:
    """Write an untrained head for models of these configurations, where any draft will do.

    name: its kind, or `draft_<kind>` for one of the draft's.
    """
    kind = importlib.import_module(f"{__name__}.{name.removeprefix('draft_')}")
    kind.initialise(folder, draft if name.startswith("draft_") else target, seed)
