"""Compare the order in which a source ranks methods with the order measured here.

Absolute speedups do not carry over from one machine and pair to another. The order of methods may: it is the part of a
reported table that a study on other hardware can confirm or contradict. A source's ranking is a set of its figures that
share everything but the method. Each is compared with every pair of the study that measured two or more of its methods,
each method at its best k.

Agreement is Kendall's τ (Kendall 1938; τ-b where figures are equal): 1 for the same order, -1 for the reverse. Its
interval follows from the scatter of prompts. All methods ran on the same prompts, so one random weight a prompt moves
all methods together. Means are drawn as Student's t would have them: mean + Σ weight · influence of the prompt, divided
by the root of a χ² variate over its degrees of freedom. How much whole runs differ is not in it, nor how exact the
source's own figures are, which no source states.

Why two methods changed places is read off the cost model: speedup = τ / (d + v) · efficiency, where τ is the acceptance
length, d the draft cost of a round and v the cost of verifying it, in one-token target passes. The logarithm of the
quotient of two speedups is then a sum of four terms. The round's cost is divided between d and v in proportion to their
differences (logarithmic mean Divisia index, Ang 2004), which leaves no remainder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import combinations
from operator import attrgetter
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from specrig.analysis.acceptance import emitted_by_prompt
from specrig.analysis.cells import IDENTITY, row_dicts
from specrig.analysis.disturbance import disturbed
from specrig.analysis.speedup import group_times, log_speedups
from specrig.analysis.statistics import LEVEL
from specrig.analysis.task_names import matches_task, of_benchmark, plain
from specrig.measurement.records import Record
from specrig.study.claims import Claim

METRICS = {"speedup": "speedup", "tokens_per_s": "speedup", "acceptance_length": "acceptance_length"}
"""Metric by which a source ranks methods -> column of the cells by which the study ranks them: tokens/s of one machine
rank as speedups.
"""
BASELINES = ("autoregressive", "naive_batching")
DRAWS = 4000
FACTORS = ("acceptance", "draft_cost", "verification_cost", "efficiency")
NAN = float("nan")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Ranking:
    """Figures of one source that differ in the method alone. figures: method -> its best figure."""

    claim: Claim
    """One of the claims, for what they share: source, target, task, temperature, hardware, batch, metric."""
    figures: Mapping[str, float]


@dataclass(frozen=True)
class Change:
    """Two methods that changed places: the source has `behind` after `ahead`, the study has it before.

    reported, measured: the quotient `behind` / `ahead`. certainty: the share of draws in which `behind` is before
    `ahead`.
    factors: `FACTORS` -> the factor by which it favours `behind`; their product is `measured`. NaN where passes were
    not timed or the order is one of acceptance lengths.
    """

    ahead: str
    behind: str
    reported: float
    measured: float
    certainty: float
    factors: Mapping[str, float]


@dataclass(frozen=True)
class OrderComparison:
    """A source's order beside the order measured on one pair.

    tasks: the study's tasks that were compared. exact: whether they are the source's own data. measured: method ->
    measure.
    tau, low, high: Kendall's τ with its 95 % interval, NaN where too few prompts are common to all methods.
    """

    ranking: Ranking
    engine: str
    pair: str
    temperature: float
    tasks: list[str]
    exact: bool
    measured: Mapping[str, float]
    tau: float
    low: float
    high: float
    changes: list[Change] = field(default_factory=list)


@dataclass(frozen=True)
class _Cell:
    """A cell's row, its measure (logarithm of a speedup, or acceptance length), and by how much each prompt moved it."""

    row: dict[str, Any]
    value: float
    influence: pd.Series


_conditions = attrgetter("source", "target", "task", "sampling_temperature", "hardware", "batch", "metric")
"""What the figures of a ranking share."""


def rankings(claims: Sequence[Claim]) -> list[Ranking]:
    """The rankings in a list of claims, in its order; a set of claims about fewer than two methods is none."""
    groups: dict[tuple[Any, ...], dict[str, float]] = {}
    first: dict[tuple[Any, ...], Claim] = {}
    for claim in claims:
        if claim.metric not in METRICS or claim.nucleus or claim.interval is None or claim.base_method in BASELINES:
            continue
        key = _conditions(claim)
        figures = groups.setdefault(key, {})
        first.setdefault(key, claim)
        figures[claim.base_method] = max(sum(claim.interval) / 2, figures.get(claim.base_method, 0.0))
    return [Ranking(first[key], figures) for key, figures in groups.items() if len(figures) > 1]


