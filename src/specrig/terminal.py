"""What the command line prints on: consoles that print text as it stands, and tables that cut no name and no number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

UNLIMITED = 100_000
"""Characters of a line where the output is no terminal."""
GAP = "  "
"""Between two columns."""


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """A console without emoji and highlighting. Off a terminal it breaks no line."""
    found = Console(stderr=stderr, quiet=quiet, emoji=False, highlight=False)
    if not found.is_terminal:
        found.width = UNLIMITED
    return found


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. right: numbers, set to the right. breaks: text that may go on in the next line; cut: that a
    narrow terminal may end with an ellipsis.
    """

    name: str
    right: bool = False
    breaks: bool = False
    cut: bool = False


def print_table(console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str | Text]]) -> None:
    """Print a table as wide as it needs. On a terminal that is narrower, columns break between words; where that is not
    enough, each row becomes a list of its values.
    """
    header = [Text(column.name, style="bold") for column in columns]
    body = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    widths = _widths(columns, [header, *body], console.width)
    if widths is None:
        for row in body:
            _print_list(console, columns, row)
        return
    for row in (header, *body):
        cells = [_lines(cell, width, column, console) for cell, width, column in zip(row, widths, columns, strict=True)]
        for number in range(max(map(len, cells))):
            line = Text()
            for column, width, cell in zip(columns, widths, cells, strict=True):
                part = cell[number] if number < len(cell) else Text()
                part.rstrip()
                space = " " * (width - part.cell_len)
                line = Text.assemble(line, GAP if column is not columns[0] else "", *_aligned(part, space, column))
            line.rstrip()
            console.print(line, soft_wrap=True)


def _lines(cell: Text, width: int, column: Column, console: Console) -> Sequence[Text]:
    if column.cut:
        cell = cell.copy()
        cell.truncate(width, overflow="ellipsis")
        return [cell]
    return list(cell.wrap(console, width))


def _aligned(part: Text, space: str, column: Column) -> tuple[str | Text, str | Text]:
    return (space, part) if column.right else (part, space)


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[Text]], limit: int) -> list[int] | None:
    """Width of each column so that a line has at most `limit` characters; None where there are no such widths."""
    natural = [max(cell.cell_len for cell in cells) for cells in zip(*rows, strict=True)]
    least = []
    for column, (header, *cells) in zip(columns, zip(*rows, strict=True), strict=True):
        whole = 0 if column.breaks or column.cut else max((cell.cell_len for cell in cells), default=0)
        words = [header, *(cells if column.breaks else ())]
        least.append(max([whole, *(Text(word).cell_len for cell in words for word in cell.plain.split())]))
    room = limit - len(GAP) * (len(columns) - 1) - sum(least)
    if room < 0:
        return None
    lacking = [whole - fixed for whole, fixed in zip(natural, least, strict=True)]
    share = min(1.0, room / sum(lacking)) if sum(lacking) else 0.0
    return [fixed + int(share * more) for fixed, more in zip(least, lacking, strict=True)]


def _print_list(console: Console, columns: Sequence[Column], row: Sequence[Text]) -> None:
    """A row as its first value, and below it a line for each other value that is not empty."""
    console.print(row[0], soft_wrap=True)
    for column, cell in zip(columns[1:], row[1:], strict=True):
        if cell.plain:
            console.print(Text.assemble(f"    {column.name}: ", cell))
