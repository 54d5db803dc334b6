"""How much cells changed between two measurements of them, A and B: the ratios B / A of speedup and acceptance, with
intervals.

The unit is a batch of prompts, which is one prompt at batch size 1. Prompts are the same in A and B if their ids and
their lengths in tokens are. Where the prompts of the smaller measurement are all in the other one, prompts are compared
one by one, so that what is particular to a prompt cancels. Else the two sides are independent samples, compared after
Welch.

A slower day of a machine moves the speedups of all cells alike, and two or three runs hardly tell by how much
(`analysis.replicates`). A cell's change is therefore given twice. The whole change has an interval that holds what
whole runs differ. The relative change is relative to that of the median cell, so that everything cancels that moves all
cells alike; its interval holds what a run does to one cell alone. Both are pooled over the runs of A and B, which
are taken to scatter alike, and left out where neither has replicates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from specrig.analysis.acceptance import emitted_by_prompt
from specrig.analysis.replicates import BetweenRuns, between, between_cells, count
from specrig.analysis.speedup import group_times, log_speedups
from specrig.analysis.statistics import Estimate, Interval, average, interval, mean
from specrig.cell import Cell
from specrig.measurement.records import Record

Cells = Mapping[str, list[Record]]
"""`Cell.name` -> the records of the cell."""
UNKNOWN = Estimate(np.nan, np.nan, np.nan)
LEAST_CELLS = 3
"""The median of fewer cells is no shift: there, the relative change of a cell is its whole change."""
NORMAL = 1.4826
"""The standard deviation of a normal variable / its median absolute deviation."""


@dataclass(frozen=True, slots=True)
class Change:
    """A ratio B / A, by the estimate of its logarithm."""

    log: Estimate

    @property
    def ratio(self) -> float:
        """B / A; NaN where it is not known."""
        return float(np.exp(self.log.value))

    @property
    def interval(self) -> Interval:
        """95 % interval of the ratio; NaN where its error is not known."""
        return interval(self.log, scale=np.exp)

    @property
    def p_value(self) -> float:
        """The probability of a ratio this far from 1 if nothing changed (Student's t); NaN if not known."""
        from scipy.special import stdtr

        if self.log.variance == 0:
            return 1.0 if self.log.value == 0 else 0.0
        return float(2 * stdtr(self.log.freedom, -abs(self.log.value) / np.sqrt(self.log.variance)))

    @property
    def excludes_one(self) -> bool:
        """Whether the 95 % interval excludes 1."""
        low, high = self.interval
        return low > 1 or high < 1


@dataclass(frozen=True, slots=True)
class Agreement:
    """How many generations of the same prompt, replicate and repeat are token by token the same in A and B.

    pairs: generations that both have. plain: of them, how many have the same tokens of plain decoding. rounds: how many
    have the same tokens of the method and accepted the same number of tokens in every round.
    """

    pairs: int
    plain: int
    rounds: int


@dataclass(frozen=True, slots=True)
class CellChange:
    """What changed in one cell: its speedup (whole and relative), and its acceptance length τ (geometric mean over
    units).

    units: prompts (or batches) of A and of B that were compared; paired: one by one.
    """

    cell: Cell
    speedup: Change
    relative: Change
    length: Change
    units: tuple[int, int]
    paired: bool
    agreement: Agreement


@dataclass(frozen=True, slots=True)
class MeanChange:
    """The change of a setting's mean speedup over the tasks that both measured. cell: the setting."""

    cell: Cell
    tasks: tuple[str, ...]
    speedup: Change
    relative: Change


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed between two studies. shift: the whole change of the median cell; not known for fewer than
    `LEAST_CELLS`.

    cells: every drafting cell that both measured, in A's order. means: the same as means over tasks.
    """

    shift: Change
    cells: list[CellChange]
    means: list[MeanChange]


def changes(a: Cells, b: Cells) -> Changes:
    """Compare every cell with drafts that both studies measured."""
    names = [name for name in a if name in b and a[name][0].cell.k]
    found = {name: _difference(_log_speedups(a[name]), _log_speedups(b[name])) for name in names}
    alike, alone = _alike(a, b), _pooled([between_cells(a), between_cells(b)])
    shift = _median([float(estimate.value) for estimate, _, _ in found.values()])

    def both(estimate: Estimate, name: str, tasks: int = 1) -> tuple[Change, Change]:
        """(whole change, relative change) of a mean over `tasks` cells that are like the cell `name`."""
        runs = 1 / count(a[name]) + 1 / count(b[name])
        common, own = alike.get(a[name][0].cell.method_key[:2]), alone
        # What a run does to one cell alone averages out over cells, what it does to all of them does not.
        apart = estimate + Estimate(0.0, own.variance * runs / tasks, own.freedom) if own else estimate
        whole = apart + Estimate(0.0, common.variance * runs, common.freedom) if common else apart
        return Change(whole), Change(apart + replace(shift, value=-shift.value) if shift else whole)

    cells = []
    for name, (estimate, units, paired) in found.items():
        length, _, _ = _difference(_log_lengths(a[name]), _log_lengths(b[name]))
        cells.append(
            CellChange(
                a[name][0].cell, *both(estimate, name), Change(length), units, paired, _agreement(a[name], b[name])
            )
        )
    settings: dict[Cell, list[str]] = {}
    for name in names:
        settings.setdefault(a[name][0].cell.model_copy(update={"task": ""}), []).append(name)
    means = []
    for setting, members in settings.items():
        estimate = average([found[name][0] for name in members])
        tasks = tuple(a[name][0].cell.task for name in members)
        means.append(MeanChange(setting, tasks, *both(estimate, members[0], len(members))))
    if shift is None:
        return Changes(Change(UNKNOWN), cells, means)
    # The pair with the most cells stands for the study: of few cells the scatter is hardly known.
    largest, _ = Counter(a[name][0].cell.method_key[:2] for name in names).most_common(1)[0]
    common = alike.get(largest)
    runs = max(1 / count(a[name]) + 1 / count(b[name]) for name in names)
    error = Estimate(0.0, common.variance * runs, common.freedom) if common else UNKNOWN
    return Changes(Change(replace(shift + error, value=shift.value)), cells, means)


def _difference(a: pd.Series, b: pd.Series) -> tuple[Estimate, tuple[int, int], bool]:
    """(mean of `b` minus mean of `a`, units compared of each, whether paired). a, b: indexed by unit."""
    common = a.index.intersection(b.index)
    paired = len(common) > 1 and len(common) == min(len(a), len(b))
    if paired:
        found, units = mean((b[common] - a[common]).to_numpy(dtype=float)), (len(common), len(common))
    elif len(a) and len(b):
        ours = mean(a.to_numpy(dtype=float))
        found, units = mean(b.to_numpy(dtype=float)) + replace(ours, value=-ours.value), (len(a), len(b))
    else:
        return UNKNOWN, (len(a), len(b)), False
    # Two alike sides: differences scatter as far up as down.
    return replace(found, third=0.0), units, paired


def _median(logs: Sequence[float]) -> Estimate | None:
    """The median of the cells' changes with the error of their spread; None for fewer than `LEAST_CELLS`."""
    known = np.array([log for log in logs if np.isfinite(log)])
    if len(known) < LEAST_CELLS:
        return None
    spread = NORMAL * np.median(np.abs(known - np.median(known)))
    # The median of n normal values has π / 2 times the variance of their mean.
    return Estimate(np.median(known), np.pi / 2 * spread**2 / len(known), len(known) - 1.0)


def _alike(a: Cells, b: Cells) -> dict[tuple[str, ...], BetweenRuns]:
    """(engine, pair) -> how much a whole run moves all its cells, over both studies; absent without replicates."""
    pools = [between(cells) for cells in (a, b)]
    found = {key: _pooled([pool.get(key) for pool in pools]) for key in {**pools[0], **pools[1]}}
    return {key: pooled for key, pooled in found.items() if pooled}


def _pooled(known: Sequence[BetweenRuns | None]) -> BetweenRuns | None:
    """One estimate from those of both studies, whose runs are taken to scatter alike; None where there is none."""
    found = [each for each in known if each is not None]
    if not found:
        return None
    # At least one degree of freedom each, as in every sum of estimates: a scatter near 0 would have almost none.
    freedom = sum(max(each.freedom, 1.0) for each in found)
    return BetweenRuns(float(np.mean([each.variance for each in found])), freedom)


def _log_speedups(records: Sequence[Record]) -> pd.Series:
    """Log speedups indexed by unit (see `_units`)."""
    return log_speedups(group_times(records)).rename(_units(records))


def _log_lengths(records: Sequence[Record]) -> pd.Series:
    """Logarithms of τ, indexed by unit, without units of which no round is known."""
    groups = {record.prompt_id: record.group for record in records}
    sums: dict[int, np.ndarray] = {}
    for prompt, parts in emitted_by_prompt(records).items():
        sums[groups[prompt]] = sums.get(groups[prompt], np.zeros(2)) + np.array(parts)
    logs = {
        group: float(np.log(emitted / passes))
        for group, (emitted, passes) in sums.items()
        if emitted > 0 and passes > 0
    }
    return pd.Series(logs, dtype=float).rename(_units(records))


def _units(records: Sequence[Record]) -> dict[int, str]:
    """Group -> its prompts, as ids and lengths in tokens: equal in both studies if the prompts are."""
    found: dict[int, set[str]] = {}
    for record in records:
        found.setdefault(record.group, set()).add(f"{record.prompt_id} ({record.prompt_tokens})")
    return {group: ", ".join(sorted(members)) for group, members in found.items()}


def _agreement(a: Sequence[Record], b: Sequence[Record]) -> Agreement:
    ours, theirs = ({(r.prompt_id, r.prompt_tokens, r.replicate, r.repeat): r for r in records} for records in (a, b))
    pairs = [(ours[key], theirs[key]) for key in ours if key in theirs]
    rounds = (
        one.run.tokens == other.run.tokens and one.run.rounds.accepted == other.run.rounds.accepted
        for one, other in pairs
    )
    return Agreement(len(pairs), sum(one.baseline.tokens == other.baseline.tokens for one, other in pairs), sum(rounds))
