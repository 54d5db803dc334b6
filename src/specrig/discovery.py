"""What is found by its place: every file or folder of a package holds a class of one kind."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any


class RegistrationError(TypeError):
    """A file or folder that does not hold one well-formed class of its kind."""


def modules(package: str, path: Iterable[str], *, folders: bool = False) -> Iterator[tuple[str, ModuleType]]:
    """Name and module of each file or folder in a package, in alphabetical order. folders: of folders alone."""
    for info in sorted(pkgutil.iter_modules(path), key=lambda info: info.name):
        if info.ispkg or not folders:
            yield info.name, importlib.import_module(f"{package}.{info.name}")


def defined(module: ModuleType, kind: type) -> list[Any]:
    """The classes of a kind that a module defines itself."""
    classes = (value for value in vars(module).values() if inspect.isclass(value) and issubclass(value, kind))
    return [value for value in classes if value.__module__ == module.__name__]


def only(found: list[Any], kind: type, where: str) -> Any:
    """The one class that was found there. Raises RegistrationError where there is none, or several."""
    if len(found) != 1:
        raise RegistrationError(f"{where} must define exactly one {kind.__name__}, it defines {len(found)}")
    return found[0]
