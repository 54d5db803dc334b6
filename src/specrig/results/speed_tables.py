"""The tables of speeds and acceptance as readers see them: method × task, and every cell."""

from __future__ import annotations

from typing import Any

import pandas as pd

from specrig.analysis.cells import row_dicts
from specrig.analysis.disturbance import disturbed
from specrig.results import grid
from specrig.results.floors import device_entries, device_titles
from specrig.results.grid import Grid, GridEntry
from specrig.results.labels import (
    BASELINES,
    BATCHED_NOTE,
    BOLD_NOTE,
    DISTURBED_NOTE,
    FAILED_NOTE,
    LOSSY_NOTE,
    method_name,
    task_name,
)
from specrig.results.study_data import StudyData
from specrig.results.summary import CROSS_FITTED, LEVELS, MEAN, disturbed_in

BEST_K = (
    "k is the one with the largest geometric mean speedup. It was chosen on the same prompts, so the numbers of a "
    "method with several k are slightly too good."
)
CROSS_FITTED_NOTE = (
    "The last column has no such error: each half of the prompts is judged at the k that the other half chose."
)
MEAN_NOTE = (
    "The geometric mean's interval can be far narrower than its tasks' own: the errors of the tasks partly cancel, and "
    "the prompts of all tasks together show the spread better."
)
ONE_RUN = "Intervals are over the prompts of one run. Differences between runs are not known."
RUNS = "Intervals are over prompts and over {} runs of each job."


def runs_note(replicates: int) -> str:
    """The sentence that says what the intervals of speeds cover, given the number of replicates."""
    return ONE_RUN if replicates < 2 else RUNS.format(replicates)


def speedup_grid(summary: pd.DataFrame, tasks: list[str], study: str, replicates: int = 1) -> Grid:
    """`summary.speedup_summary` as a table for readers. The best lossless, undisturbed value of each column and setting
    is bold.

    study: the study's name. replicates: how many times the study's jobs were run.
    """
    levels = varying_levels(summary)
    settings = [level for level in levels if level not in ("method", "variant")]
    cross_fitted = bool((summary[f"{CROSS_FITTED}_ks"] != "").any())
    columns = [*tasks, MEAN, *([CROSS_FITTED] if cross_fitted else [])]
    marked = {column: disturbed_in(summary, column) for column in columns}
    bolds = {column: best(summary, column, settings, marked[column]) for column in columns}
    mean_note = f" {MEAN_NOTE}" if len(tasks) > 1 else ""
    rows = []
    for index, row in enumerate(row_dicts(summary)):
        entries = row_labels(row, levels)
        for column in columns:
            bold, sign = bool(bolds[column].iloc[index]), bool(marked[column].iloc[index])
            units = mean_units(row) if column in (MEAN, CROSS_FITTED) else None
            entries.append(grid.measured(row, column, disturbed=sign, bold=bold, struck=row["failed"], units=units))
        rows.append(entries)
    header = [*(level.replace("_", " ") for level in levels), "k", *map(task_name, tasks), "geometric mean"]
    header += ["the same, k chosen on other prompts"] if cross_fitted else []
    return Grid(
        header=header,
        rows=rows,
        labels=len(levels) + 1,
        groups=levels.index("method"),
        caption=(
            "Speedup over autoregressive decoding (decode time per token, paired by prompt; geometric mean over "
            f"prompts, 95 % interval){setting(summary)}. {runs_note(replicates)}{mean_note} "
            f"{BEST_K}{f' {CROSS_FITTED_NOTE}' if cross_fitted else ''}"
        ),
        label=f"tab:{study}-speedup",
        notes=[BOLD_NOTE, *table_notes(summary)]
        + ([DISTURBED_NOTE] if any(sign.any() for sign in marked.values()) else []),
    )


def acceptance_grid(summary: pd.DataFrame, tasks: list[str], study: str) -> Grid:
    """`summary.acceptance_summary` for readers: acceptance lengths, with acceptance rates in brackets."""
    levels = varying_levels(summary)
    rows = []
    for row in row_dicts(summary):
        entries = row_labels(row, levels)
        for name in (*tasks, "mean"):
            rate = grid.percent(row[f"{name}_acceptance_rate"])
            length = grid.number(row[f"{name}_acceptance_length"])
            entries.append(GridEntry(length, f"({rate})" if rate != "–" else ""))
        rows.append(entries)
    header = [*(level.replace("_", " ") for level in levels), "k", *map(task_name, tasks), "mean"]
    return Grid(
        header=header,
        rows=rows,
        labels=len(levels) + 1,
        groups=levels.index("method"),
        caption=(
            "Acceptance length τ (tokens per target pass, the target's own token included) and, in brackets, "
            f"acceptance rate (accepted / drafted tokens){setting(summary)}. Unweighted mean over tasks. "
            f"{BEST_K}"
        ),
        label=f"tab:{study}-acceptance",
        notes=table_notes(summary, speeds=False),
    )


