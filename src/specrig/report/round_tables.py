"""Tables of what happens inside a generation: acceptance by position, where the time goes, repetition."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pandas as pd

from specrig.analysis.acceptance import positions
from specrig.analysis.cells import IDENTITY, identity, row_dicts
from specrig.report import grid
from specrig.report.grid import Grid, GridEntry
from specrig.report.labels import method_name, method_order, named, task_name
from specrig.report.study_data import StudyData
from specrig.report.summary import base_setting

EFFICIENT = 0.85
"""Below this median efficiency the report warns: the harness itself loses much of the possible speed."""


def positions_grid(study: StudyData, best: pd.DataFrame) -> Grid:
    """Acceptance by draft position at each method's best k, tasks pooled, in the base setting."""
    best = base_setting(best) if not best.empty else best
    fastest = set(best[IDENTITY].itertuples(index=False, name=None))
    pooled: dict[tuple[str, ...], list[Any]] = {}
    for members in study.cells.values():
        cell = members[0].cell
        if identity(cell) in fastest and cell.k:
            name = {
                "method": cell.method,
                "variant": cell.variant,
                "label": study.labels.get((cell.method, cell.variant)),
            }
            label = named(name, lossless=members[0].lossless)
            pooled.setdefault((cell.engine, cell.pair, cell.method, label, str(cell.k)), []).extend(members)
    frames = {key: positions(records) for key, records in pooled.items()}
    deepest = max((len(frame) for frame in frames.values()), default=0)
    order = method_order(key[2] for key in frames)
    several = {index: len({key[index] for key in frames}) > 1 for index in (0, 1)}
    rows = []
    for key in sorted(frames, key=lambda key: (key[0], key[1], order.index(key[2]))):
        labels = [GridEntry(key[index]) for index in (0, 1) if several[index]] + [GridEntry(key[3]), GridEntry(key[4])]
        shares = row_dicts(frames[key])
        values = [
            GridEntry(grid.percent(row["conditional"]), f"({grid.percent(row['unconditional'])})") for row in shares
        ]
        rows.append([*labels, *values, *[GridEntry("")] * (deepest - len(values))])
    head = [name for index, name in enumerate(("engine", "pair")) if several[index]] + ["method", "k"]
    return Grid(
        header=[*head, *(f"position {number}" for number in range(1, deepest + 1))],
        rows=rows,
        labels=len(head),
        groups=len(head) - 2,
        caption=(
            "Acceptance by draft position, tasks pooled: as a share of the rounds that accepted all positions before and, "
            "in brackets, as a share of all rounds."
        ),
        label=f"tab:{study.name}-positions",
    )


def efficiency_grid(cells: pd.DataFrame, study: str) -> Grid:
    """One row per engine, pair and method: the efficiency over its cells, and where its decode time went."""
    frame = cells.dropna(subset=["efficiency"])
    keys = [key for key in ("engine", "pair") if len(frame[key].unique()) > 1] + ["method"]
    order = method_order(frame["method"])
    rows = []
    groups = cast("list[tuple[tuple[str, ...], pd.DataFrame]]", list(frame.groupby(keys, sort=False)))
    for labels, members in sorted(groups, key=lambda item: (*item[0][:-1], order.index(item[0][-1]))):
        low, middle, high = members["efficiency"].quantile([0, 0.5, 1])
        method = method_name(labels[-1], lossless=bool(members["lossless"].all()))
        rows.append(
            [
                *(GridEntry(str(label)) for label in (*labels[:-1], method)),
                GridEntry(str(len(members))),
                GridEntry(grid.number(middle), grid.interval(low, high)),
                GridEntry(grid.number(members["draft_cost"].median(), 3)),
                GridEntry(grid.number(members["verify_cost"].median())),
                *(
                    GridEntry(grid.percent(members[share].median()))
                    for share in ("target_share", "draft_share", "loop_share")
                ),
            ]
        )
    header = [*keys, "cells", "efficiency", "draft cost c", "verification cost v"]
    return Grid(
        header=[*header, "in target passes", "in draft passes", "elsewhere"],
        rows=rows,
        labels=len(keys),
        groups=len(keys) - 1,
        caption="Efficiency (median and range over cells), median costs in units of a one-token target pass, and where "
        "decode time goes.",
        label=f"tab:{study}-efficiency",
    )


def repetition_grid(cells: pd.DataFrame, tasks: list[str], study: str) -> Grid:
    """The share of repeated 4-grams in plain outputs by pair and task. A lossless method at temperature 0 has the same."""
    rows = []
    for (pair, temperature), members in cells.groupby(["pair", "temperature"], sort=False):
        shares = members.groupby("task")["baseline_repeated_4grams"].mean()
        rows.append(
            [
                GridEntry(str(pair)),
                GridEntry(f"{temperature:g}"),
                *(GridEntry(grid.percent(shares.get(task, np.nan))) for task in tasks),
            ]
        )
    return Grid(
        header=["pair", "temperature", *map(task_name, tasks)],
        rows=rows,
        labels=2,
        caption="Share of 4-grams that occurred before in the same output, autoregressive decoding.",
        label=f"tab:{study}-repetition",
    )
