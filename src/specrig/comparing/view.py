"""Shows a comparison: as text on a console, and as one HTML page in the style of the report."""

from __future__ import annotations

import tempfile
from importlib.metadata import version
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from specrig.comparing.comparison import Comparison, Row
from specrig.comparing.picture import draw
from specrig.comparing.sentences import NOTES, headline
from specrig.comparing.tables import cells_grid, differences_grid, means_grid
from specrig.measurement.records import write_atomically
from specrig.reporting.grid import Entry, Grid, interval, number
from specrig.reporting.inline_svg import inline_svg
from specrig.reporting.style import method_name, task_name


def show(comparison: Comparison, console: Console) -> None:
    """Print the comparison: what to know first, what differs, methods over tasks, and the cells that changed or nearly did."""
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        console.print(f"[bold]{name}[/]  {escape(side.where)}\n   {escape(side.description)}", soft_wrap=True)
    console.print()
    for sentence in headline(comparison):
        console.print(f"• {escape(sentence)}")
    console.print()
    if comparison.differences:
        _print(differences_grid(comparison), console)
    else:
        console.print("Nothing that was recorded differs besides the results.\n")
    _print(means_grid(comparison), console)
    near = [row for row in comparison.rows if row.changed or row.change.own.excludes_one]
    if near:
        console.print("Cells whose own change is beyond chance (bold), and others whose interval excludes 1:")
    for row in near:
        console.print(f"• {_line(row)}")
    console.print()
    for note in NOTES:
        console.print(escape(note), style="dim")
    console.print("Every cell: --html FILE or --json.", style="dim")


def write_page(comparison: Comparison, out: Path) -> Path:
    """Write the comparison to `out` as one self-contained HTML file, completely or not at all; returns `out`."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader("specrig.comparing"), PackageLoader("specrig.reporting")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    with tempfile.TemporaryDirectory() as scratch:
        picture = inline_svg(draw(comparison, Path(scratch) / "scatter.svg"), "screen", "scatter")
    page = environment.get_template("comparison.html.j2").render(
        version=version("specrig"),
        sides=[("A", comparison.a), ("B", comparison.b)],
        headline=headline(comparison),
        picture=picture,
        differences=differences_grid(comparison),
        means=means_grid(comparison),
        changed=cells_grid(comparison, [row for row in comparison.rows if row.changed]),
        cells=cells_grid(comparison, comparison.rows),
        only=comparison.only,
        notes=NOTES,
    )
    write_atomically(out, page)
    return out


def _print(grid: Grid, console: Console) -> None:
    """Print a table: its caption, then each group of rows below the line that the group shares."""
    console.print(escape(" ".join([grid.caption, *grid.notes])))
    for line, rows in grid.grouped():
        table = Table(title=escape(line) or None, title_justify="left", title_style="bold")
        for name, is_number in grid.columns:
            table.add_column(escape(name), justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
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
        (f"τ {number(row.a['acceptance_length'])} → {number(row.b['acceptance_length'])}, B / A", change.length, row.acceptance),
    ]
    said = [_bold(f"{text} {number(each.ratio)} {interval(*each.interval)}", beyond) for text, each, beyond in parts]
    why = f"; could be: {escape(row.explanation)}" if row.explanation else ""
    return f"{escape(where)}: {'; '.join(said)}{why}"


def _text(entry: Entry) -> str:
    text = _bold(entry.text, entry.bold)
    return f"{text} [dim]{escape(entry.note)}[/]" if entry.note else text


def _bold(text: str, bold: bool) -> str:
    return f"[bold]{escape(text)}[/]" if bold else escape(text)
