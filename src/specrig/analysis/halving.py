"""Successive halving: which of a setting's cells is the fastest, at a fraction of the grid's measurements.

Jamieson and Talwalkar 1502.07943: all cells run on a few prompts, the fastest third stays and runs on further prompts,
until one is left; every round costs about the same. That one then runs on fresh prompts, which had no part in the choice.
So the speedup that is stated, and its interval, are not flattered by the choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from specrig.analysis.statistics import LEAST_UNITS, Interval, interval, mean
from specrig.cell import Cell

KEPT = 3
"""One of so many cells stays after a round."""
JUDGING = 4
"""The fewest units that judge the choice, where there are as many: fewer tell next to nothing."""


@dataclass(frozen=True, slots=True)
class Rung:
    """What is measured next: these cells, each on the units (prompts, or batches of them) from start to stop."""

    cells: tuple[Cell, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Choice:
    """The outcome of a race.

    cell: the cell that was left. speedup, low, high: its own on the fresh units, with the 95 % interval; NaN where too
    few judge. units: how many judged it.
    """

    cell: Cell
    speedup: float
    low: float
    high: float
    units: int


def schedule(cells: int, units: int, budget: float) -> list[tuple[int, int]]:
    """(cells, units) of each round; the last one judges the cell that is left.

    cells: of the setting, at least two. units: prompts, or batches, that the grid has. budget: measurements (cell and
    unit) to spend; a round has at least one unit, so small grids take more. Empty where the units cannot both choose
    and judge.
    """
    sizes = [cells]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // KEPT))
    while len(sizes) > 2 and len(sizes) - 1 + LEAST_UNITS > units:
        del sizes[-2]  # fewer, sharper rounds
    rounds = len(sizes)
    judging = min(JUDGING, units - rounds + 1)
    racing: list[int] = []
    for done, size in enumerate(sizes[:-1]):  # an equal share of what is left, and as much as judging takes is kept
        share = min(budget / (rounds - done), (budget - judging * sizes[-1]) / (rounds - 1 - done))
        racing.append(max(1, int(share / size)))
        budget -= size * racing[-1]
    while sum(racing) > units - judging:
        largest = racing.index(max(racing))
        racing[largest] -= 1
        budget += sizes[largest]
    last = min(max(judging, int(budget / sizes[-1])), units - sum(racing))
    return [*zip(sizes, [*racing, last], strict=True)] if last >= LEAST_UNITS else []


@dataclass
class SuccessiveHalving:
    """Successive halving of the cells of one setting. `rung` says what to measure, `enter` takes the result."""

    cells: Sequence[Cell]
    units: int
    budget: float
    logs: dict[Cell, pd.Series] = field(default_factory=dict)
    """Cell -> log speedups of its units so far, indexed by unit. Cells that failed are not in it after their rung."""

    def __post_init__(self) -> None:
        self._rounds = schedule(len(self.cells), self.units, self.budget) if len(self.cells) > 1 else []
        self._done, self._start, self._racing = 0, 0, list(self.cells)
        self.possible = bool(self._rounds)
        """Whether there are two cells and units enough."""

    @property
    def rung(self) -> Rung | None:
        """What to measure next; None when the race is over."""
        if self._done == len(self._rounds) or not self._racing:
            return None
        return Rung(tuple(self._racing), self._start, self._start + self._rounds[self._done][1])

    def enter(self, found: Mapping[Cell, pd.Series]) -> None:
        """Take the log speedups, by unit, of a rung's cells, and keep the fastest. A cell without any has failed."""
        rung = self.rung
        assert rung is not None
        measured = {cell: found[cell] for cell in rung.cells if cell in found and len(found[cell])}
        self.logs = {cell: pd.concat([*self._before(cell), logs]) for cell, logs in measured.items()}
        self._done, self._start = self._done + 1, rung.stop
        keep = self._rounds[self._done][0] if self._done < len(self._rounds) else 1
        self._racing = sorted(self.logs, key=lambda cell: -float(self.logs[cell].mean()))[:keep]

    def _before(self, cell: Cell) -> list[pd.Series]:
        return [self.logs[cell]] if cell in self.logs else []

    def choice(self) -> Choice | None:
        """The outcome of a race that is over; None where every cell failed."""
        if not self._racing:
            return None
        (cell,) = self._racing
        logs = self.logs[cell].loc[self.units_before_the_last :]
        ends: Interval = interval(mean(logs), scale=np.exp)
        return Choice(cell, float(np.exp(logs.mean())), *ends, len(logs))

    @property
    def units_before_the_last(self) -> int:
        """How many units chose."""
        return sum(count for _, count in self._rounds[:-1])
