"""The methods. They are found by their files: every module here holds one `Drafter` whose name is the file's."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache

from specrig.decoding.types import Drafter, MethodOptions


class RegistrationError(TypeError):
    """A file in `drafters/` that does not hold one well-formed Drafter."""


def check(drafter: type[Drafter], module: str) -> None:
    """Raise RegistrationError for a drafter whose interface is wrong; the message says what is wrong with it."""
    problems = []
    if getattr(drafter, "name", None) != module:
        problems.append(f"its name is {getattr(drafter, 'name', None)!r}, the file's is {module!r}")
    if not getattr(drafter, "summary", ""):
        problems.append("it has no summary")
    if not issubclass(drafter.Options, MethodOptions):
        problems.append("its Options is no MethodOptions")
    if inspect.isabstract(drafter):
        problems.append("it does not define propose(context, k)")
    if problems:
        raise RegistrationError(f"drafters/{module}.py: {drafter.__name__}: " + "; ".join(problems))


@cache
def registry() -> dict[str, type[Drafter]]:
    """Method name -> Drafter class, in alphabetical order, autoregressive included."""
    found: dict[str, type[Drafter]] = {}
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{__name__}.{info.name}")
        drafters = [
            value
            for value in vars(module).values()
            if inspect.isclass(value) and issubclass(value, Drafter) and value.__module__ == module.__name__
        ]
        if len(drafters) != 1:
            raise RegistrationError(
                f"drafters/{info.name}.py must define exactly one Drafter, it defines {len(drafters)}"
            )
        check(drafters[0], info.name)
        found[info.name] = drafters[0]
    return found
