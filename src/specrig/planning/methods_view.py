"""Prints the registered methods and engines on a console, for `specrig methods`. No torch here."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python
from rich.console import Console

from specrig.decoding.drafters import registry as methods
from specrig.decoding.types import Drafter
from specrig.engines import registry as engines
from specrig.study.problems import Positions, Problems, nearest
from specrig.terminal import Column, print_table


def show_methods(console: Console, name: str | None = None) -> None:
    """Print a line for each method and each engine, or all of one method. Raises StudyError for an unknown name."""
    if name is not None:
        _show_method(console, name)
        return
    all_lossless = all(_lossless(method) == "yes" for method in methods().values())
    columns = [Column("method"), Column("needs"), Column("what it is", cut=True)]
    rows = [[each, ", ".join(method.needs), method.summary] for each, method in methods().items()]
    if not all_lossless:  # else a column of one word would take the room of the summaries
        columns.insert(2, Column("lossless"))
        for row, method in zip(rows, methods().values(), strict=True):
            row.insert(2, _lossless(method))
    print_table(console, columns, rows)
    if all_lossless:
        console.print("All are lossless as long as no option says otherwise.")
    console.print()
    states = []
    for each, engine in engines().items():
        missing = engine.missing()
        state = "ready" if missing is None else f"missing: {missing}"
        states.append((each, state + (f" (untested on hardware: {engine.untested})" if engine.untested else "")))
    print_table(console, [Column("engine"), Column("here", breaks=True)], states)
    console.print("\nOptions and their defaults: specrig methods NAME")


def _show_method(console: Console, name: str) -> None:
    """What a method or engine is, and its options."""
    if (kind := _kind(name)) is None:
        engine = engines()[name]
        options: type[BaseModel] = engine.Options
        console.print(f"engine {name}: {engine.missing() or 'ready'}", style="bold", markup=False)
    else:
        options = kind.Options
        console.print(f"{name}: {kind.summary}", style="bold", markup=False)
        console.print(f"needs: {', '.join(kind.needs) or 'nothing beside the target'}")
        console.print(f"lossless: {_lossless(kind)}; uses k: {'yes' if kind.uses_k else 'no'}")
    rows = [(each, _default(info), info.description or "") for each, info in options.model_fields.items()]
    if rows:
        described = [Column("what it does", breaks=True)] if any(text for _, _, text in rows) else []
        console.print()
        print_table(
            console, [Column("option"), Column("default"), *described], [row[: 2 + len(described)] for row in rows]
        )
        if not described and options.__doc__:
            console.print(" ".join(options.__doc__.split()), markup=False)


def _kind(name: str) -> type[Drafter] | None:
    """The method of this name; None for an engine's. Raises StudyError for a name of neither."""
    if name not in methods() and name not in engines():
        problems = Problems(Positions([]))
        problems.option("NAME", f"no method or engine {name!r}", nearest(name, [*methods(), *engines()]))
        problems.stop()
    return methods().get(name)


def _default(info: FieldInfo) -> str:
    return "to be given" if info.is_required() else str(info.get_default(call_default_factory=True))


def described(only: str | None = None) -> dict[str, Any]:
    """The same as data. only: one method or engine. lossless: None where it depends on an option without default."""
    if only is not None:
        _kind(only)
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
            if only in (None, name)
        },
        "engines": {
            name: {"missing": engine.missing(), "untested": engine.untested, "options": _defaults(engine.Options)}
            for name, engine in engines().items()
            if only in (None, name)
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


def _lossless(method: type[Drafter]) -> str:
    required = any(info.is_required() for info in method.Options.model_fields.values())
    if required:
        return "by options"
    return "yes" if method.lossless(method.Options()) else "NO"
