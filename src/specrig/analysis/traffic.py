"""Figures of servers under load, from the turns of each point: throughput, latencies, goodput, and where speculation stops
paying.

A turn's time, from the first request that counts to the end of the last one, is divided into `BLOCKS` blocks. Blocks
are the units of every interval, since requests that are served together are late together. A request that failed is
infinitely late and meets no limit, so no failure makes a figure better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from specrig.analysis.statistics import UNKNOWN, Estimate, Interval, interval, ratio
from specrig.measurement.traffic.records import Request, Turn, first_answers
from specrig.study.traffic import Limits

BLOCKS = 4
"""Blocks of a turn."""
PERCENTILES = (50, 90, 95, 99)
TAIL = 10
"""A percentile needs so many requests beyond it: 20 for p50, 100 for p90, 200 for p95, 1,000 for p99."""
KEPT_UP = 0.95
"""An open loop is saturated where the server answers less than this share of what arrives, beyond chance."""
LATE = 0.1
"""Largest tolerated lateness of the client, as a share of the median latency."""
SETTING = ["engine", "pair", "task", "temperature", "method", "variant", "k", "loop"]
"""Columns that name a curve over loads."""


def traffic_table(
    points: Iterable[Sequence[Turn]],
    limits: Limits,
) -> pd.DataFrame:
    """Two rows a point: `side` is `baseline` or `method`. Times are in seconds; NaN means not known.

    The last column, joules a token, is there where the device counts energy.
    """
    rows: list[dict[str, Any]] = []
    for turns in points:
        point, cell = turns[0].point, turns[0].point.cell
        about = cell.model_dump(include={*SETTING}) | {"loop": point.loop, "load": point.load}
        sides = {side: [turn for turn in turns if turn.is_baseline is side] for side in (True, False)}
        rates = {side: tokens_per_s(found) for side, found in sides.items()}
        reference = first_answers(turns)
        for side, found in sides.items():
            row = about | {"side": "baseline" if side else "method"} | _side(found, limits)
            row |= _with_interval("tokens_per_s", rates[side])
            compared = not side and point.loop == "closed"
            gain = rates[False].log() + _negative(rates[True].log()) if compared else _UNKNOWN
            row |= _with_interval("speedup", gain, np.exp)
            same = [
                request.tokens == reference[request.prompt_id]
                for turn in (found[1:] if side else found)
                for request in turn.requests
                if request.tokens and request.prompt_id in reference
            ]
            row["identical"] = float(np.mean(same)) if same and cell.temperature == 0 else math.nan
            rows.append(row)
    table = pd.DataFrame(rows, columns=[*COLUMNS, ENERGY])
    table = table.assign(predicted_speedup=predicted(table))
    return table.drop(columns=ENERGY) if table[ENERGY].isna().all() else table


def predicted(table: pd.DataFrame) -> pd.Series:
    """The speedup of each closed load that follows from plain decoding's own throughput; NaN where it is not known.

    A pass over m tokens takes t(m) = m / (tokens/s of plain decoding with m requests at once), whether they belong to m
    requests or to the drafts of fewer: v(b·n) of the cost model (docs/methods/cost_model.md). b requests that emit τ
    tokens a pass of n each are then τ · t(b) / t(b·n) times as fast. t is a straight line between loads, and beyond the
    largest one it goes on like the last line. Drafting is taken to be free.
    """
    closed = table[(table["loop"] == "closed") & (table["tokens_per_s"] > 0)]
    plain = closed[closed["side"] == "baseline"]
    setting = ["engine", "pair", "task", "temperature"]
    found = pd.Series(math.nan, table.index, dtype=float)
    for key, rows in closed[closed["side"] == "method"].groupby(setting, sort=False):
        own = plain[(plain[setting] == list(key)).all(axis=1)]
        passes = (own["load"] / own["tokens_per_s"]).groupby(own["load"]).median()
        if len(passes) < 2:
            continue
        loads, seconds = passes.index.to_numpy(float), passes.to_numpy(float)
        last = (seconds[-1] - seconds[-2]) / (loads[-1] - loads[-2])
        wide = rows["load"] * (1 + rows["drafted_per_pass"])
        wide_s = np.interp(wide, loads, seconds) + (wide - loads[-1]).clip(lower=0) * last
        found.loc[rows.index] = rows["acceptance_length"] * rows["load"].map(passes) / wide_s
    return found


def _side(turns: Sequence[Turn], limits: Limits) -> dict[str, Any]:
    """What does not depend on the other side."""
    every = [request for turn in turns for request in turn.requests]
    counted = [request for turn in turns for request in turn.counted]
    blocks = _blocks(turns, lambda turn: turn.counted, lambda request: request.due_s)
    seconds = np.concatenate([np.diff(edges(turn)) for turn in turns])
    row: dict[str, Any] = {
        "sent": len(every),
        "answered": sum(not request.error for request in every),
        "timed_out": sum(request.timed_out for request in every),
        "other_errors": sum(bool(request.error) and not request.timed_out for request in every),
        "counted": len(counted),
    }
    times = {name: np.array([TIMES[name](request) for request in counted]) for name in TIMES}
    for name, values in times.items():
        for percent in PERCENTILES:
            value, low, high = percentile(values, blocks, percent)
            row |= {f"{name}_p{percent}{end}": found for end, found in zip(ENDS, (value, low, high), strict=True)}
    known = {name: most for name in TIMES if (most := getattr(limits, f"{name}_s")) is not None}

    def met(request: Request) -> bool:
        return not request.error and all(TIMES[name](request) <= most for name, most in known.items())

    row["requests_per_s"] = _answered_per_s(turns, seconds, lambda request: not request.error).value
    goodput = _answered_per_s(turns, seconds, met) if known else _UNKNOWN
    row |= _with_interval("goodput", goodput) | {"met": float(np.mean([*map(met, counted)])) if known else math.nan}
    row |= _acceptance(turns)
    late = max(request.sent_s - request.due_s for request in counted)
    joules = sum(math.nan if turn.energy_j is None else turn.energy_j for turn in turns)
    row |= {
        ENERGY: joules / (sum(len(request.tokens) for request in every) or math.nan),
        "client_share": sum(turn.client_cpu_s for turn in turns)
        / sum(max(request.last_s for request in turn.requests) for turn in turns),
        "late_s": late,
        "saturated": turns[0].point.loop == "open" and _outran(turns),
        "client_late": late > LATE * float(np.median(times["latency"])),
    }
    return row


def _answered_per_s(turns: Sequence[Turn], seconds: NDArray[np.float64], counts: Callable[[Request], bool]) -> Estimate:
    """Requests that were answered while those that count were under way, those of warm-up and cool-down included, by
    `seconds` of each block: with the ones that count alone, the time in which the last of them are answered would hold
    too few.

    counts: whether a request counts.
    """

    def done(turn: Turn) -> list[Request]:
        first, *_, last = edges(turn)
        return [request for request in turn.requests if counts(request) and first < request.last_s <= last]

    return ratio(np.bincount(_blocks(turns, done, lambda request: request.last_s), minlength=len(seconds)), seconds)


def _outran(turns: Sequence[Turn]) -> bool:
    """Whether more requests arrived than were answered: those under way grew by more than their share, and by more than
    two standard deviations, if arrivals and answers are Poisson.

    Before the first answer the number under way grows at any rate; this time does not count. A server that answers
    nothing is outrun.
    """
    arrived = before = after = 0
    for turn in turns:
        first, last = turn.counted[0].due_s, turn.counted[-1].due_s
        answered = min((request.last_s for request in turn.requests if not request.error), default=math.inf)
        if answered == math.inf:
            return True
        first = max(first, answered) if answered < last else first
        arrived += sum(first < request.due_s <= last for request in turn.requests)
        before, after = before + _under_way(turn, first), after + _under_way(turn, last)
    return after - before > max((1 - KEPT_UP) * arrived, 2 * math.sqrt(before + after))


def _under_way(turn: Turn, at_s: float) -> int:
    """How many requests were due and not answered. A request that failed is never answered."""
    return sum(request.due_s <= at_s and (bool(request.error) or request.last_s > at_s) for request in turn.requests)


def _tpot(request: Request) -> float:
    later = len(request.tokens) - request.first_tokens
    if request.error or request.first_s is None:
        return math.inf
    if not later:  # one token, or a stream that arrived at once
        return 0.0 if len(request.tokens) == 1 else math.nan
    return (request.last_s - request.first_s) / later


TIMES = {
    "ttft": lambda request: math.inf if request.first_s is None else request.first_s - request.due_s,
    "tpot": _tpot,
    "latency": lambda request: math.inf if request.error else request.last_s - request.due_s,
}
"""Name -> seconds of a request; infinite where that did not come, NaN where nobody knows."""
ENDS = ("", "_low", "_high")
COLUMNS = [
    *(*SETTING, "load", "side", "sent", "answered", "timed_out", "other_errors", "counted", "requests_per_s"),
    *(f"tokens_per_s{end}" for end in ENDS),
    *(f"speedup{end}" for end in ENDS),
    *(f"{name}_p{percent}{end}" for name in TIMES for percent in PERCENTILES for end in ENDS),
    *(f"goodput{end}" for end in ENDS),
    *("met", "acceptance_length", "acceptance_rate", "drafted_per_pass", "predicted_speedup"),
    *("identical", "client_share", "late_s", "saturated", "client_late"),
]
ENERGY = "energy_per_token_j"
"""A column that not every study has, named as that of cells."""
_UNKNOWN = Estimate(math.nan, math.nan, math.nan)


def edges(turn: Turn) -> NDArray[np.float64]:
    """The bounds of the turn's blocks, in seconds since it began."""
    return np.linspace(turn.counted[0].due_s, max(request.last_s for request in turn.counted), BLOCKS + 1)


