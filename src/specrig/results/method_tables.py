"""Tables of methods: what they are, what they gain over all tasks, and all that was measured of them on one task."""

from __future__ import annotations

import pandas as pd

from specrig.analysis.cells import row_dicts
from specrig.analysis.disturbance import disturbed
from specrig.decoding.drafters import registry
from specrig.results import grid
from specrig.results.citations import further
from specrig.results.grid import Grid, GridEntry
from specrig.results.labels import BOLD_NOTE, DISTURBED_NOTE, method_order, task_name
from specrig.results.speed_tables import best, mean_units, row_labels, setting, table_notes, varying_levels
from specrig.results.study_data import StudyData
from specrig.results.summary import CROSS_FITTED, disturbed_in


def methods_grid(study: StudyData) -> Grid:
    """One row per method of the study. The papers stand by their arXiv numbers, which print turns into citations."""
    ran: dict[str, list[tuple[int, bool]]] = {}
    for records in study.every.values():
        ran.setdefault(records[0].cell.method, []).append((records[0].cell.k, records[0].lossless))
    rows = []
    for name in method_order(ran):
        known = registry().get(name)
        more = ", ".join(further(name))
        ks = sorted({k for k, _ in ran[name] if k})
        kept = {lossless for _, lossless in ran[name]}
        rows.append(
            [
                GridEntry(name),
                GridEntry(
                    (known.summary if known else "not registered in this version") + (f" ({more})" if more else "")
                ),
                GridEntry("yes" if kept == {True} else "no" if kept == {False} else "not with every option"),
                GridEntry(", ".join(map(str, ks)) or "–"),
            ]
        )
    caption = (
        "The methods of the study. Lossless: the output keeps the target's distribution, and at temperature 0 its "
        "tokens."
    )
    return Grid(
        ["method", "what it is", "lossless", "k"], rows, labels=4, caption=caption, label=f"tab:{study.name}-methods"
    )


def headline_grid(speedups: pd.DataFrame, acceptance: pd.DataFrame, study: str) -> Grid:
    """Each method's mean speedup over tasks with its acceptance, in a column's width."""
    levels = varying_levels(speedups)
    groups = [level for level in levels if level != "method"]
    marked = disturbed_in(speedups, CROSS_FITTED)
    bolds = best(speedups, CROSS_FITTED, groups, marked)
    rows = []
    for row, other, bold, sign in zip(row_dicts(speedups), row_dicts(acceptance), bolds, marked, strict=True):
        rows.append(
            [
                *row_labels(row, levels),
                grid.measured(
                    row, CROSS_FITTED, disturbed=sign, bold=bold, struck=row["failed"], units=mean_units(row)
                ),
                GridEntry(grid.number(other["mean_acceptance_length"])),
                GridEntry(grid.percent(other["mean_acceptance_rate"])),
            ]
        )
    return Grid(
        header=[*(level.replace("_", " ") for level in levels), "k", "speedup", "τ", "acceptance rate"],
        rows=rows,
        labels=len(levels) + 1,
        groups=levels.index("method"),
        caption=(
            "Speedup over autoregressive decoding, geometric mean over tasks with its 95 % interval, each half of the "
            "prompts at the k that the other half chose; acceptance length τ and acceptance rate at the best k, means "
            f"over tasks{setting(speedups)}."
        ),
        label=f"tab:{study}-headline",
        notes=[BOLD_NOTE, *table_notes(speedups)] + ([DISTURBED_NOTE] if marked.any() else []),
    )


def task_grid(cells: pd.DataFrame, task: str, study: StudyData) -> Grid:
    """All methods on one task. cells: those of the task, each method at its best k."""
    levels = [level for level in varying_levels(study.table) if level in cells]
    order = {name: rank for rank, name in enumerate(method_order(cells["method"]))}
    shared = [level for level in levels if level != "method"]
    frame = cells.assign(rank=cells["method"].map(order)).sort_values([*shared, "rank", "variant"], kind="stable")
    marked = disturbed(frame)
    rows = []
    for row, sign, bold in zip(row_dicts(frame), marked, best(frame, "speedup", shared, marked), strict=True):
        rows.append(
            [
                *row_labels(row, levels, disturbed=sign),
                grid.measured(row, "speedup", bold=bold, struck=row["failed"]),
                GridEntry(grid.number(row["tokens_per_s"], 1)),
                GridEntry(grid.number(row["baseline_tokens_per_s"], 1)),
                GridEntry(grid.number(row["acceptance_length"])),
                GridEntry(grid.percent(row["acceptance_rate"])),
                GridEntry(grid.number(row["predicted_speedup"])),
                GridEntry(grid.number(row["efficiency"])),
            ]
        )
    return Grid(
        header=[
            *(level.replace("_", " ") for level in levels),
            *["k", "speedup", "tokens/s", "baseline tokens/s", "τ", "acceptance rate", "predicted", "efficiency"],
        ],
        rows=rows,
        labels=len(levels) + 1,
        groups=levels.index("method"),
        caption=f"{task_name(task).capitalize()}: each method at its best k{setting(cells) if len(cells) else ''}.",
        label=f"tab:{study.name}-{task.replace('_', '-')}",
        notes=[BOLD_NOTE, *table_notes(frame)] + ([DISTURBED_NOTE] if marked.any() else []),
    )
