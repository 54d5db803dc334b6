"""Prints the registered methods and engines on a console, for `specrig methods`. No torch here."""

from __future__ import annotations

from pydantic import BaseModel
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


def _options(kind: type[BaseModel]) -> str:
    return ", ".join(f"{key}={info.get_default(call_default_factory=True)}" for key, info in kind.model_fields.items())


def _lossless(method: type[Drafter]) -> str:
    required = any(info.is_required() for info in method.Options.model_fields.values())
    if required:
        return "by options"
    return "yes" if method.lossless(method.Options()) else "NO"