def _blocks(
    turns: Sequence[Turn], requests: Callable[[Turn], Sequence[Request]], at: Callable[[Request], float]
) -> NDArray[np.int64]:
    """The number of the block, of all turns, in which each of the `requests` of the turns is by its time `at`."""
    found = [
        number * BLOCKS + np.searchsorted(edges(turn)[1:-1], [at(request) for request in requests(turn)], side="right")
        for number, turn in enumerate(turns)
    ]
    return np.concatenate(found).astype(np.int64)


def tokens_per_s(turns: Sequence[Turn]) -> Estimate:
    """Tokens that the server gave while requests that count were under way, those of warm-up and cool-down included, by
    seconds. Between a request's first and last tokens the others are taken to come evenly.
    """
    tokens, seconds = [], []
    for turn in turns:
        bounds = edges(turn)[:, None]
        answered = [
            (request.first_s, request.last_s, request.first_tokens, len(request.tokens))
            for request in turn.requests
            if not request.error
        ]
        first, last, early, every = np.array(answered, dtype=float).reshape(-1, 4).T
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.nan_to_num((bounds - first) / (last - first), nan=1.0).clip(0, 1)
        arrived = np.where(bounds >= first, early + (every - early) * share, 0.0).sum(1)
        tokens.append(np.diff(arrived))
        seconds.append(np.diff(bounds[:, 0]))
    return ratio(np.concatenate(tokens), np.concatenate(seconds))


