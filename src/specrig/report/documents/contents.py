"""What a document shows of the outline: `report.outline` with a study's texts and tables in it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import pandas as pd

from specrig.report.grid import Grid
from specrig.report.items import Block, Figure, Item, Medium, Section, Table, Text, shown_in
from specrig.report.labels import NOTES
from specrig.report.outline import OUTLINE
from specrig.report.prose import DEFINITIONS
from specrig.report.study_results import DataTable, StudyResults
from specrig.report.table_files import frame_grid

LONGEST = 1000
"""Rows of the longest table that is printed. Setting one takes Typst .7 MB of memory a row."""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph. warning: it warns."""

    text: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class ReadyTable:
    """A table as readers see it, with its entry in the outline. data: that of its files, where it has any."""

    item: Table
    grid: Grid
    data: DataTable | None = None


Ready = Paragraph | ReadyTable | Figure | Block


@dataclass(frozen=True, slots=True)
class ReadySection:
    """A section with what it shows, in the order of reading."""

    section: Section
    items: list[Ready]

    @property
    def title(self) -> str:
        """The section's title."""
        return self.section.title

    @property
    def late(self) -> bool:
        """Whether it stands behind the references of a paper."""
        return self.section.late

    @property
    def empty(self) -> bool:
        """Whether nothing is left of it, or only the text about figures that have no data."""
        only_text = all(isinstance(item, Paragraph) for item in self.items)
        return only_text and (not self.items or any(isinstance(item, Figure) for item in self.section.items))

    def tables(self) -> list[Grid]:
        """Its tables."""
        return [item.grid for item in self.items if isinstance(item, ReadyTable)]


@dataclass(frozen=True, slots=True)
class Contents:
    """A whole document. facts: lines below the title. answers: its first sentences. definitions: term -> meaning."""

    title: str
    facts: list[str]
    answers: list[str]
    abstract: list[str]
    sections: list[ReadySection]
    definitions: dict[str, str]

    def tables(self) -> list[Grid]:
        """All tables, in order."""
        return [grid for section in self.sections for grid in section.tables()]


def contents(results: StudyResults, medium: Medium, drawn: Collection[str]) -> Contents:
    """What a document of the kind `medium` shows of a study; sections without content are left out.

    drawn: the names of the figures that have data.
    """
    sections = [
        ReadySection(
            section,
            [
                ready
                for item in section.items
                if not isinstance(item, Figure) or item.name in drawn
                for ready in _ready(item, results, medium)
            ],
        )
        for section in OUTLINE
        if section.condition(results)
    ]
    return Contents(
        f"Speculative decoding: {results.name}",
        [*filter(None, [results.byline, results.certainty])],
        [*filter(None, [results.baseline_warning]), *(finding.answer for finding in results.findings)],
        results.abstract,
        [section for section in sections if not section.empty],
        DEFINITIONS,
    )


def _ready(item: Item, results: StudyResults, medium: Medium) -> Iterator[Ready]:
    if not shown_in(item.only, medium):
        return
    if isinstance(item, Text):
        found = item.of if isinstance(item.of, str) else item.of(results)
        yield from (Paragraph(text, item.warning) for text in ([found] if isinstance(found, str) else found) if text)
    elif isinstance(item, Table):
        for table in _tables(item, results, medium):
            own = replace(table.grid, notes=[note for note in table.grid.notes if note not in NOTES])
            table = replace(table, grid=own)  # signs are explained once, in the definitions
            yield table if medium == "html" else _short(table, results)
    else:
        yield item


def _tables(item: Table, results: StudyResults, medium: Medium) -> Iterator[ReadyTable]:
    found = item.of(results)
    for part in found if isinstance(found, list | tuple) else [found]:
        if isinstance(part, DataTable):
            yield ReadyTable(item, part.formatted if medium == "html" else part.printed, part)
        elif isinstance(part, Grid):
            yield ReadyTable(item, part)
        elif isinstance(part, pd.DataFrame):
            grid = frame_grid(item, part, results.name)
            yield ReadyTable(item, grid, DataTable(part, grid) if item.file else None)


def _short(table: ReadyTable, results: StudyResults) -> Ready:
    """The table, or a sentence that names its file where it is too long for print."""
    if len(table.grid.rows) <= LONGEST:
        return table
    file = results.folder / (table.item.source or f"tables/{table.item.name}.csv")
    title = table.grid.caption.partition(". ")[0].rstrip(".")
    return Paragraph(f"{title}: {len(table.grid.rows):,} rows, too many to print. {file} has them.")
