"""The advice box: the fastest lossless method and its k for each pair and task, and its memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from specrig.analysis.cells import IDENTITY, identity, row_dicts, row_identity
from specrig.analysis.disturbance import disturbed
from specrig.measurement.signs import is_disturbed
from specrig.results import grid
from specrig.results.grid import Grid, GridEntry
from specrig.results.labels import DISTURBED_NOTE, method_name, task_name
from specrig.results.study_data import StudyData
from specrig.results.summary import base_setting, comparable

SETTING = ["engine", "pair", "task"]
SHOWN = 3
"""How many methods are named whose interval overlaps that of the best one."""


def advised(study: StudyData, cells: pd.DataFrame, optimal: pd.DataFrame) -> pd.DataFrame:
    """One row per engine, pair and task: the cell of the fastest lossless method, at the lowest temperature and
    smallest batch.

    cells: `StudyResults.cells`. optimal: `analysis.optimal_k.optimal_k` of them. Cells that are lossy or failed the
    audit are left out, disturbed ones too unless there are no others. A method with several k's is judged by the
    speedup of choosing k on other prompts, the others by their cell's.

    Columns: those of `cells`; `value`, `low`, `high` (that speedup and its 95 % interval); `rivals` (names of the
    methods whose interval reaches into the best one's); `beyond_mb` (peak memory beyond plain decoding's in the same
    cell, NaN if not known).
    """
    chosen = {_key(row): row for row in row_dicts(optimal.assign(variant=optimal["variant"].fillna("")))}
    plain = {
        identity(members[0].cell): max(record.baseline.peak_memory_mb for record in members)
        for members in study.cells.values()
    }
    rows = []
    for _, frame in _fair(cells).groupby(SETTING, sort=False):
        candidates = _candidates(frame[~disturbed(frame)], chosen) or _candidates(frame, chosen)
        if not candidates:
            continue  # the cells at their best k are those that may not be advised
        best, *others = sorted(candidates, key=lambda row: -row["value"])
        near = dict.fromkeys(_name(row) for row in others if not row["high"] < best["low"])
        rivals = [name for name in near if name != _name(best)]
        memory = best["peak_memory_mb"] - (plain[row_identity(best)] or np.nan)
        rows.append(best | {"rivals": rivals, "beyond_mb": memory})
    return pd.DataFrame(rows, columns=[*cells.columns, "value", "low", "high", "rivals", "beyond_mb"])


def _candidates(frame: pd.DataFrame, chosen: dict[tuple[Any, ...], dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells at their method's best k, with the speedup that judges it and its interval."""
    found = []
    for row in row_dicts(frame):
        by_k = chosen.get(_key(row))
        if by_k and by_k["best_k"] != row["k"]:
            continue
        source = by_k if by_k and np.isfinite(by_k["speedup"]) else row
        found.append(row | {"value": source["speedup"], "low": source["speedup_low"], "high": source["speedup_high"]})
    return found


def _fair(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells that may be advised unless disturbed: lossless, passed by the audit, in their base setting."""
    base = pd.concat([cells.iloc[:0], *(base_setting(frame) for _, frame in cells.groupby(SETTING, sort=False))])
    fair = base[comparable(base)]
    return fair.assign(variant=fair["variant"].fillna("")).dropna(subset=["speedup"])


def advice_grid(found: pd.DataFrame, cells: pd.DataFrame, links: Callable[[dict[str, Any]], list[GridEntry]]) -> Grid:
    """`advised` as a table for readers.

    cells: what it was made of. links: gives the entries that lead from a row's cell to its record and its MLflow run.
    """
    levels = [name for name in ("engine", "pair") if len(cells[name].unique()) > 1]
    rows = []
    for row in row_dicts(found):
        gains, certain, known = row["value"] > 1, row["low"] > 1, np.isfinite(row["beyond_mb"])
        rows.append(
            [
                *(GridEntry(str(row[name])) for name in levels),
                GridEntry(task_name(row["task"])),
                GridEntry(
                    _name(row) if gains else "none",
                    "" if certain else "gain not certain" if gains else "",
                    bold=certain and not is_disturbed(row),
                ),
                GridEntry(str(row["k"]) if gains else "–"),
                GridEntry(
                    f"{grid.number(row['value'])}×", grid.interval(row["low"], row["high"], units=grid.units_of(row))
                ),
                GridEntry(_megabytes(row["beyond_mb"]), f"of {grid.number(row['peak_memory_mb'], 0)}")
                if known
                else GridEntry("–"),
                GridEntry(_first(row["rivals"], SHOWN) or "–"),
                *links(row),
            ]
        )
    titles = [entry.text for entry in rows[0][len(levels) + 6 :]] if rows else []
    return Grid(
        header=[*levels, "task", "method", "k", "speedup", "more memory", "intervals overlap", *titles],
        rows=rows,
        labels=len(levels) + 3,
        trailing=1 + len(titles),
        caption=(
            "The fastest lossless method, with the 95 % interval of its speedup over plain decoding. A method with "
            "several k is judged at the k that other prompts chose. The best of several methods still looks slightly "
            "too good. Intervals overlap: methods whose interval reaches into that of the best. None: no "
            "method was faster than plain decoding; the speedup is that of the fastest. More memory: peak memory minus "
            "that of plain decoding in the same cell, and the peak itself."
        ),
        notes=[DISTURBED_NOTE] if disturbed(found).any() else [],
    )


def _first(names: list[str], most: int) -> str:
    """The first `most` names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _megabytes(size: float) -> str:
    """A difference of two peaks: what falls below their resolution, with either sign, is no saving."""
    return f"{round(size):,} MB" if size >= 1 else "< 1 MB"


def _name(row: dict[str, Any]) -> str:
    return method_name(row["method"], variant=row["variant"], disturbed=is_disturbed(row))


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in IDENTITY if name != "k")