def compare_orders(
    claims: Sequence[Claim], best: pd.DataFrame, cells: Mapping[str, list[Record]]
) -> list[OrderComparison]:
    """Compare each ranking in `claims` with each pair of `best`, where the pair measured two or more of its methods.

    best: rows of the table of cells with the column `failed`, each method at its best k. cells: the records of each
    cell. Lossy methods, methods that failed the audit and, in orders of speed, disturbed cells do not take part. The
    smallest batch is compared.
    """
    fair = best[best["lossless"].astype(bool) & ~best["failed"].astype(bool)]
    fair = fair[~fair["method"].isin(BASELINES)]
    records = {tuple(getattr(own[0].cell, name) for name in IDENTITY): own for own in cells.values()}
    by_pair = {"speedup": _rows_by_pair(fair[~disturbed(fair)]), "acceptance_length": _rows_by_pair(fair)}

    @cache
    def measured(identity: tuple[Any, ...], column: str) -> _Cell:
        return _cell(rows[identity], records[identity], column)

    rows = {tuple(row[name] for name in IDENTITY): row for own in by_pair["acceptance_length"].values() for row in own}
    found = []
    for ranking in rankings(claims):
        column = METRICS[ranking.claim.metric]
        for (engine, pair), every in by_pair[column].items():
            temperature = (
                ranking.claim.sampling_temperature
                if ranking.claim.sampling_temperature is not None
                else min(row["temperature"] for row in every)
            )
            smallest = min(row["batch_size"] for row in every)
            comparable = [row for row in every if row["temperature"] == temperature and row["batch_size"] == smallest]
            tasks, exact = _tasks(ranking.claim, list(dict.fromkeys(row["task"] for row in comparable)))
            methods = _methods(ranking, comparable, tasks, partial(measured, column=column))
            if len(methods) > 1:
                found.append(_compare(ranking, (str(engine), str(pair), float(temperature)), tasks, exact, methods))
    return found


def _rows_by_pair(rows: pd.DataFrame) -> dict[tuple[Any, Any], list[dict[str, Any]]]:
    """(engine, pair) -> its rows, read once for all rankings."""
    found: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
    for row in row_dicts(rows):
        found.setdefault((row["engine"], row["pair"]), []).append(row)
    return found


def _tasks(claim: Claim, names: list[str]) -> tuple[list[str], bool]:
    """(the study's tasks that a claim's task is compared with, whether they hold the source's own data).

    A mean, or a figure without a task, is compared with the mean over all tasks, or over those of the source's own
    benchmark.
    """
    own = [name for name in names if of_benchmark(claim, name)]
    if claim.aggregate or not claim.task:
        return own or names, bool(own)
    same = [name for name in own or names if matches_task(claim, name)]
    alike = [name for name in names if plain(claim.task_name) in plain(name)]
    return (same or alike)[:1], bool(same and claim.data_set)


def _methods(
    ranking: Ranking, rows: Sequence[dict[str, Any]], tasks: list[str], measured: Callable[[tuple[Any, ...]], _Cell]
) -> dict[str, list[_Cell]]:
    """Method -> its cell for each task, of methods that the source ranks and that ran all tasks."""
    found: dict[str, list[_Cell]] = {}
    candidates: dict[tuple[Any, Any], dict[str, dict[str, Any]]] = {}
    for row in rows:
        if row["method"] in ranking.figures:
            candidates.setdefault((row["method"], row["variant"]), {})[row["task"]] = row
    for (method, _), by_task in candidates.items():
        if not tasks or not set(tasks) <= by_task.keys():
            continue
        own = [measured(tuple(by_task[task][name] for name in IDENTITY)) for task in tasks]
        other = found.get(str(method))
        if all(math.isfinite(cell.value) for cell in own) and (other is None or _value(own) > _value(other)):
            found[str(method)] = own
    return found


def _cell(row: dict[str, Any], records: list[Record], column: str) -> _Cell:
    if column == "speedup":
        logs = log_speedups(group_times(records))
        return _Cell(row, math.log(row["speedup"]), (logs - logs.mean()) / len(logs))
    counts = pd.DataFrame.from_dict(
        emitted_by_prompt(records), orient="index", columns=["emitted", "passes"], dtype=float
    )
    length = row["acceptance_length"]
    return _Cell(row, length, (counts["emitted"] - length * counts["passes"]) / counts["passes"].sum())


def _value(cells: Sequence[_Cell]) -> float:
    return float(np.mean([cell.value for cell in cells]))


