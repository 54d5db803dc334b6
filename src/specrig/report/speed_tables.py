"""The tables of speeds and acceptance as readers see them: method × task, and every cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from specrig.analysis.cells import row_dicts
from specrig.report import grid, metrics
from specrig.report.grid import Column, Grid, GridEntry
from specrig.report.labels import (
    BATCHED_NOTE,
    BOLD_NOTE,
    FAILED_NOTE,
    LOSSY_NOTE,
    named,
    task_name,
)
from specrig.report.study_data import StudyData
from specrig.report.summary import LEVELS, MEAN, comparable, over_most_tasks


def chose_k(summary: pd.DataFrame) -> bool:
    """Whether any method of a `speedup_summary` ran with several k, of which the best was chosen."""
    return bool(summary["several_k"].any())


def speedup_grid(summary: pd.DataFrame, tasks: list[str], study: str) -> Grid:
    """`summary.speedup_summary` as a table for readers. The best lossless value of each column and setting is bold.

    study: the study's name.
    """
    titles = {**{task: task_name(task) for task in tasks}, MEAN: "geometric mean"}
    return method_grid(
        with_bold(summary, list(titles)),
        varying_levels(summary),
        {title: speedup_column(column) for column, title in titles.items()},
        caption=f"Speedup over autoregressive decoding with its 95 % interval{setting(summary)}.",
        label=f"tab:{study}-speedup",
        notes=[BOLD_NOTE, *table_notes(summary)],
    )


def acceptance_grid(summary: pd.DataFrame, tasks: list[str], study: str) -> Grid:
    """`summary.acceptance_summary` for readers: acceptance lengths, with acceptance rates in brackets."""

    def acceptance(name: str) -> Column:
        def entry(row: dict[str, Any]) -> GridEntry:
            rate = grid.percent(row[f"{name}_acceptance_rate"])
            return GridEntry(grid.number(row[f"{name}_acceptance_length"]), f"({rate})" if rate != "–" else "")

        return entry

    return method_grid(
        summary,
        varying_levels(summary),
        {task_name(name): acceptance(name) for name in (*tasks, "mean")},
        caption=f"Acceptance length τ and, in brackets, acceptance rate{setting(summary)}; unweighted mean over tasks.",
        label=f"tab:{study}-acceptance",
        notes=table_notes(summary, speeds=False),
    )


def cells_grid(cells: pd.DataFrame, study: StudyData) -> Grid:
    """The table of all cells for readers, with the most important columns."""
    cells, noted = lettered(cells)
    return method_grid(
        cells,
        [*varying_levels(cells), "task"],
        {"prompts": grid.text("prompts"), **RATES, "speedup": speedup, **ACCEPTANCE, **device_columns(cells)},
        caption=f"Every measured cell of the study {study.name}{setting(cells)}.",
        label=f"tab:{study.name}-cells",
        notes=[*table_notes(cells), *noted],
    )


def method_grid(frame: pd.DataFrame, levels: list[str], columns: Mapping[str, Column], **about: Any) -> Grid:
    """One row for each row of `frame`: the columns `levels` and k, then `columns`. about: see `Grid.of`."""
    every = {**level_columns(levels), **columns}
    return Grid.of(row_dicts(frame), every, labels=len(levels) + 1, groups=levels.index("method"), **about)


def speedup(row: dict[str, Any]) -> GridEntry:
    """A cell's speedup; `bold`: whether it is the best of its group; `letter`: the mark of its note."""
    entry = grid.measured(row, "speedup", bold=row.get("bold", False), struck=row["failed"])
    return replace(entry, note=" ".join(filter(None, [entry.note, row.get("letter", "")])))


