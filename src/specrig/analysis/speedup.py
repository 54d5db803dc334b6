"""Compute speedups, paired by prompt. Tokens are counted as the token ids that were emitted, never as re-tokenized
text.

The unit is a group: the prompts that ran in one batch, which is one prompt at batch size 1. Times belong to the whole
batch, so the tokens of a group are summed over its prompts before they are divided by a time. Times are those that the
repeats of a generation give (`measurement.repeats`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from specrig.analysis.statistics import Estimate, geometric_mean, mean, ratio
from specrig.measurement.records import Record, Run

Scope = Literal["decode", "end_to_end"]
Values = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Times:
    """What `group_times` returns: arrays, since a data frame's overhead for a cell's few rows is many times their
    arithmetic.

    groups: the group of each row. columns: name -> values.
    """

    groups: Sequence[int]
    columns: dict[str, Values]

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.groups)

    def __getitem__(self, name: str) -> Values:
        """A column's values."""
        return self.columns[name]


def group_times(records: Iterable[Record]) -> Times:
    """A table of the times and token counts of one cell, with a row for each group.

    Each column exists for the method and, with the prefix `baseline_`, for the baseline: `rows` (prompts that decode
    together: the group's, or one for a baseline that runs alone), `tokens` (all emitted tokens), `decode_tokens`
    (without those that prefill emitted, usually the first), `decode_s`, `ttft_s`, `prefill_s` (`ttft_s` and the
    drafter's own prefill) and `energy_j` (the whole generation, NaN where not counted). Times in seconds and energies
    in joules are those of the whole batch. Of a baseline that runs alone they are sums over the prompts, but
    `baseline_ttft_s` is their mean.
    """
    grouped: dict[int, list[Record]] = {}
    for record in records:
        grouped.setdefault(record.group, []).append(record)
    rows = [
        {
            "rows": len(members),
            "baseline_rows": 1 if members[0].baseline_alone else len(members),
            **_times([record.run for record in members], ""),
            **_times([record.baseline for record in members], "baseline_", alone=members[0].baseline_alone),
        }
        for members in grouped.values()
    ]
    return Times(list(grouped), {name: np.array([row[name] for row in rows]) for name in rows[0]})


def log_speedups(times: Times, scope: Scope = "decode") -> pd.Series:
    """log(baseline seconds per token / method seconds per token), indexed by group.

    times: the result of `group_times`. scope "decode": seconds per token are decode_s / decode_tokens. scope
    "end_to_end": they are (prefill_s + decode_s) / tokens. A group in which either side decoded no token is left out:
    end of sequence came first, or (for "decode" alone) the answer arrived at once.
    """
    prefill, tokens = (0.0, "decode_tokens") if scope == "decode" else (1.0, "tokens")
    with np.errstate(divide="ignore", invalid="ignore"):
        method, baseline = (
            (prefill * times[f"{side}prefill_s"] + times[f"{side}decode_s"]) / times[f"{side}{tokens}"]
            for side in ("", "baseline_")
        )
        logs = np.log(baseline / method)
    least = 0 if scope == "decode" else 1
    defined = (times[tokens] > least * times["rows"]) & (times[f"baseline_{tokens}"] > least * times["rows"])
    return _by_group(times, logs, defined & np.isfinite(logs))


def log_rates(times: Times) -> pd.Series:
    """log(decode tokens / decode seconds) of the method by group, without empty groups."""
    tokens, seconds = times["decode_tokens"], times["decode_s"]
    with np.errstate(divide="ignore", invalid="ignore"):
        return _by_group(times, np.log(tokens / seconds), (tokens > 0) & (seconds > 0))


def speedup(times: Times, scope: Scope = "decode") -> float:
    """The geometric mean of the speedups of all groups; NaN if no group has one."""
    return geometric_mean(np.exp(log_speedups(times, scope)))


def log_speedup(times: Times, scope: Scope = "decode") -> Estimate:
    """The logarithm of `speedup`, as a mean over groups."""
    return mean(log_speedups(times, scope))


def tokens_per_s(times: Times, side: Literal["", "baseline_"] = "") -> float:
    """Throughput of decoding: all decode tokens / all decode seconds; NaN without tokens. side: "" for the method."""
    seconds, tokens = times[f"{side}decode_s"].sum(), times[f"{side}decode_tokens"].sum()
    return float(tokens / seconds) if tokens and seconds > 0 else float("nan")


def log_tokens_per_s(times: Times) -> Estimate:
    """The logarithm of the method's `tokens_per_s`, by prompts."""
    return _log_rate(times["decode_tokens"], times["decode_s"])


def ms_per_token(times: Times, side: Literal["", "baseline_"] = "") -> float:
    """Milliseconds between two tokens of a sequence (TPOT): 1000 · Σ decode_s · rows / Σ decode tokens."""
    tokens = times[f"{side}decode_tokens"].sum()
    return float(1000 * (times[f"{side}decode_s"] * times[f"{side}rows"]).sum() / tokens) if tokens else float("nan")


def log_s_per_token(times: Times) -> Estimate:
    """The logarithm of the method's `ms_per_token` / 1000, by prompts."""
    return _log_rate(times["decode_s"] * times["rows"], times["decode_tokens"])


def _by_group(times: Times, values: Values, defined: Values) -> pd.Series:
    groups = np.array(times.groups, dtype=int)[defined]
    return pd.Series(values[defined], index=pd.Index(groups, name="group")).sort_index()


def _log_rate(above: Values, below: Values) -> Estimate:
    """The logarithm of Σ above / Σ below over groups, both positive."""
    return ratio(above, below).log()


def _times(runs: list[Run], side: str, *, alone: bool = False) -> dict[str, float]:
    # Every row of a batch carries the batch's times (max() says so without trusting one row); prompts run alone add up.
    total = sum if alone else max
    energies = [run.energy_j for run in runs if run.energy_j is not None]
    return {
        f"{side}tokens": sum(len(run.tokens) for run in runs),
        f"{side}decode_tokens": sum(len(run.tokens) - run.prefill_tokens for run in runs),
        f"{side}decode_s": total(run.decode_s for run in runs),
        f"{side}ttft_s": (fmean if alone else max)(run.ttft_s for run in runs),
        f"{side}prefill_s": total(run.prefill_s for run in runs),
        f"{side}energy_j": total(energies) if len(energies) == len(runs) else float("nan"),
    }
