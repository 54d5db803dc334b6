"""Compute speedups, paired by prompt. Tokens are counted as the token ids that were emitted, never as re-tokenized text.

The unit is a group: the prompts that ran in one batch, which is one prompt at batch size 1. Times belong to the whole batch, so
the tokens of a group are summed over its prompts before they are divided by a time. A group may be measured several times: in one
process (repeats), and by other runs of the job in processes of their own (replicates).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeVar

import numpy as np
import pandas as pd

from specrig.analysis.statistics import Estimate, Interval, geometric_mean, interval, mean, ratio
from specrig.measurement.records import Record, Run

Scope = Literal["decode", "end_to_end"]


def group_times(records: Iterable[Record]) -> pd.DataFrame:
    """A table of the times and token counts of one cell, indexed by (group, replicate, repeat).

    `rows` is the number of prompts in the group. The other columns exist for the method and, with the prefix `baseline_`, for the
    baseline: `tokens` (all emitted tokens), `decode_tokens` (without those that prefill emitted, usually the first), `decode_s`,
    `ttft_s`, `prefill_s` (`ttft_s` and the drafter's own prefill) and `energy_j` (the whole generation, NaN where not counted).
    Times in seconds and energies in joules are those of the whole batch.
    """
    grouped: dict[tuple[int, int, int], list[Record]] = {}
    for record in records:
        grouped.setdefault((record.group, record.replicate, record.repeat), []).append(record)
    rows = [
        {
            "rows": len(members),
            **_times([record.run for record in members], ""),
            **_times([record.baseline for record in members], "baseline_", alone=members[0].baseline_alone),
        }
        for members in grouped.values()
    ]
    index = pd.MultiIndex.from_tuples(list(grouped), names=["group", "replicate", "repeat"])
    return pd.DataFrame(rows, index=index)


def log_ratios(times: pd.DataFrame, scope: Scope = "decode") -> pd.Series:
    """log(baseline seconds per token / method seconds per token), indexed by (group, replicate), as a mean over repeats.

    times: the result of `group_times`. scope "decode": seconds per token are decode_s / decode_tokens. scope "end_to_end": they
    are (prefill_s + decode_s) / tokens. A group in which either side decoded no token (end of sequence came first) is left out.
    """
    prefill, tokens = (0.0, "decode_tokens") if scope == "decode" else (1.0, "tokens")
    column = dict(zip(times, times.to_numpy(dtype=float).T, strict=True))  # column by column pandas makes a new index for each
    with np.errstate(divide="ignore", invalid="ignore"):
        method, baseline = (
            (prefill * column[f"{side}prefill_s"] + column[f"{side}decode_s"]) / column[f"{side}{tokens}"]
            for side in ("", "baseline_")
        )
        logs = np.log(baseline / method)
    defined = (column["decode_tokens"] > 0) & (column["baseline_decode_tokens"] > 0) & np.isfinite(logs)
    return _together(pd.Series(logs[defined], index=times.index[defined]), ["group", "replicate"], "mean")


def log_rates(times: pd.DataFrame) -> pd.Series:
    """log(decode tokens / decode seconds) of the method, indexed by (group, replicate), without groups that decoded nothing."""
    sums = _together(times[["decode_tokens", "decode_s"]], ["group", "replicate"], "sum")
    sums = sums[(sums["decode_tokens"] > 0) & (sums["decode_s"] > 0)]
    return pd.Series(np.log(sums["decode_tokens"] / sums["decode_s"]), index=sums.index)


def log_speedups(times: pd.DataFrame, scope: Scope = "decode") -> pd.Series:
    """The mean of `log_ratios` over the replicates of each group, indexed by group."""
    return _together(log_ratios(times, scope), ["group"], "mean")


def speedup(times: pd.DataFrame, scope: Scope = "decode") -> float:
    """The geometric mean of the speedups of all groups; NaN if no group has one."""
    return geometric_mean(np.exp(log_speedups(times, scope)))


def speedup_interval(times: pd.DataFrame, scope: Scope = "decode", runs: Estimate | None = None) -> Interval:
    """95 % interval of `speedup` over groups; NaN for fewer than two groups.

    runs: what whole runs of the job add to the mean of the logarithms (`replicates.BetweenRuns.of_mean`). None means not known;
    the interval then covers only the choice of groups.
    """
    logs = mean(log_speedups(times, scope))
    return interval(logs + runs if runs else logs, scale=np.exp)


def tokens_per_s(times: pd.DataFrame, side: Literal["", "baseline_"] = "") -> float:
    """Throughput of decoding: all decode tokens / all decode seconds; NaN without tokens. side: "" for the method."""
    seconds, tokens = times[f"{side}decode_s"].sum(), times[f"{side}decode_tokens"].sum()
    return float(tokens / seconds) if tokens and seconds > 0 else float("nan")


def tokens_per_s_interval(times: pd.DataFrame, runs: Estimate | None = None) -> Interval:
    """95 % interval of the method's `tokens_per_s` over groups, repeats and replicates pooled. runs: as in `speedup_interval`."""
    units = _together(times[["decode_tokens", "decode_s"]], ["group"], "sum")
    return _rate_interval(units["decode_tokens"], units["decode_s"], runs)


def ms_per_token(times: pd.DataFrame, side: Literal["", "baseline_"] = "") -> float:
    """Milliseconds between two tokens of one sequence (TPOT): 1000 · Σ decode_s · rows / Σ decode tokens; NaN without tokens."""
    tokens = times[f"{side}decode_tokens"].sum()
    return float(1000 * (times[f"{side}decode_s"] * times["rows"]).sum() / tokens) if tokens else float("nan")


def baseline_drift(records: Iterable[Record]) -> float:
    """How much slower per token the baseline's second run was than its first, as a share and a mean over groups.

    NaN where baseline and method alternated, so that there is no second run.
    """
    drifts = {
        (record.group, record.replicate, record.repeat): record.baseline_drift
        for record in records
        if record.baseline_drift is not None
    }
    return float(np.mean(list(drifts.values()))) if drifts else float("nan")


def ms_per_token_interval(times: pd.DataFrame, runs: Estimate | None = None) -> Interval:
    """95 % interval of the method's `ms_per_token` over groups, repeats and replicates pooled. runs: as in `speedup_interval`."""
    units = _together(times.assign(row_s=times["decode_s"] * times["rows"])[["row_s", "decode_tokens"]], ["group"], "sum")
    low, high = _rate_interval(units["row_s"], units["decode_tokens"], runs)
    return 1000 * low, 1000 * high


Indexed = TypeVar("Indexed", pd.Series, pd.DataFrame)


def _together(found: Indexed, levels: list[str], how: Literal["mean", "sum"]) -> Indexed:
    """Mean or sum of what agrees on the `levels` of its index, sorted by them. Where nothing does, as without repeats, no slow grouping."""
    others: Any = [name for name in found.index.names if name not in levels]
    index = found.index.droplevel(others)
    if not index.is_unique:
        return found.groupby(level=levels).agg(how)
    apart = found.set_axis(index)
    return apart if index.is_monotonic_increasing else apart.sort_index()


def _rate_interval(above: pd.Series, below: pd.Series, runs: Estimate | None) -> Interval:
    """95 % interval of Σ above / Σ below, both positive, computed for the logarithm."""
    rate = ratio(above, below).log()
    return interval(rate + runs if runs else rate, scale=np.exp)


def _times(runs: list[Run], side: str, *, alone: bool = False) -> dict[str, float]:
    # Every row of a batch carries the batch's times (max() says so without trusting one row); prompts run alone add up.
    total = sum if alone else max
    energies = [run.energy_j for run in runs if run.energy_j is not None]
    return {
        f"{side}tokens": sum(len(run.tokens) for run in runs),
        f"{side}decode_tokens": sum(len(run.tokens) - run.prefill_tokens for run in runs),
        f"{side}decode_s": total(run.decode_s for run in runs),
        f"{side}ttft_s": total(run.ttft_s for run in runs),
        f"{side}prefill_s": total(run.prefill_s for run in runs),
        f"{side}energy_j": total(energies) if len(energies) == len(runs) else float("nan"),
    }
