"""Prints the registered methods and engines on a console, for `specrig methods`. No torch here."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from specrig.decoding.drafters import registry as methods
from specrig.decoding.types import Drafter
from specrig.engines import registry as engines


def show_methods(console: Console) -> None:
    """Print the methods with their options, and the engines with theirs."""
    table = Table(title="methods", title_justify="left")
    for column in ("method", "what it is", "needs", "lossless", "options and defaults"):
        table.add_column(column)
    for name, method in methods().items():
        table.add_row(name, method.summary, ", ".join(method.needs), _lossless(method), _options(method.Options))
    console.print(table)
    table = Table(title="engines", title_justify="left")
    table.add_column("engine")
    table.add_column("here")
    table.add_column("options and defaults")
    for name, engine in engines().items():
        missing = engine.missing()
        state = "ready" if missing is None else escape(f"missing: {missing}")
        state += f" (untested on hardware: {engine.untested})" if engine.untested else ""
        table.add_row(name, state, _options(engine.Options))
    console.print(table)


def described() -> dict[str, Any]:
    """The same as data. lossless: None where it depends on an option that has no default."""
    return {
        "methods": {
            name: {
                "summary": method.summary,
                "needs": list(method.needs),
                "uses_k": method.uses_k,
                "lossless": {"yes": True, "NO": False}.get(_lossless(method)),
                "options": _defaults(method.Options),
            }
            for name, method in methods().items()
        },
        "engines": {
            name: {"missing": engine.missing(), "untested": engine.untested, "options": _defaults(engine.Options)}
            for name, engine in engines().items()
        },
    }


def _defaults(kind: type[BaseModel]) -> dict[str, Any]:
    """Name of an option -> its default as JSON has it; None also for one that must be given."""
    found = {
        name: info.get_default(call_default_factory=True)
        for name, info in kind.model_fields.items()
        if not info.is_required()
    }
    return dict.fromkeys(kind.model_fields) | to_jsonable_python(found)


def _options(kind: type[BaseModel]) -> str:
    return ", ".join(f"{key}={info.get_default(call_default_factory=True)}" for key, info in kind.model_fields.items())


def _lossless(method: type[Drafter]) -> str:
    required = any(info.is_required() for info in method.Options.model_fields.values())
    if required:
        return "by options"
    return "yes" if method.lossless(method.Options()) else "NO"
