"""Predict the speedup from the draft's acceptance and the measured cost of bare forward passes.

Source: Leviathan et al. 2211.17192, section 3. Costs are in units of t_target(1), the time of a bare one-token target
pass of the baseline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from specrig.measurement.records import Record

NAN = float("nan")


def expected_tokens(alpha: float, k: int) -> float:
    """E[tokens per target pass] = (1 - α^(k+1)) / (1 - α), Leviathan eq. (1): a chain of k drafts, each accepted with
    α.

    Raises ValueError for α outside [0, 1] or negative k.
    """
    if not 0 <= alpha <= 1 or k < 0:
        raise ValueError(f"alpha must lie in [0, 1] and k be at least 0, not alpha={alpha}, k={k}")
    # The sum 1 + α + … + α^k is the same number, without the cancellation near α = 1.
    return sum(alpha**power for power in range(k + 1))


def walltime_improvement(alpha: float, k: int, c: float, verify_cost: float = 1.0) -> float:
    """Expected speedup (1 - α^(k+1)) / ((1 - α)(k·c + v)): Leviathan theorem 3.8, where v(k + 1) = 1.

    c: seconds of one draft pass / seconds of one target pass. verify_cost: v, the cost of a verification pass of k + 1
    tokens, in one-token target passes. Raises ValueError like `expected_tokens`.
    """
    return expected_tokens(alpha, k) / (k * c + verify_cost)


def required_alpha(speedup: float, k: int, c: float, verify_cost: float = 1.0) -> float | None:
    """The smallest α at which Theorem 3.8 gives at least `speedup`; None where even α = 1 gives less."""
    if walltime_improvement(1.0, k, c, verify_cost) < speedup:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):  # the formula grows with α
        middle = (low + high) / 2
        low, high = (middle, high) if walltime_improvement(middle, k, c, verify_cost) < speedup else (low, middle)
    return high


def best_k(alpha: float, c: float, ks: Iterable[int], verify_cost: Callable[[int], float] = lambda _: 1.0) -> int:
    """The k in `ks` with the largest expected speedup; among equals, the smallest. verify_cost: v(k + 1)."""
    return max(sorted(ks), key=lambda k: walltime_improvement(alpha, k, c, verify_cost(k + 1)))


@dataclass(frozen=True, slots=True)
class PassCosts:
    """The costs of forward passes in one cell, measured in the cell's own runs.

    target_pass_s: t_target(1), mean seconds of the baseline's bare one-token target pass.
    draft_cost: c, draft seconds per drafted chain position / t_target(1); 0 without a draft model, NaN where nothing
    was drafted.
    draft_cost_per_round: draft seconds per verification pass / t_target(1); k·c for a chain of constant k.
    verify_cost: v, mean seconds of the method's target passes (of all widths) / t_target(1).
    target_s, draft_s: seconds spent in bare passes; the rest of decode_s is the loop's own time.
    rows: sequences in one pass of the method / sequences in one pass of the baseline. It is 1, except where a batch is
    compared with prompts that ran one by one.
    """

    target_pass_s: float
    draft_cost: float
    draft_cost_per_round: float
    verify_cost: float
    target_s: float
    draft_s: float
    rows: float = 1.0


def pass_costs(records: Iterable[Record]) -> PassCosts:
    """The costs of one cell, from `target_passes` and `draft_passes` of its records; NaN where the engine does not time
    passes.

    Every record of a batch repeats the passes of the whole batch. Each (group, replicate, repeat) therefore counts
    once, and a draft position counts once for all rows.
    """
    groups: dict[tuple[int, int, int], list[Record]] = {}
    for record in records:
        groups.setdefault((record.group, record.replicate, record.repeat), []).append(record)
    one_calls = calls = positions = batches = rows = 0
    one_s = target_s = draft_s = 0.0
    for members in groups.values():
        first = members[0]
        for record in members if first.baseline_alone else members[:1]:
            base_calls, base_seconds = record.baseline.target_passes.get(1, (0, 0.0))
            one_calls, one_s = one_calls + base_calls, one_s + base_seconds
        batches += 1
        rows += len(members) if first.baseline_alone else 1
        calls += sum(number for number, _ in first.run.target_passes.values())
        target_s += sum(seconds for _, seconds in first.run.target_passes.values())
        draft_s += sum(seconds for _, seconds in first.run.draft_passes.values())
        rounds = zip_longest(*(record.run.rounds.depth for record in members), fillvalue=0)
        positions += sum(max(depths) for depths in rounds)
    if not one_calls or not calls or one_s <= 0:
        return PassCosts(NAN, NAN, NAN, NAN, target_s, draft_s)
    unit = one_s / one_calls
    return PassCosts(
        target_pass_s=unit,
        draft_cost=draft_s / positions / unit if positions else NAN,
        draft_cost_per_round=draft_s / calls / unit,
        verify_cost=target_s / calls / unit,
        target_s=target_s,
        draft_s=draft_s,
        rows=rows / batches,
    )


def predicted_speedup(acceptance_length: float, costs: PassCosts) -> float:
    """τ · rows / (draft cost per round + v), which is τ / (k·c + v(k+1)) for a chain of constant k; NaN if a part is
    unknown.

    The prediction leaves out the loop's own work. Measured / predicted speedup is thus the share of the possible speed
    that is kept.
    """
    return acceptance_length * costs.rows / (costs.draft_cost_per_round + costs.verify_cost)


def efficiency(measured: float, predicted: float) -> float:
    """Measured speedup / predicted speedup: 1 if the loop spends as much of its time outside passes as the baseline."""
    return measured / predicted if predicted else NAN


FACTORS = ("acceptance", "draft cost", "verification cost", "the loop")
"""The parts of the quotient of two speedups; the loop: time outside forward passes."""


def log_factors(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[float]:
    """The logarithm of the factor by which each of `FACTORS` makes the cell `after` faster than `before`; NaN where
    passes were not timed. before, after: rows of the table of cells.

    speedup = τ / (d + v) · efficiency, with the draft cost d of a round and its verification cost v. The change of d + v
    is divided between d and v in proportion to their differences (logarithmic mean Divisia index, Ang 2004), which
    leaves no remainder.
    """
    lengths, efficiencies, verify = (
        [row[name] for row in (before, after)] for name in ("acceptance_length", "efficiency", "verify_cost")
    )
    rounds = [row["acceptance_length"] / row["predicted_speedup"] for row in (before, after)]  # d + v
    draft = [cost - verification for cost, verification in zip(rounds, verify, strict=True)]
    if not all(map(math.isfinite, (*lengths, *rounds, *verify, *efficiencies))):
        return [NAN] * len(FACTORS)
    change = math.log(rounds[1] / rounds[0])
    per_cost = change / (rounds[1] - rounds[0]) if rounds[1] != rounds[0] else 1 / rounds[0]
    return [
        math.log(lengths[1] / lengths[0]),
        -per_cost * (draft[1] - draft[0]),
        -per_cost * (verify[1] - verify[0]),
        math.log(efficiencies[1] / efficiencies[0]),
    ]
