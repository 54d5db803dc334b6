"""Shows a comparison: as text on a console, and as one HTML page in the style of the report."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from specrig.measurement.records import write_atomically
from specrig.reporting.documents.inline_svg import inline_svg
from specrig.results.grid import Grid, GridEntry, interval, number, unbroken
from specrig.results.labels import method_name, task_name
from specrig.sharing.compare import sentences, side_by_side, tables
from specrig.sharing.compare.apart import Apart
from specrig.sharing.compare.comparison import Comparison, Row
from specrig.sharing.compare.scatter import draw

WIDE = 20
"""So many signs wide a word or a note may be, that a line of a console's table is not broken for it."""


def show(comparison: Comparison | Apart, console: Console) -> None:
    """Print the comparison: what to know first, what differs, methods over tasks, and the cells that changed or nearly
    did.
    """
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        console.print(f"[bold]{name}[/]  {escape(side.where)}\n   {escape(side.description)}", soft_wrap=True)
    console.print()
    for sentence in _headline(comparison):
        console.print(f"• {escape(sentence)}")
    console.print()
    for grid in _grids(comparison):
        if grid.rows:
            _print(grid, console)
    if not comparison.differences:
        console.print("Nothing that was recorded differs besides the results.\n")
    if isinstance(comparison, Comparison):
        _print_near(comparison, console)
    for note in _notes(comparison):
        console.print(escape(note), style="dim")
    console.print("Every value: --html FILE or --json.", style="dim")


def write_page(comparison: Comparison | Apart, out: Path) -> Path:
    """Write the comparison to `out` as one self-contained HTML file, completely or not at all; returns `out`."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader("specrig.sharing.compare"), PackageLoader("specrig.reporting.documents")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: unbroken(value) if type(value) is str else value,
    )
    values: dict[str, Any] = {
        "version": version("specrig"),
        "sides": [("A", comparison.a), ("B", comparison.b)],
        "headline": _headline(comparison),
        "grids": _grids(comparison),
        "notes": _notes(comparison),
    }
    name = "apart.html.j2"
    if isinstance(comparison, Comparison):
        name = "comparison.html.j2"
        with tempfile.TemporaryDirectory() as scratch:
            values["picture"] = inline_svg(draw(comparison, Path(scratch) / "scatter.svg"), "screen", "scatter")
        values |= {
            "changed": tables.cells_grid(comparison, [row for row in comparison.rows if row.changed]),
            "cells": tables.cells_grid(comparison, comparison.rows),
            "same": comparison.same,
            "only": comparison.only,
        }
    write_atomically(out, environment.get_template(name).render(values))
    return out


def as_values(comparison: Comparison | Apart) -> dict[str, Any]:
    """The comparison as values for JSON; what is not known is NaN or None."""
    return tables.as_values(comparison) if isinstance(comparison, Comparison) else side_by_side.as_values(comparison)


def _headline(comparison: Comparison | Apart) -> list[str]:
    return sentences.headline(comparison) if isinstance(comparison, Comparison) else side_by_side.headline(comparison)


def _notes(comparison: Comparison | Apart) -> Sequence[str]:
    return sentences.NOTES if isinstance(comparison, Comparison) else side_by_side.NOTES


def _grids(comparison: Comparison | Apart) -> list[Grid]:
    """The tables that every reader sees: what differs first."""
    if isinstance(comparison, Comparison):
        return [tables.differences_grid(comparison), tables.means_grid(comparison)]
    return [side_by_side.differences_grid(comparison), side_by_side.methods_grid(comparison)]


def _print_near(comparison: Comparison, console: Console) -> None:
    """Print the cells that changed, and those that would have alone."""
    near = [row for row in comparison.rows if row.changed or row.change.own.excludes_one]
    if near:
        console.print("Cells whose own change is beyond chance (bold), and others whose interval excludes 1:")
    for row in near:
        console.print(f"• {_line(row)}")
    console.print()


def _print(grid: Grid, console: Console) -> None:
    """Print a table: its caption, then each group of rows below the line that the group shares."""
    console.print(escape(" ".join([grid.caption, *grid.notes])))
    for line, rows in grid.grouped():
        # Without lines between columns, whose room the names need: a console has 80 columns.
        table = Table(
            title=escape(line) or None,
            title_justify="left",
            title_style="bold",
            box=SIMPLE_HEAD,
            pad_edge=False,
            padding=(0, 1, 0, 0),
        )
        for place, (name, is_number) in enumerate(grid.columns):
            words = [word for row in rows for word in row[place].text.split()]
            table.add_column(
                escape(name),
                justify="right" if is_number else "left",
                no_wrap=is_number and all(len(row[place].note) < WIDE for row in rows),
                # A method's name broken in its middle is not read: a line may break between words alone, as long as
                # these have a usual length.
                min_width=min(max(map(len, words), default=0), WIDE),
                overflow="fold",
            )
        for row in rows:
            table.add_row(*map(_text, row))
        console.print(table)
    console.print()


def _line(row: Row) -> str:
    """A changed cell in one sentence."""
    cell, change = row.change.cell, row.change
    name = method_name(cell.method, variant=cell.variant, disturbed=any(row.marked))
    where = f"{cell.pair}, {name}, k = {cell.k}, {task_name(cell.task)}, temperature {cell.temperature:g}, batch size {cell.batch_size}"
    parts = [
        (f"speedup {number(row.a['speedup'])} → {number(row.b['speedup'])}, own change", change.own, row.speed),
        (
            f"τ {number(row.a['acceptance_length'])} → {number(row.b['acceptance_length'])}, B / A",
            change.length,
            row.acceptance,
        ),
    ]
    said = [_bold(f"{text} {number(each.ratio)} {interval(*each.interval)}", beyond) for text, each, beyond in parts]
    why = f"; could be: {escape(row.explanation)}" if row.explanation else ""
    return f"{escape(where)}: {'; '.join(said)}{why}"


def _text(entry: GridEntry) -> str:
    text = _bold(entry.text, entry.bold)
    return f"{text} [dim]{escape(entry.note)}[/]" if entry.note else text


def _bold(text: str, bold: bool) -> str:
    return f"[bold]{escape(text)}[/]" if bold else escape(text)
