"""Simulates cells that are measured again beside a load that comes and goes: what choosing by signs does to the speedup,
and what choosing by speed would do.

    python benchmarks/attempts.py            # seconds; --cells 2000 for a quick look

A cell has eight prompts, each run by baseline and method in turns. Another program works for a while, rests for a while,
and takes a part of a processor while it works. It slows what runs beside it by this part times a random factor; the
method may suffer more from it than the baseline. The system's counters see the program, not the slowdown. A disturbed
cell is measured again, twice at most. `measurement.signs` and `measurement.attempts` judge and choose, as they
do in a study.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specrig.measurement.attempts import least_disturbed
from specrig.measurement.records import Load
from specrig.measurement.signs import disturbance

Array = NDArray[np.float64]
ENVIRONMENT = {"device": "cpu", "cpu": {"logical_cores": 2}, "torch": {"threads": 2}}
ATTEMPTS, PROMPTS = 3, 8
BASELINE_S, RATIO = 2.0, 1.6
"""Seconds of plain decoding for a prompt, and the true speedup."""
SCATTER = 0.04
"""Standard deviation of the logarithm of a generation's time on a quiet machine."""
WORKS_S, RESTS_S = 15.0, 45.0
"""Mean seconds for which the other program works and rests."""
TICK_S = 0.01
CHOICES = ("the first", "by signs", "by speed", "the fastest of three")


class Outcome(NamedTuple):
    """What one way of choosing gives: mean and standard deviation of log(speedup / true speedup), and marked cells."""

    bias: float
    error: float
    """Standard error of `bias`."""
    spread: float
    marked: float


def simulate(cells: int, *, extra: float, seed: int = 0) -> dict[str, Outcome]:
    """Choice -> its outcome over `cells` simulated cells. extra: how much more the method suffers than the baseline."""
    found, others, elapsed = _attempts(cells, extra, np.random.default_rng(seed))
    chosen: dict[str, list[tuple[float, float]]] = {choice: [] for choice in CHOICES}
    for errors, other, seconds in zip(found, others, elapsed, strict=True):
        loads = [[_load(*of)] for of in zip(other, seconds, strict=True)]
        signs = [disturbance(load, ENVIRONMENT) for load in loads]
        measured = next((number for number, sign in enumerate(signs, 1) if sign <= 1), ATTEMPTS)
        indices = 0, least_disturbed(loads[:measured], ENVIRONMENT), errors[:measured].argmax(), errors.argmax()
        for choice, index in zip(CHOICES, indices, strict=True):
            chosen[choice].append((errors[index], signs[index] > 1))
    return {choice: _outcome(np.array(values)) for choice, values in chosen.items()}


def _outcome(values: Array) -> Outcome:
    errors, marked = values.T
    spread = float(errors.std(ddof=1))
    return Outcome(float(errors.mean()), spread / len(errors) ** 0.5, spread, float(marked.mean()))


def _attempts(cells: int, extra: float, random: np.random.Generator) -> tuple[Array, Array, Array]:
    """(log(speedup / true speedup), seconds of the other program's work, seconds), each an array [cells, attempts]."""
    works = random.random(cells) < WORKS_S / (WORKS_S + RESTS_S)
    part = random.uniform(0.1, 1, cells)
    logs, others, elapsed = (np.zeros((cells, ATTEMPTS)) for _ in range(3))
    for attempt in range(ATTEMPTS):
        for _ in range(PROMPTS):
            for share, sign, suffers in ((1, 1, 1.0), (1 / RATIO, -1, 1 + extra)):
                slowdown = suffers * part * works * random.uniform(0, 1, cells)
                seconds = BASELINE_S * share * np.exp(SCATTER * random.standard_normal(cells)) * (1 + slowdown)
                logs[:, attempt] += sign * np.log(seconds) / PROMPTS
                others[:, attempt] += np.floor(part * works * seconds / TICK_S) * TICK_S
                elapsed[:, attempt] += seconds
                turns = random.random(cells) < 1 - np.exp(-seconds / np.where(works, WORKS_S, RESTS_S))
                works, part = works ^ turns, np.where(turns, random.uniform(0.1, 1, cells), part)
    return logs - np.log(RATIO), others, elapsed


def _load(others_s: float, elapsed_s: float) -> Load:
    return Load(elapsed_s=elapsed_s, own_s=2 * elapsed_s - others_s, others_s=others_s, steal_s=0.0)


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(
        "| the method suffers | the attempt that counts | bias of the speedup in % | spread in % | cells marked in % |"
    )
    print("|---|---|---|---|---|")
    for extra, suffers in ((0.0, "as the baseline"), (0.2, "a fifth more")):
        for choice, found in simulate(given.cells, extra=extra, seed=given.seed).items():
            figures = (
                f"{100 * found.bias:+.2f} ± {100 * found.error:.2f} | {100 * found.spread:.1f} | "
                f"{100 * found.marked:.1f}"
            )
            print(f"| {suffers} | {choice} | {figures} |")


if __name__ == "__main__":
    main()
