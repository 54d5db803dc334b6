"""How much whole runs of one job differ from each other, and how much wider that makes an interval.

A study may run each job several times, every time in a process of its own. These runs are the job's replicates. All of
them use the same prompts, which makes a two-way layout without interaction: log of a measure = mean + prompt +
replicate + rest. The mean over n_p prompts and n_r replicates has the variance σ²_prompt / n_p + σ²_replicate / n_r +
σ²_rest / (n_p n_r).

Each prompt has a mean over its replicates. The spread of these means measures the first and the last term together,
with n_p - 1 degrees of freedom. The middle term is estimated here and added (Satterthwaite 1946 gives the degrees of
freedom of the sum). From two replicates of a single cell it would have one degree of freedom, and every interval would
be endless. It is therefore pooled over all jobs of a pair in an engine: they share one machine, and so whatever
disturbs it.

A run moves the cells of a job partly alike, and partly each by itself. What moves all tasks alike stays in a mean over
tasks, what moves each by itself averages out. How much of which is not assumed: means over tasks are pooled by
themselves, from the means of other methods over as many tasks. The degrees of freedom are those of jobs, not of cells,
and jobs that the same replicate moved alike (a slow morning) count as fewer jobs, depending on how strongly they
correlate.

Coverage of the 95 % intervals, simulated (benchmarks/interval_coverage.py): 92 to 97 % where each job, or each cell,
has an effect of its own of up to 10 %. With two replicates it is 90 % for a mean over tasks and 93 % for a cell, where
one effect of 10 % moved all jobs alike or there is only one job. With a single replicate the term cannot be estimated,
and intervals leave it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from specrig.analysis.speedup import Times, group_times, log_ratios
from specrig.analysis.statistics import UNKNOWN, Estimate, Interval, interval, mean
from specrig.cell import Cell
from specrig.measurement.records import Record

Layout = NDArray[np.float64]
"""The logarithms of a measure for one cell, an array [prompts, replicates]."""


@dataclass(frozen=True, slots=True)
class BetweenRuns:
    """How much one whole run moves a logarithm, beyond the scatter of its prompts.

    variance: the variance of that effect, in squared units of the logarithm. freedom: the degrees of freedom of this
    variance.
    """

    variance: float
    freedom: float

    def of_mean(self, replicates: int) -> Estimate:
        """An estimate of value 0 to add to a mean over `replicates` runs. The number of prompts does not change it."""
        return Estimate(0.0, self.variance / replicates, self.freedom)


def between_runs(jobs: Mapping[str, Sequence[Layout]]) -> BetweenRuns | None:
    """The effect of whole runs, pooled over all jobs; None where no cell has two prompts and two replicates.

    jobs: name of a job -> the layouts of its cells. Cells with fewer replicates than the others are left out.
    """
    usable = {name: [cell for cell in cells if min(cell.shape) > 1] for name, cells in jobs.items()}
    replicates = max((cell.shape[1] for cells in usable.values() for cell in cells), default=0)
    if replicates < 2:
        return None
    kept = {name: [cell for cell in cells if cell.shape[1] == replicates] for name, cells in usable.items()}
    pooled = [_job(cells) for cells in kept.values() if cells]
    observed, rest, rest_freedom = (np.array([job[index] for job in pooled], dtype=float) for index in (0, 1, 2))
    freedom = _independent(np.array([job[3] for job in pooled])) * (replicates - 1)
    return _difference(float(observed.mean()), freedom, float(rest.mean()), float(rest_freedom.sum()))


def between_cells(cells: Mapping[str, list[Record]]) -> BetweenRuns | None:
    """How much one whole run moves the log speedup of one cell, beyond what it moves all cells of the study alike and
    the scatter of prompts; None where no two cells have two prompts and two replicates.

    cells: the result of `cells.by_cell`. Baselines' cells are left out.
    """
    layouts = [layout(log_ratios(group_times(members))) for members in cells.values() if members[0].cell.k]
    replicates = max((found.shape[1] for found in layouts if min(found.shape) > 1), default=0)
    usable = [found for found in layouts if len(found) > 1 and found.shape[1] == replicates]
    if replicates < 2 or len(usable) < 2:
        return None
    means = np.array([found.mean(axis=0) for found in usable])  # [cells, replicates]
    moved = means - means.mean(axis=1, keepdims=True)
    freedom = (len(usable) - 1) * (replicates - 1)
    observed = float(((moved - moved.mean(axis=0)) ** 2).sum() / freedom)
    _, rest, rest_freedom, _ = _job(usable)
    return _difference(observed, freedom, rest, rest_freedom)


def between(
    cells: Mapping[str, list[Record]], measure: Callable[[Times], pd.Series] = log_ratios
) -> dict[tuple[str, str], BetweenRuns]:
    """Map each (engine, pair) that has replicates to the `between_runs` of its jobs.

    cells: the result of `cells.by_cell`. measure: turns `speedup.group_times` into logarithms by (group, replicate).
    Cells without drafts are left out where other cells exist: a baseline measured against itself differs less from run
    to run.
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


