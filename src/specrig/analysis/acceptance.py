"""Measure how much of the draft the target accepts.

Counts come from `Rounds`, or from the engine's own totals (`Counts`); alpha comes from the recorded probabilities.
Definitions: Leviathan et al. 2211.17192 (alpha, section 3.1); Medusa 2401.10774 and EAGLE 2401.15077 (acceptance
length).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import zip_longest

import numpy as np
import pandas as pd

from specrig.analysis.statistics import Estimate, ratio
from specrig.measurement.records import Record, Rounds, Run

NAN = float("nan")
POSITION_COLUMNS = ["position", "rounds", "offered", "reached", "accepted", "conditional", "unconditional"]


def acceptance_rate(records: Iterable[Record]) -> float:
    """Σ accepted / Σ drafted over all rounds of all records (micro average). NaN where nothing was drafted.

    For a tree every drafted node counts as drafted; see `depth_acceptance_rate` for a rate that compares with chains.
    """
    return _ratio(*_accepted_drafted(records))


def acceptance_rate_estimate(records: Iterable[Record]) -> Estimate:
    """`acceptance_rate` over prompts."""
    return ratio(*_accepted_drafted(records))


def depth_acceptance_rate(records: Iterable[Record]) -> float:
    """Σ accepted / Σ depth of the longest offered path: for chains `acceptance_rate`."""
    records = list(records)
    return _ratio(
        [sum(record.run.rounds.accepted) for record in records],
        [sum(record.run.rounds.depth) for record in records],
    )


def acceptance_length(records: Iterable[Record]) -> float:
    """τ: mean tokens emitted per target verification pass, correction or bonus token included; 1 without speculation.

    Rounds that offered no draft count. A last round that the stop rule shortened (`Rounds.cut`) does not count, because
    it says where the text ended, not how good the draft was; `cut_rounds` counts these. NaN if no round is left. For an
    engine that gives totals only (`Run.counts`) the cut round cannot be left out: its τ is decoded tokens / passes.
    """
    return _ratio(*_emitted_rounds(records))


def acceptance_length_estimate(records: Iterable[Record]) -> Estimate:
    """`acceptance_length` over prompts."""
    return ratio(*_emitted_rounds(records))


def cut_rounds(records: Iterable[Record]) -> int:
    """The number of rounds that end of sequence or the length limit shortened; at most one per record."""
    return sum(record.run.rounds.cut for record in records)


def rounds(records: Iterable[Record]) -> int:
    """The number of target verification passes during decoding, cut rounds included."""
    return sum(_passes(record.run) for record in records)


def emitted_by_prompt(records: Iterable[Record], *, cut: bool = False) -> dict[str, tuple[float, float]]:
    """Prompt id -> (tokens emitted, target passes). Their ratio is τ of the prompt.

    cut: whether rounds that the stop rule shortened count too. They do in an engine's totals, so True makes engines
    count alike.
    """
    found: dict[str, tuple[float, float]] = {}
    for record in records:
        emitted, passes = _emitted(record.run, cut)
        above, below = found.get(record.prompt_id, (0.0, 0.0))
        found[record.prompt_id] = above + emitted, below + passes
    return found


def alpha(records: Iterable[Record]) -> float:
    """α: the chance that one drafted token is accepted, as the mean over reached draft positions of Σ_x min(p(x),
    q(x)).

    p and q are the target's and the draft's distributions. NaN where no position was reached. Source: Leviathan
    2211.17192, theorem 3.5 (where β is the value at one position, and α its mean).
    """
    records = list(records)
    return _ratio([record.run.overlap for record in records], [record.run.reached for record in records])


def alpha_estimate(records: Iterable[Record]) -> Estimate:
    """`alpha` over prompts."""
    parts = ((record.prompt_id, record.run.overlap, record.run.reached) for record in records)
    return ratio(*_by_prompt(parts))


def positions(records: Iterable[Record]) -> pd.DataFrame:
    """A table of acceptance by draft position, with one row per position i = 1, 2, …, up to the deepest offered path.

    position: i. rounds: all rounds, also those that drafted nothing. offered: rounds whose draft was at least i deep.
    reached: the offered rounds that accepted all of 1 … i - 1. accepted: the reached rounds that accepted i too.
    conditional: accepted / reached. unconditional: accepted / rounds. Cut rounds are left out of all columns.

    An engine that reports totals only counts the accepted tokens by position, and nothing else. `offered` is then NaN,
    every round counts as having reached position 1, and `conditional` may be too low where rounds had no draft.
    """
    records = list(records)
    totals = [
        record.run.counts for record in records if record.run.counts is not None and record.run.counts.per_position
    ]
    if totals:
        passes = sum(counts.rounds for counts in totals)
        by_position = zip_longest(*(counts.per_position or [] for counts in totals), fillvalue=0)
        return _position_rows(passes, [sum(taken) for taken in by_position])
    pairs = [pair for record in records for pair in _full_rounds(record.run.rounds)]
    depths = np.array([depth for depth, _ in pairs], dtype=int)
    accepted = np.array([taken for _, taken in pairs], dtype=int)
    rows = []
    for position in range(1, int(depths.max(initial=0)) + 1):
        offered = depths >= position
        reached = int((offered & (accepted >= position - 1)).sum())
        taken = int((accepted >= position).sum())
        shares = [taken / reached if reached else NAN, taken / len(pairs)]
        rows.append([position, len(pairs), int(offered.sum()), reached, taken, *shares])
    return pd.DataFrame(rows, columns=POSITION_COLUMNS)


def _position_rows(passes: int, accepted: list[int]) -> pd.DataFrame:
    rows = [
        [position, passes, NAN, reached, taken, taken / reached if reached else NAN, taken / passes if passes else NAN]
        for position, (reached, taken) in enumerate(zip([passes, *accepted], accepted, strict=False), 1)
    ]
    return pd.DataFrame(rows, columns=POSITION_COLUMNS)


def emitted_lengths(records: Iterable[Record]) -> list[int]:
    """The number of tokens that each round emitted, cut rounds left out. Their mean is `acceptance_length`."""
    return [emitted for record in records for emitted in _full(record.run.rounds, record.run.rounds.emitted)]


def _full(rounds: Rounds, values: Sequence[int]) -> Sequence[int]:
    return values[:-1] if rounds.cut else values


def _full_rounds(rounds: Rounds) -> list[tuple[int, int]]:
    return list(zip(_full(rounds, rounds.depth), _full(rounds, rounds.accepted), strict=True))


def _passes(run: Run) -> int:
    return len(run.rounds.emitted) or (run.counts.rounds if run.counts else 0)


def _emitted(run: Run, cut: bool = False) -> tuple[int, int]:
    """(tokens emitted, passes), without the first token, which prefill emits."""
    if run.rounds.emitted:
        emitted = run.rounds.emitted if cut else _full(run.rounds, run.rounds.emitted)
        return sum(emitted), len(emitted)
    return (len(run.tokens) - 1, run.counts.rounds) if run.counts and run.counts.rounds else (0, 0)


def _drafts(run: Run) -> tuple[int, int]:
    """(accepted, drafted) tokens; (0, 0) where the engine does not report both."""
    if run.counts is None or run.rounds.emitted:
        return sum(run.rounds.accepted), sum(run.rounds.drafted)
    accepted, drafted = run.counts.accepted, run.counts.drafted
    return (0, 0) if accepted is None or drafted is None else (accepted, drafted)


def _accepted_drafted(records: Iterable[Record]) -> tuple[list[float], list[float]]:
    return _by_prompt((record.prompt_id, *_drafts(record.run)) for record in records)


def _emitted_rounds(records: Iterable[Record]) -> tuple[list[float], list[float]]:
    found = emitted_by_prompt(records).values()
    return [emitted for emitted, _ in found], [passes for _, passes in found]


def _by_prompt(parts: Iterable[tuple[str, float, float]]) -> tuple[list[float], list[float]]:
    above: dict[str, float] = defaultdict(float)
    below: dict[str, float] = defaultdict(float)
    for prompt, numerator, denominator in parts:
        above[prompt] += numerator
        below[prompt] += denominator
    return list(above.values()), list(below.values())


def _ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    below = sum(denominators)
    return sum(numerators) / below if below else NAN
