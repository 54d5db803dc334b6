"""Some claims state a mean over a benchmark's tasks. This module computes the same mean from measured cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from specrig.analysis.statistics import Estimate, student, weighted
from specrig.analysis.task_names import preferred
from specrig.study.claims import TIMED, Claim

SETTING = ("engine", "pair", "method", "k", "variant", "temperature", "batch_size")
"""The columns of cells that are the same in all cells of a mean over tasks."""


def parts(claim: Claim, claims: Sequence[Claim]) -> list[str]:
    """The tasks over which a claim's mean is taken; empty where they are not known.

    These are the tasks for which the same source states this metric, or a speed, for the same method and target. A task
    for which it states only an acceptance does not count towards a mean speedup: SPEED-Bench's table has more
    categories than were collected here.
    """
    same = [row for row in claims if (row.source, row.target, row.method) == (claim.source, claim.target, claim.method)]
    return list(
        dict.fromkeys(
            row.task for row in same if row.task and not row.aggregate and row.metric in (*TIMED, claim.metric)
        )
    )


def means(claim: Claim, tasks: Sequence[str], rows: Sequence[dict[str, Any]], column: str) -> list[dict[str, Any]]:
    """One row per setting (`SETTING`) that measured any of the tasks, with `column` and the speedup averaged over them.

    claim: states a mean. tasks: the tasks of this mean. rows: measured cells. column: the measure that the claim
    states.

    Every task counts alike (as in Spec-Bench, which asks 80 questions of each). Speeds are averaged geometrically,
    other measures arithmetically. For the intervals (`…_low`, `…_high`) tasks are taken as independent, so their
    variances add (those of speeds as logarithms), with the degrees of freedom of Welch and Satterthwaite. `task` names
    the tasks in the mean; `lacks` names those that were not measured and is empty where all were.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(repr([row.get(name) for name in SETTING]), []).append(row)
    found = []
    for members in groups.values():
        by_name = {str(row["task"]): row for row in members}
        entering = {task: names[0] for task in tasks if (names := preferred(claim, task, by_name))}
        used = [by_name[name] for name in entering.values()]
        if not used:
            continue
        mean = {**used[0], "task": f"mean of {', '.join(entering.values())}"}
        for name in {column, "speedup"}:
            ends = name, f"{name}_low", f"{name}_high"
            values = [tuple(row[end] for end in ends) for row in used]
            freedom = [row["freedom"] for row in used]
            mean |= dict(zip(ends, _mean(values, freedom, name in TIMED), strict=True))
        missing = [task for task in tasks if task not in entering]
        lacks = (
            f"task (the {claim.task} of {len(tasks)} tasks reported, not measured: {', '.join(missing)})"
            if missing
            else ""
        )
        found.append({**mean, "lacks": lacks})
    return found


def _mean(values: Sequence[tuple[float, ...]], freedom: Sequence[float], geometric: bool) -> tuple[float, float, float]:
    """The mean of several (value, low, high); NaN where any is missing. freedom: degrees of freedom of each interval."""
    table = np.log(np.array(values, dtype=float)) if geometric else np.array(values, dtype=float)
    errors = (table[:, 2] - table[:, 1]) / 2 / student(np.array(freedom, dtype=float))
    found = weighted(
        [Estimate(value, error**2, own) for value, error, own in zip(table[:, 0], errors, freedom, strict=True)]
    )
    low, high = found.interval()
    centre, low, high = float(found.value), float(low), float(high)
    return (math.exp(centre), math.exp(low), math.exp(high)) if geometric else (centre, low, high)