def between_means(cells: Mapping[str, list[Record]]) -> dict[tuple[str, str, int], BetweenRuns]:
    """Map each (engine, pair, number of tasks) to how much a whole run moves a mean of log speedups over so many tasks.

    cells: the result of `cells.by_cell`. Methods with such a mean are pooled; baselines are left out.
    """
    settings: dict[Cell, list[Layout]] = {}
    for members in cells.values():
        if members[0].cell.k and count(members) > 1:
            setting = members[0].cell.model_copy(update={"task": ""})
            settings.setdefault(setting, []).append(layout(log_ratios(group_times(members))))
    found: dict[tuple[str, str, int], dict[str, list[Layout]]] = {}
    for setting, parts in settings.items():
        found.setdefault((setting.engine, setting.pair, len(parts)), {}).setdefault(setting.method, []).append(
            over_tasks(parts)
        )
    pools = {key: between_runs(jobs) for key, jobs in found.items()}
    return {key: pool for key, pool in pools.items() if pool}


def over_tasks(tasks: Sequence[Layout]) -> Layout:
    """The mean of several tasks' layouts, prompts in order, since prompts of different tasks are no pairs."""
    prompts, runs = min(len(task) for task in tasks), min(task.shape[1] for task in tasks)
    return np.mean([task[:prompts, :runs] for task in tasks], axis=0)


def layout(logs: pd.Series) -> Layout:
    """An array [groups, replicates] of a series indexed by both, without groups that lack a replicate."""
    runs = {number: logs.xs(number, level="replicate") for number in sorted(logs.index.unique("replicate"))}
    return pd.DataFrame(runs).dropna().to_numpy(dtype=float)


def count(records: Sequence[Record]) -> int:
    """The number of different replicates among the records of a cell."""
    return len({record.replicate for record in records})


def drift(cell: Layout) -> tuple[float, Interval]:
    """The last replicate's geometric mean / the first one's, and its 95 % interval over prompts."""
    if cell.shape[1] < 2 or not len(cell):
        return float("nan"), UNKNOWN
    change = mean(cell[:, -1] - cell[:, 0])
    return float(np.exp(change.value)), interval(change, scale=np.exp)


def _difference(observed: float, freedom: float, rest: float, rest_freedom: float) -> BetweenRuns:
    """The variance `observed` minus its part `rest`, each with its degrees of freedom; at least 0."""
    variance = max(observed - rest, 0.0)
    if variance == 0:
        return BetweenRuns(0.0, 1.0)
    # The variance is a difference of two mean squares, so its own variance is the sum of theirs.
    doubt = observed**2 / freedom + rest**2 / rest_freedom
    return BetweenRuns(variance, float(variance**2 / doubt))


def _job(cells: Sequence[Layout]) -> tuple[float, float, int, NDArray[np.float64]]:
    """(variance of the replicates' means, the part that the scatter of prompts explains, this part's degrees of
    freedom, moves).

    Both variances are means over the job's cells. moves [replicates]: each replicate's mean less the mean over
    replicates.
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
    """The number of independent jobs that would estimate a variance as well as these jobs do.

    moved [jobs, replicates]: how far each replicate moved each job; the mean of each row is 0. n jobs whose effects
    correlate by ρ estimate a variance as well as n / (1 + (n - 1) ρ²) independent ones.
    """
    jobs = len(moved)
    own = float((moved**2).sum(axis=1).mean())
    if jobs == 1 or own == 0:
        return 1.0
    common = float((moved.mean(axis=0) ** 2).sum())
    correlation = np.clip((common - own / jobs) / (own * (1 - 1 / jobs)), 0, 1)
    return float(jobs / (1 + (jobs - 1) * correlation**2))