def cells_grid(cells: pd.DataFrame, study: StudyData) -> Grid:
    """The table of all cells for readers, with the most important columns."""
    levels = [*varying_levels(cells), "task"]
    replicated = study.replicates > 1
    header = [
        "k",
        "prompts",
        *(["runs", "last / first run"] if replicated else []),
        "tokens/s",
        "baseline tokens/s",
        "speedup",
        "τ",
        "acceptance rate",
        "predicted",
        "efficiency",
    ]
    rows = []
    marked = disturbed(cells)
    for row, sign in zip(row_dicts(cells), marked, strict=True):
        rows.append(
            [
                *row_labels(row, levels, disturbed=sign),
                GridEntry(str(row["prompts"])),
                *(_drift(row) if replicated else []),
                GridEntry(grid.number(row["tokens_per_s"], 1)),
                GridEntry(grid.number(row["baseline_tokens_per_s"], 1)),
                grid.measured(row, "speedup", struck=row["failed"]),
                GridEntry(grid.number(row["acceptance_length"])),
                GridEntry(grid.percent(row["acceptance_rate"])),
                GridEntry(grid.number(row["predicted_speedup"])),
                GridEntry(grid.number(row["efficiency"])),
                *device_entries(row),
            ]
        )
    return Grid(
        header=[*(level.replace("_", " ") for level in levels), *header, *device_titles(cells)],
        rows=rows,
        labels=len(levels) + 1,
        groups=levels.index("method"),
        caption=f"Every measured cell of the study {study.name}{setting(cells)}. {runs_note(study.replicates)}",
        label=f"tab:{study.name}-cells",
        notes=table_notes(cells) + ([DISTURBED_NOTE] if marked.any() else []),
    )


def mean_units(row: dict[str, Any]) -> int | None:
    """How many units the means over tasks of a row of `speedup_summary` rest on."""
    units = grid.units_of(row)
    return None if units is None else units * row["tasks"]


def _drift(row: dict[str, Any]) -> list[GridEntry]:
    return [
        GridEntry(str(row["replicates"])),
        grid.measured(row, "drift"),
    ]


def varying_levels(frame: pd.DataFrame) -> list[str]:
    """The columns of `LEVELS` that a table must show: method always, the others where they have more than one value.

    The variant is never among them: it stands behind the method's name.
    """
    levels = [level for level in LEVELS if level == "method" or len(frame[level].unique()) > 1]
    return [level for level in levels if level != "variant"]  # the variant stands behind the method's name


def row_labels(row: dict[str, Any], levels: list[str], *, disturbed: bool = False) -> list[GridEntry]:
    """The entries of a row for the columns `levels` and k."""
    labels = []
    for level in levels:
        value = row[level]
        if level == "method":
            variant = row["variant"] if isinstance(row["variant"], str) else ""
            value = method_name(row["method"], variant=variant, lossless=row["lossless"], disturbed=disturbed)
        elif level == "temperature":
            value = f"{value:g}"
        elif level == "task":
            value = task_name(value)
        labels.append(GridEntry(str(value)))
    return [*labels, GridEntry(str(row["k"]) if row["k"] else "–")]


def best(frame: pd.DataFrame, column: str, groups: list[str], marked: pd.Series) -> pd.Series:
    """Which rows are bold: the largest speedup in `column` of each group that the columns `groups` make, if above 1.

    marked: the disturbed rows. They, the lossy, those that the audit failed and the baselines (a batch without drafts
    is held against single prompts) never win: their speeds do not compare.
    """
    baseline = frame["method"].isin(list(BASELINES))
    fair = frame[column].where(frame["lossless"].astype(bool) & ~frame["failed"].astype(bool) & ~marked & ~baseline)
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
    return [*notes, FAILED_NOTE] if speeds and frame["failed"].astype(bool).any() else notes
