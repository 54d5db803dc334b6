"""Runs of one job repeated in processes of their own: how far whole runs differ, and what that adds to an interval.

The same prompts run in every replicate, which is a two-way layout without interaction:
log of a measure = mean + prompt + replicate + rest. The mean over prompts and replicates then has the variance
σ²_prompt / n_p + σ²_replicate / n_r + σ²_rest / (n_p n_r). The spread of the prompts' means over replicates measures the first and
the last term together, with n_p - 1 degrees of freedom; the middle one is estimated here and added (Satterthwaite 1946 gives the degrees of
freedom of the sum). Two replicates of one cell leave it a single degree of freedom, which would make every interval endless, so
it is pooled over all jobs of a pair in an engine: what disturbs them is the one machine.

A replicate is taken to move all cells of a job alike, so that a mean over tasks is as uncertain in this respect as one of them, and
the degrees of freedom are those of jobs, not cells. Jobs that were moved alike by the same replicate (a slow morning) count as
fewer, by the correlation that they show. What is left of that: coverage is 93 to 96 % where each job has an effect of its own of up to
10 %, and 90 % of a mean over tasks (93 % of a cell) with two replicates where one effect of 10 % moved all jobs alike, or there is one job.
With a single replicate nothing can be said of it, and intervals leave it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from specrig.analysis.speedup import group_times, log_ratios
from specrig.analysis.statistics import UNKNOWN, Estimate, Interval, interval, mean
from specrig.measurement.records import Record

Layout = NDArray[np.float64]
"""Logarithms [prompts, replicates] of one cell."""


@dataclass(frozen=True, slots=True)
class BetweenRuns:
    """Variance of what one whole run adds to a logarithm, beyond what its prompts scatter; how well it is known."""

    variance: float
    freedom: float

    def of_mean(self, replicates: int) -> Estimate:
        """What it adds to a mean over `replicates` runs, over however many prompts and tasks."""
        return Estimate(0.0, self.variance / replicates, self.freedom)


def between_runs(jobs: Mapping[str, Sequence[Layout]]) -> BetweenRuns | None:
    """Pooled over `jobs` (name -> layouts of its cells); None where no cell has two prompts and two replicates.

    Cells with fewer replicates than the others are passed over.
    """
    usable = {name: [cell for cell in cells if min(cell.shape) > 1] for name, cells in jobs.items()}
    replicates = max((cell.shape[1] for cells in usable.values() for cell in cells), default=0)
    if replicates < 2:
        return None
    kept = {name: [cell for cell in cells if cell.shape[1] == replicates] for name, cells in usable.items()}
    pooled = [_job(cells) for cells in kept.values() if cells]
    observed, rest, rest_freedom = (np.array([job[index] for job in pooled], dtype=float) for index in (0, 1, 2))
    variance = max(float(observed.mean() - rest.mean()), 0.0)
    if variance == 0:
        return BetweenRuns(0.0, 1.0)
    # The variance is a difference of two mean squares, so its own variance is the sum of theirs.
    freedom = _independent(np.array([job[3] for job in pooled])) * (replicates - 1)
    doubt = observed.mean() ** 2 / freedom + rest.mean() ** 2 / rest_freedom.sum()
    return BetweenRuns(variance, float(variance**2 / doubt))


def between(
    cells: Mapping[str, list[Record]], measure: Callable[[pd.DataFrame], pd.Series] = log_ratios
) -> dict[tuple[str, str], BetweenRuns]:
    """(engine, pair) -> `between_runs` of its cells, where there are replicates.

    cells: `cells.by_cell`; measure: logarithms by (group, replicate) of `speedup.group_times`. Cells without drafts
    are passed over where there are others: a baseline against itself differs less from run to run.
    """
    found: dict[tuple[str, str], dict[str, list[Layout]]] = {}
    drafting = any(members[0].cell.k for members in cells.values())
    for members in cells.values():
        cell = members[0].cell
        if count(members) > 1 and (cell.k or not drafting):
            jobs = found.setdefault((cell.engine, cell.pair), {})
            jobs.setdefault(cell.method, []).append(layout(measure(group_times(members))))
    pools = {key: between_runs(jobs) for key, jobs in found.items()}
    return {key: pool for key, pool in pools.items() if pool}


def layout(logs: pd.Series) -> Layout:
    """Logarithms by (group, replicate) as [groups, replicates], groups that lack a replicate left out."""
    runs = {number: logs.xs(number, level="replicate") for number in sorted(logs.index.unique("replicate"))}
    return pd.DataFrame(runs).dropna().to_numpy(dtype=float)


def count(records: Sequence[Record]) -> int:
    """Replicates of a cell."""
    return len({record.replicate for record in records})


def drift(cell: Layout) -> tuple[float, Interval]:
    """Geometric mean of the last replicate over that of the first, with its 95 % interval over prompts; NaN for one replicate."""
    if cell.shape[1] < 2 or not len(cell):
        return float("nan"), UNKNOWN
    change = mean(cell[:, -1] - cell[:, 0])
    return float(np.exp(change.value)), interval(change, scale=np.exp)


def _job(cells: Sequence[Layout]) -> tuple[float, float, int, NDArray[np.float64]]:
    """Of a job: how replicates' means vary, the part of it that their prompts explain, this part's degrees of freedom, and moves.

    Mean over its cells; the moves are each replicate's mean less their mean [replicates].
    """
    means = np.array([cell.mean(axis=0) for cell in cells])  # [cells, replicates]
    shares, freedom = [], 0
    for cell in cells:
        prompts, replicates = cell.shape
        rest = cell - cell.mean(axis=0) - cell.mean(axis=1, keepdims=True) + cell.mean()
        shares.append((rest**2).sum() / ((prompts - 1) * (replicates - 1)) / prompts)
        freedom += (prompts - 1) * (replicates - 1)
    moved = (means - means.mean(axis=1, keepdims=True)).mean(axis=0)
    return float(means.var(axis=1, ddof=1).mean()), float(np.mean(shares)), freedom, moved


def _independent(moved: NDArray[np.float64]) -> float:
    """How many independent jobs as many as these are worth, that replicates moved by `moved` [jobs, replicates] (mean 0 each).

    n jobs whose effects correlate by ρ estimate a variance as well as n / (1 + (n - 1) ρ²) independent ones.
    """
    jobs = len(moved)
    own = float((moved**2).sum(axis=1).mean())
    if jobs == 1 or own == 0:
        return 1.0
    common = float((moved.mean(axis=0) ** 2).sum())
    correlation = np.clip((common - own / jobs) / (own * (1 - 1 / jobs)), 0, 1)
    return float(jobs / (1 + (jobs - 1) * correlation**2))
