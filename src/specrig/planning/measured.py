"""Reads from a study's table of cells and its records what planning needs of its measurements. No pandas here."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

from specrig.measurement.records import RecordError, read_index
from specrig.report.labels import BASELINES
from specrig.study.config import Config
from specrig.study.load import load_study
from specrig.study.problems import Positions, Problem, Problems, StudyError, shortened
from specrig.study.rows import Pair
from specrig.study.study import Study


def _number_or_empty(text: str) -> float | None:
    return float(text) if text else None


CELLS: dict[str, Callable[[str], object]] = {
    **dict.fromkeys(("engine", "pair", "method", "variant", "task", "lossless"), str),
    **dict.fromkeys(("k", "batch_size"), int),
    "temperature": float,
    **dict.fromkeys(("speedup", "speedup_low", "speedup_high", "acceptance_length"), _number_or_empty),
}
"""Column of `cells.csv` -> what its entries are."""


def _read_cells(file: Path) -> list[dict[str, str]]:
    """The rows of a study's table of cells. Raises StudyError for a file that is no such table, with the row."""
    again = f"make the table again: specrig stage tables --study {file.parent.parent / 'study.json'}"
    try:
        rows = list(csv.DictReader(io.StringIO(file.read_bytes().decode("utf-8"), newline="")))
    except (csv.Error, UnicodeDecodeError) as error:
        raise StudyError([Problem(str(file), "", f"not a table ({error})", again)]) from error
    for number, row in enumerate(rows, 2):
        for name, kind in CELLS.items():
            entry = row.get(name)
            if entry is None:
                raise StudyError([Problem(f"{file}:{number}", name, "the row has no such column", again)])
            try:
                kind(entry)
            except ValueError as error:
                raise StudyError(
                    [Problem(f"{file}:{number}", name, f"{shortened(entry)} is not a number", again)]
                ) from error
    return rows


def usable_cells(study: Path, pair: str, problems: Problems) -> list[dict[str, str]]:
    """Read the cells of a pair by which methods may be judged, as rows of `cells.csv`.

    These cells are lossless, passed the audit and have a speedup; those of `BASELINES` are left out.
    study: the results folder. A missing table, or one without the pair, is added to `problems`. Raises StudyError for a
    damaged one.
    """
    file = study / "tables" / "cells.csv"
    if not file.is_file():
        fix = "give a study's results folder, e.g. results/quick, after it has run"
        problems.row(file, None, "", "no such table", fix)
        return []
    rows = [row for row in _read_cells(file) if row["pair"] == pair]
    if not rows:
        fix = "choose another study, or none: then the model advises"
        problems.row(file, None, "pair", f"the study measured no pair {pair!r}", fix)
    fair = [row for row in rows if row["lossless"] == "True" and row.get("failed") != "True" and row["speedup"]]
    return [row for row in fair if row["method"] not in BASELINES]


RESULTS: Path = Config.model_fields["results"].default
"""Where studies lie, unless their config names another folder."""
DECIDING = ("target", "draft", "dtype", "weights")
"""Columns by which two rows of one name are the same pair."""


def studies_of(pair: Pair) -> list[Path]:
    """The results folders of the finished studies in `RESULTS` by which a pair's methods may be judged, newest first.

    Raises StudyError for one with a damaged table.
    """
    times = {}
    for file in RESULTS.glob("*/tables/cells.csv"):
        study = file.parent.parent
        if _has_row(study, pair) and usable_cells(study, pair.pair, Problems(Positions([]))):
            times[study] = file.stat().st_mtime
    return sorted(times, key=lambda study: (-times[study], study))


def _has_row(study: Path, pair: Pair) -> bool:
    """Whether a study has this pair; a study that cannot be read has not."""
    try:
        row = json.loads((study / "study.json").read_text(encoding="utf-8"))["rows"]["pairs"][pair.pair]
        return all(row[column] == getattr(pair, column) for column in DECIDING)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False


def cells_measured(study: Study) -> int:
    """How many cells of a study have records that were made with its settings.

    Only names, indexes and the settings and task rows of the last run are looked at, which takes no time. So a run may
    measure more than the other cells: those whose code, models or prompts have changed.
    """
    try:
        last = load_study(study.root / "study.json")
    except (StudyError, OSError):
        return 0
    tasks = study.rows.tasks.keys() & last.rows.tasks.keys()
    same = {task for task in tasks if study.measured_row(task) == last.measured_row(task)}
    unchanged, found = {repr(cell) for cell in last.grid.cells if cell.task in same}, 0
    for (engine, pair, method), cells in study.grid.by_method.items():
        if pair not in last.rows.pairs or study.job_settings(engine, pair) != last.job_settings(engine, pair):
            continue
        own = study.root / "records" / engine / pair / method
        recorded = _recorded(own)
        found += sum(repr(cell) in unchanged and cell.slug in recorded for cell in cells)
    return found


def _recorded(folder: Path) -> set[str]:
    """The slugs of the cells whose records are in a folder as its index says."""
    try:
        index = read_index(folder / "index.json")
    except (RecordError, OSError):
        return set()
    return {slug for slug, entry in index["cells"].items() if (folder / entry["records"]).is_file()} - set(
        index["failed"]
    )
