"""Scorers: how good a task's outputs are. One file a scorer, found by discovery; importing them loads no library."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache

from specrig.tasks.scorers.base import Mean, Output, Scorer

__all__ = ["Output", "Scorer", "registry"]


@cache
def registry() -> dict[str, type[Scorer]]:
    """Scorer name -> class, in alphabetical order. Raises TypeError for a file whose scorer has another name than the file."""
    found: dict[str, type[Scorer]] = {}
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for value in vars(module).values():
            if inspect.isclass(value) and issubclass(value, Scorer) and value not in (Scorer, Mean):
                if value.name != info.name:
                    raise TypeError(f"tasks/scorers/{info.name}.py: its scorer is called {value.name!r}, not as its file")
                found[value.name] = value
    return found
