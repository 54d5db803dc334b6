"""Tables of methods: what they are, what they gain over all tasks, and all that was measured of them on one task."""

from __future__ import annotations

import pandas as pd

from specrig.decoding.drafters import registry
from specrig.report import grid
from specrig.report.citations import further
from specrig.report.grid import Grid, GridEntry
from specrig.report.labels import BOLD_NOTE, method_order, task_name
from specrig.report.speed_tables import (
    ACCEPTANCE,
    RATES,
    best,
    chose_k,
    lettered,
    method_grid,
    setting,
    speedup,
    speedup_column,
    table_notes,
    varying_levels,
    with_bold,
)
from specrig.report.study_data import StudyData
from specrig.report.summary import MEAN


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
    at_k = " at the best k, chosen on the same prompts" if chose_k(speedups) else ""
    frame = with_bold(speedups, [MEAN])
    for name in ("mean_acceptance_length", "mean_acceptance_rate"):
        frame[name] = acceptance[name].to_numpy()
    return method_grid(
        frame,
        varying_levels(speedups),
        {
            "speedup": speedup_column(MEAN),
            "τ": grid.figure("mean_acceptance_length"),
            "acceptance rate": grid.share("mean_acceptance_rate"),
        },
        caption=(
            f"Speedup over autoregressive decoding, geometric mean over tasks with its 95 % interval{at_k}; acceptance "
            f"length τ and acceptance rate, means over tasks{setting(speedups)}."
        ),
        label=f"tab:{study}-headline",
        notes=[BOLD_NOTE, *table_notes(speedups)],
    )


def task_grid(cells: pd.DataFrame, task: str, study: StudyData) -> Grid:
    """All methods on one task. cells: those of the task, each method at its best k."""
    levels = [level for level in varying_levels(study.table) if level in cells]
    order = {name: rank for rank, name in enumerate(method_order(cells["method"]))}
    shared = [level for level in levels if level != "method"]
    frame = cells.assign(rank=cells["method"].map(order)).sort_values([*shared, "rank", "variant"], kind="stable")
    frame, noted = lettered(frame)
    return method_grid(
        frame.assign(bold=best(frame, "speedup", shared)),
        levels,
        {"speedup": speedup, **RATES, **ACCEPTANCE},
        caption=f"{task_name(task).capitalize()}: each method at its best k{setting(cells) if len(cells) else ''}.",
        label=f"tab:{study.name}-{task.replace('_', '-')}",
        notes=[BOLD_NOTE, *table_notes(frame), *noted],
    )
