"""Explain why a measured speedup differs from the predicted one although nothing disturbed the measurement."""

from __future__ import annotations

from collections.abc import Sequence

from specrig.analysis.acceptance import acceptance_length
from specrig.measurement.records import Record, baselines, groups


def explained_efficiency(records: Sequence[Record]) -> float:
    """The efficiency (measured / predicted speedup) that an undisturbed replicate should have; NaN without timed
    passes.

    It is computed from sums over the replicate's records, as the product of two factors. The first compares the time
    that is spent outside the forward passes; it is above 1 where plain decoding spends a larger share of its time there
    than the method does. The second is below 1 where rows of a batch, or a last round, emit fewer tokens per pass than
    the acceptance length says.

    The measured efficiency differs a little from this product, because the speedup is a geometric mean over prompts. It
    differs much only where the times of single groups do not fit the times of the others.
    """
    seconds, passes, tokens, calls = ({"run": 0.0, "baseline": 0.0} for _ in range(4))
    for members in groups(records):
        for side, runs in (("run", [members[0].run]), ("baseline", baselines(members))):
            alone = len(runs) == len(members)
            for run in runs:
                rows = [run] if alone else [getattr(record, side) for record in members]
                seconds[side] += run.decode_s
                passes[side] += sum(spent for _, spent in (*run.target_passes.values(), *run.draft_passes.values()))
                calls[side] += len(rows) * sum(number for number, _ in run.target_passes.values())
                tokens[side] += sum(len(row.tokens) - row.prefill_tokens for row in rows)
    length = acceptance_length(records)
    if min(*seconds.values(), *passes.values(), *tokens.values(), *calls.values()) <= 0 or not length > 0:
        return float("nan")
    loop = (seconds["baseline"] / passes["baseline"]) / (seconds["run"] / passes["run"])
    rows_effect = tokens["run"] / calls["run"] / length / (tokens["baseline"] / calls["baseline"])
    return loop * rows_effect