def lettered(cells: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """(the cells with `letter`, empty where a cell has no notes; the notes behind their letters)."""
    letters = {note: grid.letter(number) for number, note in enumerate(cells["notes"][cells["notes"] != ""].unique())}
    noted = [f"{letter}: {note}." for note, letter in letters.items()]
    return cells.assign(letter=cells["notes"].map(lambda note: letters.get(note, ""))), noted


RATES = metrics.columns("speed")
ACCEPTANCE = metrics.columns("acceptance")
"""What tables of cells show beside the speedup."""


def device_columns(table: pd.DataFrame) -> dict[str, Column]:
    """The metrics of the device's counters and bandwidth that a table has."""
    known = [metric for metric in metrics.METRICS.values() if metric.shown == "device" and metric.name in table]
    return {metric.title: metric.column for metric in known}


def with_bold(summary: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """`speedup_summary` with `<column>_bold` (see `best`)."""
    groups = [level for level in varying_levels(summary) if level != "method"]
    most = summary.index.isin(over_most_tasks(summary[comparable(summary)], groups).index)
    return summary.assign(
        **{
            f"{column}_bold": best(summary, column, groups, None if column != MEAN else pd.Series(~most, summary.index))
            for column in columns
        }
    )


def speedup_column(name: str) -> Column:
    """A column of `with_bold`."""

    def entry(row: dict[str, Any]) -> GridEntry:
        units = mean_units(row) if name == MEAN else None
        return grid.measured(row, name, bold=bool(row[f"{name}_bold"]), struck=row["failed"], units=units)

    return entry


def mean_units(row: dict[str, Any]) -> int | None:
    """How many units the means over tasks of a row of `speedup_summary` rest on."""
    units = grid.units_of(row)
    return None if units is None else units * row["tasks"]


def varying_levels(frame: pd.DataFrame) -> list[str]:
    """The columns of `LEVELS` that a table must show: method always, the others where they have more than one value.

    The variant is never among them: it stands behind the method's name.
    """
    levels = [level for level in LEVELS if level == "method" or len(frame[level].unique()) > 1]
    return [level for level in levels if level != "variant"]  # the variant stands behind the method's name


def level_columns(levels: list[str]) -> dict[str, Column]:
    """The columns `levels` and k."""
    found: dict[str, Column] = {level.replace("_", " "): partial(_level, level=level) for level in levels}
    return {**found, "k": lambda row: str(row["k"]) if row["k"] else "–"}


def _level(row: dict[str, Any], level: str) -> str:
    value = row[level]
    if level == "method":
        return named(row, lossless=row["lossless"])
    return f"{value:g}" if level == "temperature" else task_name(value) if level == "task" else str(value)


def row_labels(row: dict[str, Any], levels: list[str]) -> list[GridEntry]:
    """The entries of a row for `level_columns`."""
    return [GridEntry(str(column(row))) for column in level_columns(levels).values()]


def best(frame: pd.DataFrame, column: str, groups: list[str], left_out: pd.Series | None = None) -> pd.Series:
    """Which rows are bold: the largest speedup in `column` of each group that the columns `groups` make, if above 1.

    left_out: rows that never win, nor do those that are not `comparable` (a batch without drafts is held against single
    prompts).
    """
    fair = frame[column].where(comparable(frame) if left_out is None else comparable(frame) & ~left_out)
    top = fair.groupby([frame[level] for level in groups]).transform("max") if groups else fair.max()
    return (fair == top) & (fair > 1)


def setting(frame: pd.DataFrame) -> str:
    """The part of a caption that states what all rows share."""
    fixed = []
    for level in ("engine", "pair", "temperature", "batch_size"):
        if len(frame[level].unique()) == 1:
            value = frame[level].iloc[0]
            printed = f"{value:g}" if level == "temperature" else value
            fixed.append(f"{level.replace('_', ' ')} {printed}")
    return f"; {', '.join(fixed)}" if fixed else ""


def table_notes(frame: pd.DataFrame, *, speeds: bool = True) -> list[str]:
    """The notes that explain a table's signs. speeds: whether it shows speeds."""
    notes = [] if frame["lossless"].astype(bool).all() else [LOSSY_NOTE]
    notes += [BATCHED_NOTE] if speeds and (frame["method"] == "naive_batching").any() else []
    notes += [FAILED_NOTE] if speeds and frame["failed"].astype(bool).any() else []
    return notes
