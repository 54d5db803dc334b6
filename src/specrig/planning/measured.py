"""Reads from a study's `tables/cells.csv` what planning needs of its measurements. No pandas here."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from specrig.measurement.records import NOT_RECORDED
from specrig.study.problems import Problems


def usable_cells(study: Path, pair: str, problems: Problems) -> list[dict[str, str]]:
    """Read the cells of a pair by which methods may be judged, as rows of `cells.csv`.

    These cells are lossless, passed the audit and have a speedup, disturbed ones included; the baseline's are left out.
    study: the results folder. A missing table, or one without the pair, is added to `problems`.
    """
    file = study / "tables" / "cells.csv"
    if not file.is_file():
        fix = "give a study's results folder, e.g. results/quick, after it has run"
        problems.row(file, None, "", "no such table", fix)
        return []
    rows = [row for row in _cells(file) if row["pair"] == pair]
    if not rows:
        fix = "choose another study, or none: then the model advises"
        problems.row(file, None, "pair", f"the study measured no pair {pair!r}", fix)
    fair = [row for row in rows if row["lossless"] == "True" and row.get("failed") != "True" and row["speedup"]]
    return [row for row in fair if row["method"] != "autoregressive"]


def is_disturbed(row: Mapping[str, str]) -> bool:
    """Whether a row of `cells.csv` is known to be disturbed."""
    return row.get("disturbed", "") not in ("", NOT_RECORDED)


def prompts_needed(study: Path) -> list[float]:
    """How many prompts each measured cell needs to resolve a difference of 5 %, ascending; empty if not measured."""
    file = study / "tables" / "cells.csv"
    rows = _cells(file) if file.is_file() else []
    return sorted(float(row["prompts_needed"]) for row in rows if row.get("prompts_needed"))


def _cells(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))
