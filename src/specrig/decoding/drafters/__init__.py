"""The methods. They are found by their files: every module here holds one `Drafter` whose name is the file's."""

from __future__ import annotations

import inspect
from functools import cache

from specrig.decoding.types import Drafter, MethodOptions
from specrig.discovery import RegistrationError, defined, modules, only


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
    for name, module in modules(__name__, __path__):
        found[name] = only(defined(module, Drafter), Drafter, f"drafters/{name}.py")
        check(found[name], name)
    return found
