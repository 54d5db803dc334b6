"""Shows a comparison: as text on a console, and as one HTML page in the style of the report."""

from __future__ import annotations

import tempfile
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from specrig.files import write_atomically
from specrig.reporting.documents.html_templates import html_template
from specrig.reporting.documents.inline_svg import inline_svg
from specrig.results.grid import Grid, GridEntry, interval, number
from specrig.results.labels import cell_name
from specrig.sharing.compare.scatter import draw
from specrig.sharing.compare.sentences import headline, notes
from specrig.sharing.compare.study_comparison import CellComparison, StudyComparison
from specrig.sharing.compare.tables import cells_table, methods_table, setup_table
from specrig.terminal import Column, print_table


def print_comparison(comparison: StudyComparison, console: Console) -> None:
    """Print what to know first, what differs, methods over tasks, and the cells that changed or nearly did."""
    for side in (comparison.a, comparison.b):
        console.print(f"[bold]{side.name}[/]  {escape(side.path)}\n   {escape(side.description)}", soft_wrap=True)
    console.print()
    for sentence in headline(comparison):
        console.print(f"• {escape(sentence)}")
    console.print()
    for table in (setup_table(comparison), methods_table(comparison)):
        if table.rows:
            _print_table(table, console)
    if not comparison.differences:
        console.print("Nothing that was recorded differs besides the results.\n")
    if comparison.common:
        near = [cell for cell in comparison.cells if cell.changed or cell.change.relative.excludes_one]
        if near:
            console.print("Cells with a relative change beyond chance (bold), and others whose interval excludes 1:")
        for cell in near:
            console.print(f"• {_line(cell)}")
        console.print()
    for note in notes(comparison):
        console.print(escape(note), style="dim")
    console.print("Every value: --html FILE or --json.", style="dim")


def write_page(comparison: StudyComparison, out: Path) -> Path:
    """Write the comparison to `out` as one self-contained HTML file, completely or not at all; returns `out`."""
    figure = ""
    if comparison.common:
        with tempfile.TemporaryDirectory() as scratch:
            figure = inline_svg(draw(comparison, Path(scratch) / "scatter.svg"), "screen", "scatter")
    page = html_template("comparison.html.j2", "specrig.sharing.compare").render(
        version=version("specrig"),
        comparison=comparison,
        headline=headline(comparison),
        notes=notes(comparison),
        setup=setup_table(comparison),
        methods=methods_table(comparison),
        changed=cells_table(comparison, [cell for cell in comparison.cells if cell.changed]),
        cells=cells_table(comparison, comparison.cells),
        figure=figure,
    )
    write_atomically(out, page)
    return out


def _print_table(table: Grid, console: Console) -> None:
    """Print a table: its caption, then each group of rows below the line that the group shares."""
    console.print(" ".join([table.caption, *table.notes]), markup=False)
    columns = [Column(name, right=is_number, breaks=not is_number) for name, is_number in table.columns]
    for line, rows in table.grouped():
        console.print(f"\n{line}" if line else "", style="bold", markup=False)
        print_table(console, columns, [[_text(entry) for entry in row] for row in rows])
    console.print()


def _line(cell: CellComparison) -> str:
    """A changed cell in one sentence."""
    change, sign = cell.change, " ‡" if any(cell.disturbed) else ""
    speedups, lengths = ([number(side[name]) for side in (cell.a, cell.b)] for name in ("speedup", "acceptance_length"))
    parts = [
        (f"speedup {' → '.join(speedups)}, relative change", change.relative, cell.speedup_changed),
        (f"τ {' → '.join(lengths)}, B / A", change.length, cell.acceptance_changed),
    ]
    texts = [_bold(f"{text} {number(each.ratio)} {interval(*each.interval)}", beyond) for text, each, beyond in parts]
    why = f"; possible cause: {escape(cell.explanation)}" if cell.explanation else ""
    return f"{escape(f'{change.cell.pair}, {cell_name(change.cell)}{sign}')}: {'; '.join(texts)}{why}"


def _text(entry: GridEntry) -> Text:
    note = (f" {entry.note}", "dim") if entry.note else ""
    return Text.assemble((entry.text, "bold" if entry.bold else ""), note)


def _bold(text: str, bold: bool) -> str:
    return f"[bold]{escape(text)}[/]" if bold else escape(text)
