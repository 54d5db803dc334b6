"""How speed and acceptance change from turn to turn, or with the context: the table, and the sentences that say why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np
import pandas as pd

from specrig.analysis.cells import IDENTITY, identity, row_dicts, row_identity
from specrig.analysis.cost_model import FACTORS, log_factors
from specrig.analysis.speedup import group_times, log_speedups
from specrig.analysis.statistics import Interval, average, interval, mean
from specrig.measurement.records import Record
from specrig.report import grid
from specrig.report.grid import Grid, GridEntry
from specrig.report.labels import method_order, named
from specrig.report.speed_tables import row_labels, setting, table_notes, varying_levels
from specrig.report.summary import base_setting, comparable
from specrig.tasks.variants import variant_of

Axis = Literal["turn", "context"]
"""What tells the variants of a task apart; the name of a column of `along`, and a word of the sentences."""


def along(best: pd.DataFrame, cells: Mapping[str, list[Record]], axis: Axis) -> pd.DataFrame:
    """The rows of `best` whose task is a variant by `axis`, by method, options and task, in the order of the axis.

    best: each method at one k (`summary.best_rows`). cells: the records of each cell. Added columns: `row`, the task
    without its variant; the axis; `prompt_tokens`, mean; `draft_cost_round`, the draft's cost in a round, in plain
    passes.
    """
    tokens = {identity(own[0].cell): float(np.mean([record.prompt_tokens for record in own])) for own in cells.values()}
    found = [variant_of(task) for task in best["task"]]
    frame = best.assign(
        **{axis: [getattr(each, axis) for each in found]},
        row=[each.task for each in found],
        prompt_tokens=[tokens[key] for key in best[IDENTITY].itertuples(index=False, name=None)],
        draft_cost_round=best["acceptance_length"] / best["predicted_speedup"] - best["verify_cost"],
        rank=best["method"].map({name: rank for rank, name in enumerate(method_order(best["method"]))}),
    )
    order = ["engine", "pair", "temperature", "batch_size", "row", "rank", "variant", axis]
    return frame[frame[axis] > 0].sort_values(order, kind="stable").drop(columns="rank").reset_index(drop=True)


def along_grid(frame: pd.DataFrame, axis: Axis, study: str) -> Grid:
    """The result of `along` as a table for readers."""
    tasks = ["row"] if len(set(frame["row"])) > 1 else []
    levels = [*varying_levels(frame)[:-1], *tasks, "method"]
    rows = []
    for row in row_dicts(frame):
        rows.append(
            [
                *row_labels(row, levels),
                GridEntry(str(row[axis])),
                GridEntry(grid.number(row["prompt_tokens"], 0)),
                grid.measured(row, "acceptance_length"),
                GridEntry(grid.number(row["draft_cost_round"])),
                GridEntry(grid.number(row["verify_cost"])),
                GridEntry(grid.number(row["baseline_ms_per_token"], 1)),
                grid.measured(row, "speedup", struck=row["failed"]),
            ]
        )
    header = [*("task" if level == "row" else level.replace("_", " ") for level in levels), "k", axis]
    return Grid(
        header=[*header, "prompt tokens", "τ", "draft a round", "verification v", "plain ms a token", "speedup"],
        rows=rows,
        labels=len(levels) + 1,
        groups=levels.index("method"),
        caption=(
            f"Acceptance length τ, the cost of a round's draft and of its verification (in one-token passes of the baseline "
            f"at the same {axis}), and speedup, by method and {axis}, each method at its best k{setting(frame)}."
        ),
        label=f"tab:{study}-{axis}s",
        notes=table_notes(frame),
    )


def sentences(frame: pd.DataFrame, axis: Axis, cells: Mapping[str, list[Record]]) -> list[str]:
    """For each engine and pair: which method falls below plain decoding first, or loses most, and by which part.

    The speedups are geometric means over tasks with 95 % intervals over prompts; the parts are those of `cost_model.log_factors`.
    """
    records = {identity(own[0].cell): own for own in cells.values()}
    found = []
    for (engine, pair), own in frame.groupby(["engine", "pair"], sort=False):
        lines = _lines(base_setting(own), axis)
        if lines:
            where = f"{engine}, {pair}: " if frame.groupby(["engine", "pair"]).ngroups > 1 else ""
            found.append(where + _sentence(lines, axis, records))
    return found


Line = dict[int, list[dict[str, Any]]]
"""Turn or context -> a method's rows, one a task."""


