"""Scorers measure how good a task's outputs are. Each is found by its file; importing loads no library."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache

from specrig.tasks.scorers.base import Output, Scorer

__all__ = ["Output", "Scorer", "registry"]


@cache
def registry() -> dict[str, type[Scorer]]:
    """Name of a scorer -> its class, in alphabetical order. Raises TypeError for one not named like its file."""
    found: dict[str, type[Scorer]] = {}
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for value in vars(module).values():
            # Classes that a file imports to build on are no scorers of its own, nor are those of `base`.
            own = inspect.isclass(value) and value.__module__ == module.__name__ != f"{__name__}.base"
            if own and issubclass(value, Scorer):
                if value.name != info.name:
                    raise TypeError(
                        f"tasks/scorers/{info.name}.py: its scorer is called {value.name!r}, not as its file"
                    )
                found[value.name] = value
    return found