def _compare(
    ranking: Ranking, setting: tuple[str, str, float], tasks: list[str], exact: bool, methods: dict[str, list[_Cell]]
) -> OrderComparison:
    names = [name for name in ranking.figures if name in methods]
    reported = np.array([ranking.figures[name] for name in names])
    values = np.array([_value(methods[name]) for name in names])
    draws = _draws([methods[name] for name in names])
    tau = float(kendall(reported, values))
    low = high = NAN
    if draws is not None:
        low, high = np.quantile(kendall(reported, draws), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        # τ has few values, and draws of an extreme order can only leave it.
        low, high = min(float(low), tau), max(float(high), tau)
    timed = METRICS[ranking.claim.metric] == "speedup"
    speeds = np.exp(values) if timed else values
    changes = []
    for one, two in combinations(range(len(names)), 2):
        ahead, behind = (one, two) if reported[one] > reported[two] else (two, one)
        if reported[one] != reported[two] and values[behind] > values[ahead]:
            certainty = float((draws[:, behind] > draws[:, ahead]).mean()) if draws is not None else NAN
            factors = _factors(methods[names[ahead]], methods[names[behind]]) if timed else dict.fromkeys(FACTORS, NAN)
            quotients = reported[behind] / reported[ahead], float(speeds[behind] / speeds[ahead])
            changes.append(Change(names[ahead], names[behind], float(quotients[0]), quotients[1], certainty, factors))
    measured = dict(zip(names, map(float, speeds), strict=True))
    return OrderComparison(ranking, *setting, tasks, exact, measured, tau, low, high, changes)


def kendall(reported: ArrayLike, measured: ArrayLike) -> Any:
    """Kendall's τ-b of `reported` [methods] and `measured` [..., methods]; NaN where all figures of one side are equal."""
    one, two = np.asarray(reported, dtype=float), np.asarray(measured, dtype=float)
    left, right = np.triu_indices(one.size, 1)
    ours, theirs = np.sign(two[..., left] - two[..., right]), np.sign(one[left] - one[right])
    with np.errstate(divide="ignore", invalid="ignore"):
        return (ours * theirs).sum(-1) / np.sqrt(np.abs(theirs).sum(-1) * np.abs(ours).sum(-1))


def _draws(methods: Sequence[Sequence[_Cell]]) -> Floats | None:
    """`DRAWS` draws of the methods' means over tasks [draws, methods]; None where a task has fewer than two common
    prompts.

    methods: the cells of each method, tasks in the same order.
    """
    random = np.random.default_rng(0)  # the same records give the same interval
    total = np.zeros((DRAWS, len(methods)))
    for cells in zip(*methods, strict=True):
        # [prompts, methods].
        shared = pd.concat([cell.influence for cell in cells], axis=1, join="inner").to_numpy(dtype=float)
        units = len(shared)
        if units < 2:
            return None
        moved = random.standard_normal((DRAWS, units)) @ (shared * math.sqrt(units / (units - 1)))
        scale = np.sqrt(random.chisquare(units - 1, DRAWS) / (units - 1))
        total += np.array([cell.value for cell in cells]) + moved / scale[:, None]
    return total / len(methods[0])


def _factors(ahead: Sequence[_Cell], behind: Sequence[_Cell]) -> dict[str, float]:
    """`FACTORS` -> the factor by which it makes `behind` faster than `ahead`, a geometric mean over tasks."""
    logs = [log_factors(one.row, two.row) for one, two in zip(ahead, behind, strict=True)]
    return dict(zip(FACTORS, map(float, np.exp(np.mean(logs, axis=0))), strict=True))


def log_factors(ahead: dict[str, Any], behind: dict[str, Any]) -> list[float]:
    """The logarithm of the factor by which each of `FACTORS` makes the cell `behind` faster than `ahead`; NaN where
    passes were not timed. ahead, behind: rows of the table of cells.
    """
    lengths, efficiencies = ([row[name] for row in (ahead, behind)] for name in ("acceptance_length", "efficiency"))
    verify = [row["verify_cost"] for row in (ahead, behind)]
    rounds = [row["acceptance_length"] / row["predicted_speedup"] for row in (ahead, behind)]  # d + v
    draft = [cost - own for cost, own in zip(rounds, verify, strict=True)]
    if not all(map(math.isfinite, (*lengths, *rounds, *verify, *efficiencies))):
        return [NAN] * len(FACTORS)
    change = math.log(rounds[1] / rounds[0])
    each = change / (rounds[1] - rounds[0]) if rounds[1] != rounds[0] else 1 / rounds[0]
    return [
        math.log(lengths[1] / lengths[0]),
        -each * (draft[1] - draft[0]),
        -each * (verify[1] - verify[0]),
        math.log(efficiencies[1] / efficiencies[0]),
    ]
