"""What a study has measured so far, as far as planning needs it: rows of its `tables/cells.csv`. No pandas here."""

from __future__ import annotations

import csv
from pathlib import Path

from specrig.measurement.records import NOT_RECORDED
from specrig.study.problems import Problems


def fair_cells(study: Path, pair: str, problems: Problems) -> list[dict[str, str]]:
    """Cells of the pair that a method may be judged by: lossless, passed by the audit, undisturbed, with a speedup; no baseline.

    study: the study's results folder. Where it has no table, or no cell of the pair, that is added to `problems`.
    """
    file = study / "tables" / "cells.csv"
    if not file.is_file():
        problems.row(file, None, "", "no such table", "give a study's results folder, e.g. results/quick, after it has run")
        return []
    rows = [row for row in _cells(file) if row["pair"] == pair]
    if not rows:
        problems.row(
            file, None, "pair", f"the study measured no pair {pair!r}", "choose another study, or none: then the model advises"
        )
    fair = [row for row in rows if row["lossless"] == "True" and row.get("failed") != "True" and row["speedup"]]
    fair = [row for row in fair if row.get("disturbed", "") in ("", NOT_RECORDED)]
    return [row for row in fair if row["method"] != "autoregressive"]


def prompts_needed(study: Path) -> list[float]:
    """How many prompts each measured cell needs to tell 5 % apart, ascending; empty for a study that has not been measured."""
    file = study / "tables" / "cells.csv"
    rows = _cells(file) if file.is_file() else []
    return sorted(float(row["prompts_needed"]) for row in rows if row.get("prompts_needed"))


def _cells(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))
