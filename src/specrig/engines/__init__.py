"""Engines: each says what it can run, loads a pair and generates. They are found by their files, without torch."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache

from specrig.engines.base import Engine


@cache
def registry() -> dict[str, type[Engine]]:
    """Engine name -> class, in alphabetical order. Abstract classes do not count, and a module may hold no engine.

    Raises TypeError where two engines have one name.
    """
    found: dict[str, type[Engine]] = {}
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for value in vars(module).values():
            if (
                inspect.isclass(value)
                and issubclass(value, Engine)
                and not inspect.isabstract(value)
                and value.__module__ == module.__name__
            ):
                if value.name in found:
                    raise TypeError(f"engines/{info.name}.py: a second engine called {value.name!r}")
                found[value.name] = value
    return found
