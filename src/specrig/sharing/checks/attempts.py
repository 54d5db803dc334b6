"""Of several attempts at a cell, the one that counts must be the least disturbed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from specrig.cell import Cell
from specrig.measurement.attempts import least_disturbed
from specrig.measurement.records import Record
from specrig.measurement.signs import loads
from specrig.sharing.archive import ATTEMPT, attempt_numbers, read_lines
from specrig.sharing.checks import Located
from specrig.sharing.checks.records import contradictions
from specrig.study.study import Study


def wrong_attempts(job: Path, counted: Sequence[Located], study: Study, cells: Mapping[str, Cell]) -> Iterator[str]:
    """A sentence for each attempt that cannot be, and for each cell of which a quieter attempt does not count.

    job: its folder. counted: its records. cells: name -> the study's own cell. Raises OSError and ValueError for files
    that cannot be read.
    """
    numbers = attempt_numbers(job)
    if not numbers:
        return
    environment = json.loads((job / "environment.json").read_text(encoding="utf-8"))
    chosen = _by_cell([one.record for one in counted])
    others: dict[str, dict[int, list[Record]]] = {}
    for number in numbers:
        lines = read_lines(job, f"{ATTEMPT}{number}")
        found = [Located(location, Record.model_validate_json(line)) for location, line in lines]
        for one in found:
            yield from map(one.says, contradictions(one.record, study, cells.get(one.record.cell.name)))
        for slug, records in _by_cell([one.record for one in found]).items():
            others.setdefault(slug, {})[number] = records
    for slug, found_of in others.items():
        own = chosen.get(slug, [])
        if any(_same(records) != _same(own) for records in found_of.values()):
            yield f"cell {slug}: attempts at other prompts than those of the attempt that counts"
            continue
        number = min(set(range(1, len(found_of) + 2)) - found_of.keys())
        attempts = [loads(records) for _, records in sorted({**found_of, number: own}.items())]
        best = least_disturbed(attempts, environment)
        if best != number - 1:
            yield f"cell {slug}: attempt {number} counts, though attempt {best + 1} was disturbed no more"


def _by_cell(records: Sequence[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.cell.slug, []).append(record)
    return found


def _same(records: Sequence[Record]) -> list[tuple[str, str, int, int]]:
    """What all attempts at a cell have in common."""
    return [(record.digest, record.prompt_id, record.seed, record.replicate) for record in records]
