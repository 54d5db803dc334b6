"""The advice box: the fastest lossless method and its k for each pair and task, and its memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from specrig.analysis.cells import identity, row_dicts, row_identity
from specrig.report import grid
from specrig.report.grid import Grid, GridEntry
from specrig.report.labels import named, task_name
from specrig.report.study_data import StudyData
from specrig.report.summary import base_setting, comparable

SETTING = ["engine", "pair", "task"]
SHOWN = 3
"""How many methods are named whose interval overlaps that of the best one."""


def advised(study: StudyData, cells: pd.DataFrame) -> pd.DataFrame:
    """One row per engine, pair and task: the cell of the fastest lossless method, at the lowest temperature and
    smallest batch.

    cells: `StudyResults.cells`. Cells that are lossy or failed the audit are left out.

    Columns: those of `cells`; `rivals` (names of the other methods of which a cell's interval reaches into the best
    one's); `beyond_mb` (peak memory beyond plain decoding's in the same cell, NaN if not known).
    """
    plain = {
        identity(members[0].cell): max(record.baseline.peak_memory_mb for record in members)
        for members in study.cells.values()
    }
    rows = []
    for _, frame in _fair(cells).groupby(SETTING, sort=False):
        best, *others = row_dicts(frame.sort_values("speedup", ascending=False))
        near = dict.fromkeys(_name(row) for row in others if not row["speedup_high"] < best["speedup_low"])
        rivals = [name for name in near if name != _name(best)]
        memory = best["peak_memory_mb"] - (plain[row_identity(best)] or np.nan)
        rows.append(best | {"rivals": rivals, "beyond_mb": memory})
    return pd.DataFrame(rows, columns=[*cells.columns, "rivals", "beyond_mb"])


def _fair(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells that may be advised: lossless, passed by the audit, in their base setting."""
    base = pd.concat([cells.iloc[:0], *(base_setting(frame) for _, frame in cells.groupby(SETTING, sort=False))])
    fair = base[comparable(base)]
    return fair.assign(variant=fair["variant"].fillna("")).dropna(subset=["speedup"])


def advice_grid(found: pd.DataFrame, cells: pd.DataFrame) -> Grid:
    """`advised` as a table for readers.

    cells: what it was made of.
    """
    levels = [name for name in ("engine", "pair") if len(cells[name].unique()) > 1]
    rows = []
    for row in row_dicts(found):
        gains, certain, known = row["speedup"] > 1, row["speedup_low"] > 1, np.isfinite(row["beyond_mb"])
        rows.append(
            [
                *(GridEntry(str(row[name])) for name in levels),
                GridEntry(task_name(row["task"])),
                GridEntry(
                    _name(row) if gains else "none",
                    "" if certain else "gain not certain" if gains else "",
                    bold=certain,
                ),
                GridEntry(str(row["k"]) if gains else "–"),
                GridEntry(
                    f"{grid.number(row['speedup'])}×",
                    grid.interval(row["speedup_low"], row["speedup_high"], units=grid.units_of(row)),
                ),
                GridEntry(_megabytes(row["beyond_mb"]), f"of {grid.number(row['peak_memory_mb'], 0)}")
                if known
                else GridEntry("–"),
                GridEntry(first_names(row["rivals"], SHOWN) or "–"),
            ]
        )
    return Grid(
        header=[*levels, "task", "method", "k", "speedup", "more memory", "intervals overlap"],
        rows=rows,
        labels=len(levels) + 3,
        trailing=1,
        caption=(
            "The fastest lossless method of each task with its 95 % interval, chosen on the same prompts; its memory "
            "beyond plain decoding's, and methods whose interval reaches into its own."
        ),
        label="tab:advice",
    )


def first_names(names: list[str], most: int) -> str:
    """The first `most` names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _megabytes(size: float) -> str:
    """A difference of two peaks: what falls below their resolution, with either sign, is no saving."""
    return f"{round(size):,} MB" if size >= 1 else "< 1 MB"


def _name(row: dict[str, Any]) -> str:
    return named(row)
