"""Scorers measure how good a task's outputs are. Each is found by its file; importing loads no library."""

from __future__ import annotations

from functools import cache

from specrig.discovery import defined, modules
from specrig.tasks.scorers.base import Output, Scorer

__all__ = ["Output", "Scorer", "registry"]


@cache
def registry() -> dict[str, type[Scorer]]:
    """Name of a scorer -> its class, in alphabetical order. Raises TypeError for one not named like its file."""
    found: dict[str, type[Scorer]] = {}
    for name, module in modules(__name__, __path__):
        for scorer in defined(module, Scorer) if name != "base" else ():
            if scorer.name != name:
                raise TypeError(f"tasks/scorers/{name}.py: its scorer is called {scorer.name!r}, not as its file")
            found[name] = scorer
    return found
