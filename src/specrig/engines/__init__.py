"""Engines: each says what it can run, loads a pair and generates. They are found by their files, without torch."""

from __future__ import annotations

import inspect
from functools import cache

from specrig.discovery import defined, modules
from specrig.engines.base import Engine


@cache
def registry() -> dict[str, type[Engine]]:
    """Engine name -> class, in alphabetical order. Abstract classes do not count, and a module may hold no engine.

    Raises TypeError where two engines have one name.
    """
    found: dict[str, type[Engine]] = {}
    for name, module in modules(__name__, __path__):
        for engine in defined(module, Engine):
            if not inspect.isabstract(engine):
                if engine.name in found:
                    raise TypeError(f"engines/{name}.py: a second engine called {engine.name!r}")
                found[engine.name] = engine
    return found