def percentile(values: NDArray[np.float64], blocks: NDArray[np.int64], percent: int) -> tuple[float, float, float]:
    """(value, low, high) of a percentile; NaN where fewer than `TAIL` values lie beyond it, or one is not known.

    The interval is Woodruff's (1952): that of the share of values below the percentile, whose units are blocks, read off
    the values' own distribution.
    """
    if round(len(values) * (100 - percent) / 100, 9) < TAIL or np.isnan(values).any():
        return (math.nan, *UNKNOWN)
    ordered = np.sort(values)
    value = float(np.quantile(ordered, percent / 100, method="inverted_cdf"))
    below = np.bincount(blocks, values <= value, int(blocks.max()) + 1)
    low, high = interval(ratio(below, np.bincount(blocks)))
    shift = percent / 100 - below.sum() / len(values)  # several values may be equal to the percentile
    low, high = low + shift, high + shift
    if not 0 <= low <= high <= 1:
        return (value, *UNKNOWN)
    ends = np.quantile(ordered, [low, high], method="inverted_cdf")
    return value, float(ends[0]), float(ends[1])


def _acceptance(turns: Sequence[Turn]) -> dict[str, float]:
    """By the server's own counters over the turns: tokens of a pass, accepted / drafted tokens, drafted tokens a pass."""
    counted = [(turn, turn.counts) for turn in turns if turn.counts is not None]
    passes, drafted, accepted = (
        sum(getattr(each, name) or 0 for _, each in counted) for name in ("rounds", "drafted", "accepted")
    )
    # The passes of a request that failed were counted, and nobody knows how many tokens they gave.
    whole = [(turn, each) for turn, each in counted if not any(request.error for request in turn.requests)]
    decoded = sum(len(request.tokens) - 1 for turn, _ in whole for request in turn.requests)
    of_whole = sum(each.rounds for _, each in whole)
    return {
        "acceptance_length": decoded / of_whole if of_whole else math.nan,
        "acceptance_rate": accepted / drafted if drafted else math.nan,
        "drafted_per_pass": drafted / passes if passes else math.nan,
    }


def crossovers(table: pd.DataFrame) -> pd.DataFrame:
    """One row a curve of the closed loop: `crossover` is the concurrency at which the speedup falls to 1, with its
    interval.

    It is read off the line between two loads, in logarithms. Its interval is where the speedup's own interval falls to
    1. 0: below the smallest load; infinite: beyond the largest one.
    """
    rows = []
    closed = table[(table["loop"] == "closed") & (table["side"] == "method")]
    for key, curve in closed.groupby(SETTING, sort=False):
        curve = curve.sort_values("load")
        if len(curve) < 2:
            continue
        loads = curve["load"].to_numpy(float)
        found = {end: _falls_to_1(loads, curve[f"speedup{end}"].to_numpy(float)) for end in ENDS}
        named = dict(zip(SETTING, key, strict=True))
        rows.append(
            named | {f"crossover{end}": value for end, value in found.items()} | {"least": loads[0], "most": loads[-1]}
        )
    return pd.DataFrame(rows, columns=[*SETTING, *(f"crossover{end}" for end in ENDS), "least", "most"])


def _falls_to_1(loads: NDArray[np.float64], values: NDArray[np.float64]) -> float:
    if np.isnan(values).any():
        return math.nan
    if values[0] < 1:
        return 0.0
    falls = np.flatnonzero(values < 1)
    if not falls.size:
        return math.inf
    at = int(falls[0])
    (left, right), (high, low) = np.log(loads[at - 1 : at + 1]), np.log(values[at - 1 : at + 1])
    return float(np.exp(left + (right - left) * high / (high - low)))


def _negative(estimate: Estimate) -> Estimate:
    return replace(estimate, value=-estimate.value)


def _with_interval(name: str, estimate: Estimate, scale: Any = np.asarray) -> dict[str, float]:
    found: Interval = interval(estimate, scale=scale)
    return {name: float(scale(estimate.value)), f"{name}_low": found[0], f"{name}_high": found[1]}
