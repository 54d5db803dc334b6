"""Finds hub models and data sets without a revision and writes their commits into the tables. No torch here."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.markup import escape

from specrig.files import write_atomically
from specrig.models.gguf import is_gguf
from specrig.models.hub import present_commit
from specrig.models.pair import ModelError
from specrig.study.rows import dialect, looks_like_path
from specrig.study.study import Study


@dataclass(frozen=True, slots=True)
class Pin:
    """A cell of a table that should hold a revision and has none.

    source: the hub id. In the column `heads` the cell holds this id and the revision goes behind it; any other cell is
    empty.
    """

    file: Path
    row: str
    column: str
    source: str
    kind: Literal["model", "dataset"]

    def filled(self, cell: str, commit: str) -> str:
        """The cell's new text: the commit, or in the column `heads` the old text with the commit behind the hub id."""
        if self.column != "heads":
            return commit
        return re.sub(rf"={re.escape(self.source)}(?=\s|$)", f"={self.source}@{commit}", cell)


def unpinned(study: Study) -> list[Pin]:
    """Every model and data set that a study loads from the hub without a revision, in the order of its tables."""
    tables, found = study.tables, []
    for name, row in study.rows.pairs.items():
        if row.weights == "random":
            continue  # nothing is loaded
        entries = [entry for entry in study.methods if name in (entry.pairs or study.pairs)]
        needs = {need for entry in entries for need in entry.needs}
        if row.trained_in("target") is None and row.target_revision is None:
            found.append(Pin(tables.pairs, name, "target_revision", row.target, "model"))
        if (
            "draft" in needs
            and row.draft is not None
            and row.trained_in("draft") is None
            and row.draft_revision is None
        ):
            found.append(Pin(tables.pairs, name, "draft_revision", row.draft, "model"))
        fetched = {head: source for head, source in row.head_folders.items() if row.trained_in(head) is None}
        heads = {head: source for head, source in fetched.items() if head in needs and head not in row.head_revisions}
        found += [Pin(tables.pairs, name, "heads", source, "model") for source in dict.fromkeys(heads.values())]
    for name, task in study.rows.tasks.items():
        if task.kind == "hub" and task.revision is None and name == task.task:
            found.append(Pin(tables.tasks, name, "revision", task.source, "dataset"))
    return [pin for pin in found if pin.kind == "dataset" or not (looks_like_path(pin.source) or is_gguf(pin.source))]


def pin(study: Study, console: Console, *, check: bool) -> bool:
    """Ask the hub for the current commit of everything without a revision, and write it into the cells of the study's
    tables.

    check: only print what has no revision. Returns whether everything has a revision now. Raises ModelError for what
    the hub refuses, after the other commits are written.
    """
    pins = unpinned(study)
    commits: dict[tuple[str, str], str] = {}
    refused: dict[tuple[str, str], str] = {}
    for one in pins:
        key = one.kind, one.source
        if key not in commits | refused:
            try:
                commits[key] = present_commit(one.source, one.kind)
            except ModelError as error:
                refused[key] = str(error)
    found = [(one, commits[one.kind, one.source]) for one in pins if (one.kind, one.source) in commits]
    for file in dict.fromkeys(one.file for one, _ in found):
        own = [(one, commit) for one, commit in found if one.file == file]
        if not check:
            _write(file, own)
        console.print(f"[bold]{escape(str(file))}[/]{': not pinned' if check else ''}", highlight=False)
        for one, commit in own:
            line = f"  {one.row}: {one.column}: {one.source} is at {commit}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if found and not check:
        console.print("Cells measured without a revision will be measured again.")
    if not pins:
        console.print("Everything that the study takes from the hub is pinned.")
    if refused:
        raise ModelError("\n".join(refused.values()))
    return not (check and pins)


def _write(file: Path, pins: Sequence[tuple[Pin, str]]) -> None:
    """Write the commits into their cells; other rows stay byte for byte. A missing column is added at the end."""
    # Line ends are kept as they are, and so is a byte order mark, with which spreadsheets save tables.
    text = file.read_bytes().decode("utf-8")
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    records = list(_records(text.removeprefix(mark), file))
    header = records[0][1]
    columns = [*header, *dict.fromkeys(one.column for one, _ in pins if one.column not in header)]
    name = header.index(NAMES[pins[0][0].kind])
    written = [_record(columns, records[0][0], file) if columns != header else records[0][0]]
    for raw, cells in records[1:]:
        own = [(one, commit) for one, commit in pins if cells[name : name + 1] and cells[name].strip() == one.row]
        if not own:
            written.append(raw)
            continue
        cells = [*cells, *[""] * (len(columns) - len(cells))]
        for one, commit in own:
            cells[columns.index(one.column)] = one.filled(cells[columns.index(one.column)], commit)
        written.append(_record(cells, raw, file))
    write_atomically(file, mark + "".join(written))


NAMES = {"model": "pair", "dataset": "task"}
"""Kind of source -> the column that names the row, in the table that holds such sources."""


def _records(text: str, file: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield (the record's text as it stands in the file, its cells) for each record of a table."""
    lines: list[str] = []

    def kept_lines() -> Iterator[str]:
        for line in io.StringIO(text, newline=""):
            lines.append(line)
            yield line

    for cells in csv.reader(kept_lines(), **dialect(file)):
        yield "".join(lines), cells
        lines.clear()


def _record(cells: Sequence[str], raw: str, file: Path) -> str:
    """Return the text of a record with these cells and the line end of `raw`, the record that it replaces."""
    end = raw[len(raw.rstrip("\r\n")) :]
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator=end, **dialect(file)).writerow(cells)
    return out.getvalue()
