"""What makes measured speedup differ from the predicted one where nothing is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specrig.analysis.acceptance import acceptance_length
from specrig.measurement.records import Record, Run


def explained_efficiency(records: Sequence[Record]) -> float:
    """The efficiency (measured over predicted speedup) of one replicate that is no disturbance, from its sums; NaN where passes were not timed.

    Two things make it: the loop's own time, which is above 1 where plain decoding spends more of its time outside its passes than the
    method does; and rows of a batch, or a last round, that emit less per pass than the acceptance length says, below 1. What is left
    (the speedup is a geometric mean over prompts) is small unless the times of single groups do not fit the others'.
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


def groups(records: Iterable[Record]) -> list[list[Record]]:
    """Records that ran in one batch, in the order they ran."""
    found: dict[tuple[int, int, int], list[Record]] = {}
    for record in records:
        found.setdefault((record.replicate, record.repeat, record.group), []).append(record)
    return [found[key] for key in sorted(found)]


def baselines(members: Sequence[Record]) -> list[Run]:
    """The baseline's runs of a group whose times add up: each row's own where they ran one by one, else one that stands for the batch."""
    return [record.baseline for record in (members if members[0].baseline_alone else members[:1])]
