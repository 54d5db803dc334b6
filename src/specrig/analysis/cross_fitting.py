"""Cross-fitting: judge the choice of k on prompts that had no part in the choice.

The k that is best on some prompts looks better than it is on these same prompts: of k's that are all alike, the
luckiest wins. Therefore each half of the prompts chooses the k at which the other half is judged. Every prompt is
judged exactly once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

Logs = Mapping[str, pd.Series]
"""Task -> log speedups, indexed by prompt (by batch, where prompts ran in batches)."""


@dataclass(frozen=True, slots=True)
class Judged:
    """ks: the choices of the two halves. logs: each prompt's log speedup at the other half's choice."""

    ks: tuple[int, int]
    logs: Logs


def cross_fit(choosing: Mapping[int, Logs], judging: Mapping[int, Logs] | None = None) -> Judged | None:
    """Let each half of the prompts choose a k, and judge the other half at it.

    choosing: k -> log speedups by which the k is chosen. judging: k -> log speedups by which the choice is judged; None
    means `choosing`.

    Candidates are the k's that are in both and ran on the most tasks. A half chooses the k with the largest mean over
    tasks of the means over its prompts; among equal k's, the smallest. Only prompts with a log speedup at every
    candidate count. Returns None where fewer than two k's are left to choose from, or where a task has fewer than two
    such prompts.
    """
    judging = choosing if judging is None else judging
    both = sorted(set(choosing) & set(judging))
    most = max((len(choosing[k]) for k in both), default=0)
    ks = [k for k in both if len(choosing[k]) == most]
    tasks = [
        task for task in (judging[ks[0]] if ks else ()) if all(task in choosing[k] and task in judging[k] for k in ks)
    ]
    if len(ks) < 2 or not tasks:
        return None
    # Rows are prompts, columns k's, in both of a task's frames.
    choosing_speedups = {task: pd.DataFrame({k: choosing[k][task] for k in ks}).dropna() for task in tasks}
    answers = {task: pd.DataFrame({k: judging[k][task] for k in ks}).dropna() for task in tasks}
    prompts = {task: answers[task].index.intersection(choosing_speedups[task].index).sort_values() for task in tasks}
    if min(map(len, prompts.values())) < 2:
        return None
    halves = [{task: found[start::2] for task, found in prompts.items()} for start in (0, 1)]
    chosen = [_best(choosing_speedups, half) for half in halves]
    logs = {
        task: pd.concat([answers[task].loc[half[task], k] for half, k in zip(halves, reversed(chosen), strict=True)])
        for task in tasks
    }
    return Judged((chosen[0], chosen[1]), logs)


def _best(choosing_speedups: Mapping[str, pd.DataFrame], half: Mapping[str, pd.Index]) -> int:
    means = pd.DataFrame({task: choosing_speedups[task].loc[prompts].mean() for task, prompts in half.items()}).mean(
        axis=1
    )
    return int(str(means.idxmax()))
