"""A table for readers, and its rendering as Markdown. `latex` renders it for papers, the report's template as HTML."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specrig.analysis.statistics import LEAST_UNITS


@dataclass(frozen=True, slots=True)
class GridEntry:
    """One value of a table. note: small print behind the text, e.g. an interval. bold, struck: how the text is set.

    href: where the text leads in HTML; empty: nowhere.
    """

    text: str
    note: str = ""
    bold: bool = False
    struck: bool = False
    href: str = ""


Column = Callable[[dict[str, Any]], GridEntry | str]
"""What a column shows of a row of data."""


@dataclass(slots=True)
class Grid:
    """A table: header, rows of entries, and what a paper needs around them.

    labels, trailing: the numbers of leading and trailing columns that hold text; the others hold numbers. groups: the
    number of leading columns that many rows share (pair, temperature); HTML and LaTeX show these once, in a line above
    the rows that share them. label: for LaTeX.
    """

    header: list[str]
    rows: list[list[GridEntry]]
    labels: int = 1
    caption: str = ""
    label: str = ""
    notes: list[str] = field(default_factory=list)
    groups: int = 0
    trailing: int = 0

    @classmethod
    def of(cls, rows: Iterable[dict[str, Any]], columns: Mapping[str, Column], **about: Any) -> Grid:
        """One row for each row of data. columns: header -> what stands there. about: the other fields."""
        entries = [[column(row) for column in columns.values()] for row in rows]
        found = [[each if isinstance(each, GridEntry) else GridEntry(each) for each in row] for row in entries]
        return cls([*columns], found, **about)

    @property
    def columns(self) -> list[tuple[str, bool]]:
        """(name, whether it holds numbers) of each column that does not belong to `groups`."""
        return [(name, self.is_number(column)) for column, name in enumerate(self.header)][self.groups :]

    def is_number(self, column: int) -> bool:
        """Whether the column at this index holds numbers."""
        return self.labels <= column < len(self.header) - self.trailing

    def grouped(self) -> list[tuple[str, list[list[GridEntry]]]]:
        """(the line above a group, the group's rows without the shared entries), in order of first appearance."""
        found: dict[str, list[list[GridEntry]]] = {}
        for row in self.rows:
            shared = (f"{name} {entry.text}" for name, entry in zip(self.header, row[: self.groups], strict=False))
            found.setdefault(", ".join(shared), []).append(row[self.groups :])
        return list(found.items())


PAGE_SIGNS = 106
"""How many signs of small print (8 points) stand side by side on a page, the space between columns included."""
LONG = 44
"""A column of texts that are longer wraps its lines."""
WRAPPED = 36
"""How wide such columns are where there are several."""


def signs(name: str, entries: Sequence[GridEntry]) -> int:
    """How many signs wide a column is, with the space beside it."""
    words = max((len(word) for word in name.split()), default=0)
    widest = max((len(entry.text) + 0.8 * len(entry.note) for entry in entries), default=0)
    return int(min(max(widest, words, 3), LONG)) + 2


def fitting(grid: Grid, most: int) -> Grid:
    """The grid with so few columns that it is at most so many `signs` wide: trailing texts go first, then numbers.

    The last column with numbers is kept, which is the result, as the mean over tasks is. A note says how many are missing.
    """
    widths = [signs(name, [row[at] for row in grid.rows]) for at, name in enumerate(grid.header)]
    if sum(width >= LONG for width in widths) > 1:
        widths = [min(width, WRAPPED) for width in widths]
    kept = list(range(len(grid.header)))
    numbers = [at for at in kept[grid.groups :] if grid.is_number(at)]
    texts = [at for at in kept[max(grid.groups, 1) :] if not grid.is_number(at)]
    trailing = [at for at in texts if at >= len(grid.header) - grid.trailing]
    labels = [at for at in texts if at not in trailing]
    for at in [*reversed(trailing), *reversed(numbers[:-1]), *reversed(labels)]:
        if sum(widths[at] for at in kept[grid.groups :]) <= most:
            break
        kept.remove(at)
    if len(kept) == len(grid.header):
        return grid
    missing = len(grid.header) - len(kept)
    return replace(
        grid,
        header=[grid.header[at] for at in kept],
        rows=[[row[at] for at in kept] for row in grid.rows],
        labels=sum(at < grid.labels for at in kept),
        trailing=sum(at >= len(grid.header) - grid.trailing for at in kept),
        notes=[*grid.notes, f"{missing} more column{'s' if missing > 1 else ''}: page and CSV."],
    )


def number(value: float | None, digits: int = 2) -> str:
    """A number as text, with `digits` decimals and commas between thousands; an en dash where it is undefined."""
    return "–" if value is None or not math.isfinite(value) else f"{value:z,.{digits}f}"


def measured(
    row: Mapping[str, Any],
    name: str,
    digits: int = 2,
    *,
    bold: bool = False,
    struck: bool = False,
    units: int | None = None,
    scale: float = 1,
) -> GridEntry:
    """The entry of the column `name`: its number, and its interval from `<name>_low` and `<name>_high`.

    units: how many units the value rests on; None: the row's prompts, or batches of them. scale: multiplies all three.
    """  # fmt: skip
    value, low, high = (scale * row[f"{name}{end}"] for end in ("", "_low", "_high"))
    known = units_of(row) if units is None else units
    note = interval(low, high, digits, units=known if math.isfinite(value) else None)
    return GridEntry(number(value, digits), note, bold, struck and math.isfinite(value))


def text(name: str) -> Column:
    """The column `name` as it is."""
    return lambda row: str(row[name])


def figure(name: str, digits: int = 2) -> Column:
    """The column `name` as a number, see `number`."""
    return lambda row: number(row[name], digits)


def share(name: str, digits: int = 0) -> Column:
    """The column `name` in per cent."""
    return lambda row: percent(row[name], digits)


def estimate(name: str, digits: int = 2, *, scale: float = 1) -> Column:
    """The column `name` with its interval, see `measured`."""
    return lambda row: measured(row, name, digits, scale=scale)


def range_of(name: str, low: str, high: str) -> Column:
    """The column `name` with the interval from the columns `low` and `high`, where these are known."""
    return lambda row: GridEntry(number(row[name]), interval(row[low], row[high]))


def units_of(row: Mapping[str, Any]) -> int | None:
    """How many units the figures of a table's row rest on: its prompts, or batches of them; None where not known."""
    prompts = row.get("common_prompts", row.get("prompts"))
    return None if prompts is None or prompts != prompts else math.ceil(prompts / (row.get("batch_size") or 1))


def percent(value: float | None, digits: int = 0) -> str:
    """A share as text in per cent, with `digits` decimals; an en dash where it is undefined."""
    return "–" if value is None or not math.isfinite(value) else f"{100 * value:.{digits}f} %"


_UNITS = re.compile(r"(?<=\d) (?=(?:%|[kMGT]?i?B(?:/s)?|[mμ]?s|tokens/s|GHz|MHz)(?![\w/])|†)")


def unbroken(text: str) -> str:
    """`text` for a page that breaks lines: a number keeps its unit and its mark beside it."""
    return _UNITS.sub("\u00a0", text)


def interval(low: float, high: float, digits: int = 2, *, units: int | None = None) -> str:
    """An interval as text, e.g. `[1.53, 1.71]`; `n = 2` where there are too few units for one; else empty."""
    if math.isfinite(low) and math.isfinite(high):
        return f"[{low:.{digits}f}, {high:.{digits}f}]"
    return f"n = {units}" if units is not None and 0 < units < LEAST_UNITS else ""


def letter(number: int) -> str:
    """The letters for a number from 0: a, b, …, z, aa, ab, …"""
    return (letter(number // 26 - 1) if number >= 26 else "") + chr(ord("a") + number % 26)


def markdown(grid: Grid) -> str:
    """The grid in GitHub's table syntax, with caption and notes. Bold is `**`, struck through is `~~`."""

    def show(entry: GridEntry) -> str:
        text = _escape_markdown(entry.text)
        text = f"**{text}**" if entry.bold else text
        text = f"~~{text}~~" if entry.struck else text
        return f"{text} {entry.note}" if entry.note else text

    lines = [
        _row([_escape_markdown(name) for name in grid.header]),
        _row(["--:" if grid.is_number(column) else ":--" for column in range(len(grid.header))]),
        *(_row([show(entry) for entry in row]) for row in grid.rows),
    ]
    notes = "".join(f"\n{_escape_markdown(note)}\n" for note in grid.notes)
    return f"{grid.caption}\n\n" + "\n".join(lines) + "\n" + notes


def _escape_markdown(text: str) -> str:
    return text.replace("|", r"\|").replace("_", r"\_")


def _row(values: Sequence[str]) -> str:
    return "| " + " | ".join(values) + " |"
