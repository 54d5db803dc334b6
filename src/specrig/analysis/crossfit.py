"""A choice judged on prompts that had no part in it.

The best of several k's on the prompts at hand is flattered by its own luck: of k's that are all alike, the luckiest wins. So one half of
the prompts chooses the k at which the other half is judged, and the other way round; every prompt is judged once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

Logs = Mapping[str, pd.Series]
"""Task -> log speedups by prompt (batch)."""


@dataclass(frozen=True, slots=True)
class Judged:
    """ks: what the two halves chose; logs: each prompt's log speedup at the k that the other half chose."""

    ks: tuple[int, int]
    logs: Logs


def crossfit(choosing: Mapping[int, Logs], judging: Mapping[int, Logs] | None = None) -> Judged | None:
    """Choose among k's by `choosing` (k -> logs), judge by `judging`, which is the same unless it says otherwise.

    A half chooses the largest mean over tasks of the mean over its prompts, the smallest k of equals, among the k's that both ran on the
    most tasks. Only prompts count that have a log speedup at every k. None where fewer than two k's are left, or a task has
    fewer than two such prompts: then there is nothing to choose, or nobody to judge.
    """
    judging = choosing if judging is None else judging
    both = sorted(set(choosing) & set(judging))
    most = max((len(choosing[k]) for k in both), default=0)
    ks = [k for k in both if len(choosing[k]) == most]
    tasks = [task for task in (judging[ks[0]] if ks else ()) if all(task in choosing[k] and task in judging[k] for k in ks)]
    if len(ks) < 2 or not tasks:
        return None
    # Rows are prompts, columns k's, in both of a task's frames.
    asked = {task: pd.DataFrame({k: choosing[k][task] for k in ks}).dropna() for task in tasks}
    answers = {task: pd.DataFrame({k: judging[k][task] for k in ks}).dropna() for task in tasks}
    prompts = {task: answers[task].index.intersection(asked[task].index).sort_values() for task in tasks}
    if min(map(len, prompts.values())) < 2:
        return None
    halves = [{task: found[start::2] for task, found in prompts.items()} for start in (0, 1)]
    chosen = [_best(asked, half) for half in halves]
    logs = {
        task: pd.concat([answers[task].loc[half[task], k] for half, k in zip(halves, reversed(chosen), strict=True)])
        for task in tasks
    }
    return Judged((chosen[0], chosen[1]), logs)


def _best(asked: Mapping[str, pd.DataFrame], half: Mapping[str, pd.Index]) -> int:
    means = pd.DataFrame({task: asked[task].loc[prompts].mean() for task, prompts in half.items()}).mean(axis=1)
    return int(str(means.idxmax()))
