"""Simulates cells beside a load that comes and goes: whether the spread of plain decoding says that an interval is wrong.

    python benchmarks/spread_mark.py            # a minute; --cells 2000 for a quick look

A cell has five prompts in two replicates, as the default study has. Each prompt is run by the baseline and by four
methods in turns; the first of them is judged. Another program works for a while and rests for a while, by turns of a
tenth of a second. While it works, everything takes longer by a factor that is drawn anew each time it begins; the
methods may suffer more than the baseline. The true value is the cell's own prompts' mean on a quiet machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specrig.analysis.statistics import ratio

Array = NDArray[np.float64]
PROMPTS, REPLICATES, METHODS = 5, 2, 4
BASELINE_S, RATIO = 1.0, 1.3
"""Seconds of plain decoding for a prompt, and the true speedup."""
BETWEEN_PROMPTS, SCATTER = 0.03, 0.04
"""Standard deviations of the logarithms: of a prompt's speedup, and of a generation's time on a quiet machine. Real
prompts differ four times as much, which widens intervals and hides what the load does to them.
"""
STEP_S = 0.1
LOADS = {"none": (0.0, 1.0), "bursts": (0.2, 0.2), "15 s of 60": (15.0, 45.0), "90 s of 270": (90.0, 180.0)}
"""Name -> mean seconds for which the other program works and rests."""
BOUNDS = (0.15, 0.4)
"""Of the robust spread of plain decoding, the larger of the replicates'."""


class Class(NamedTuple):
    """Cells of similar spread: their share of all, intervals that miss, and mean of log(speedup / true speedup)."""

    share: float
    missed: float
    bias: float


def simulate(cells: int, load: tuple[float, float], extra: float, seed: int = 0) -> list[Class]:
    """The cells' classes by spread. extra: how much more the methods suffer than the baseline."""
    random = np.random.default_rng(seed)
    true = np.log(RATIO) + BETWEEN_PROMPTS * random.standard_normal((PROMPTS, cells))
    clock = _Load(load, cells, random)
    times = np.zeros((2, REPLICATES, PROMPTS, cells))
    for replicate in range(REPLICATES):
        for prompt in range(PROMPTS):
            for turn in range(1 + METHODS):
                quiet = BASELINE_S * np.exp(SCATTER * random.standard_normal(cells) - (turn > 0) * true[prompt])
                found = clock.run(quiet, 1 + extra * (turn > 0))
                if turn < 2:
                    times[turn, replicate, prompt] = found
    logs = (np.log(times[0]) - np.log(times[1])).mean(0)  # [prompts, cells]
    low, high = ratio(logs.T, np.ones(logs.T.shape)).interval()
    middle = true.mean(0)
    missed = (middle < low) | (middle > high)
    speeds = 1 / times[0]
    centre = np.median(speeds, axis=1, keepdims=True)
    spread = (1.4826 * np.median(np.abs(speeds - centre), axis=1) / centre[:, 0]).max(0)
    return list(_classes(np.digitize(spread, BOUNDS), missed, logs.mean(0) - middle))


def _classes(numbers: NDArray[np.int64], missed: NDArray[np.bool_], errors: Array) -> Iterator[Class]:
    for number in range(len(BOUNDS) + 1):
        mine = numbers == number
        some = mine.any()
        yield Class(float(mine.mean()), *(float(each[mine].mean()) if some else np.nan for each in (missed, errors)))


class _Load:
    """The other program of each cell, and the time that passes beside it."""

    def __init__(self, load: tuple[float, float], cells: int, random: np.random.Generator) -> None:
        self.works_s, self.rests_s = load
        self.random = random
        self.works = random.random(cells) < self.works_s / (self.works_s + self.rests_s)
        self.slower = random.uniform(0.1, 1.5, cells)

    def run(self, quiet: Array, suffers: float) -> Array:
        """How long work takes that would take so many seconds on a quiet machine."""
        left, taken = quiet.copy(), np.zeros_like(quiet)
        while (left > 0).any():
            pace = 1 + self.slower * suffers * self.works
            step = np.minimum(STEP_S, np.maximum(left, 0) * pace)
            left, taken = left - STEP_S / pace, taken + step
            self._turn(step)
        return taken

    def _turn(self, seconds: Array) -> None:
        """Let the program begin or end."""
        if not self.works_s:
            return
        turns = self.random.random(len(seconds)) < 1 - np.exp(
            -seconds / np.where(self.works, self.works_s, self.rests_s)
        )
        self.works = self.works ^ turns
        self.slower = np.where(turns, self.random.uniform(0.1, 1.5, len(seconds)), self.slower)


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    bounds = f"to {BOUNDS[0]:.0%}", f"to {BOUNDS[1]:.0%}", "above"
    print(f"| load | methods suffer | {' | '.join(f'spread {bound}: cells, missed, bias' for bound in bounds)} |")
    print("|---|---|---|---|---|")
    for load, seconds in LOADS.items():
        for extra, suffers in ((0.0, "as the baseline"), (0.2, "a fifth more")):
            found = simulate(given.cells, seconds, extra, given.seed)
            texts = [f"{each.share:.0%}, {each.missed:.1%}, {each.bias:+.1%}" for each in found]
            print(f"| {load} | {suffers} | {' | '.join(texts)} |", flush=True)


if __name__ == "__main__":
    main()