def _lines(frame: pd.DataFrame, axis: Axis) -> dict[str, Line]:
    """A lossless method's name -> its line, with the same tasks at every value of the axis."""
    every = set(frame[axis])
    if len(every) < 2:
        return {}
    fair = frame[comparable(frame)]
    found: dict[str, Line] = {}
    for _, own in fair.groupby(["method", "variant"], sort=False):
        line = {int(cast("int", at)): row_dicts(rows) for at, rows in own.groupby(axis)}
        if line.keys() == every and len({tuple(row["row"] for row in rows) for rows in line.values()}) == 1:
            found[named(row_dicts(own)[0])] = line
    return found


def _sentence(lines: dict[str, Line], axis: Axis, records: Mapping[tuple[Any, ...], list[Record]]) -> str:
    speeds = {name: {at: _speed(rows, records) for at, rows in line.items()} for name, line in lines.items()}
    crossed = {
        name: min(below)
        for name, line in speeds.items()
        if line[min(line)][0] >= 1 and (below := [at for at, (value, _) in line.items() if value < 1])
    }
    slow = [name for name, line in speeds.items() if all(value < 1 for value, _ in line.values())]
    rest = f" Below plain decoding at every {axis}: {', '.join(slow)}." if slow else ""
    if crossed:
        first = min(crossed, key=lambda name: (crossed[name], speeds[name][crossed[name]][0]))
        return f"{first} is the first to fall below plain decoding: {_fall(first, crossed[first], lines, speeds, axis)}{rest}"
    lost = {name: np.log(line[max(line)][0] / line[min(line)][0]) for name, line in speeds.items()}
    worst = min(lost, key=lambda name: lost[name])
    last = max(lines[worst])
    if lost[worst] >= 0:
        return f"No method is slower at {axis} {last} than at {axis} {min(lines[worst])}.{rest}"
    above = all(value >= 1 for line in speeds.values() for value, _ in line.values())
    none = f"No method is below plain decoding up to {axis} {last}. " if above else ""
    return f"{none}{worst} loses most: {_fall(worst, last, lines, speeds, axis)}{rest}"


def _fall(
    name: str,
    at: int,
    lines: Mapping[str, Line],
    speeds: Mapping[str, Mapping[int, tuple[float, Interval]]],
    axis: Axis,
) -> str:
    """From which speedup to which a method falls at `at`, and what each part contributes."""
    start = min(lines[name])
    texts = []
    for each in (start, at):
        value, (low, high) = speeds[name][each]
        texts.append(" ".join(filter(None, (f"{grid.number(value)} at {axis} {each}", grid.interval(low, high)))))
    logs = np.mean([log_factors(*rows) for rows in zip(lines[name][start], lines[name][at], strict=True)], axis=0)
    if not np.isfinite(logs).all():
        return f"{' to '.join(texts)}. Its passes were not timed, so the cause is not known."
    parts = dict(zip(FACTORS, np.exp(logs), strict=True))
    main = min(parts, key=lambda part: parts[part])
    listed = ", ".join(f"{part} × {grid.number(value)}" for part, value in parts.items())
    return f"{' to '.join(texts)}. Most of the loss is due to {main}. The factors of the speedup are {listed}."


def _speed(rows: Sequence[dict[str, Any]], records: Mapping[tuple[Any, ...], list[Record]]) -> tuple[float, Interval]:
    """The geometric mean of some cells' speedups with its interval over prompts."""
    found = average([mean(log_speedups(group_times(records[row_identity(row)])).to_numpy(dtype=float)) for row in rows])
    return float(np.exp(found.value)), interval(found, scale=np.exp)
