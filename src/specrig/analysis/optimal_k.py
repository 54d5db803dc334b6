"""Find the best k by measurement and by prediction, and compute how much the usual default loses against it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from specrig.analysis.cells import by_cell, identity, row_dicts, row_identity
from specrig.analysis.cross_fitting import Judged, cross_fit
from specrig.analysis.replicates import BetweenRuns, Layout, between, between_runs, layout
from specrig.analysis.speedup import group_times, log_ratios, log_speedups
from specrig.analysis.statistics import UNKNOWN, interval, mean
from specrig.measurement.records import Record

DEFAULT_K = 4
"""Tokens drafted per round by those who have not measured which k is best."""
KEYS = ["engine", "pair", "method", "variant", "task", "temperature", "batch_size"]
COLUMNS = [
    *KEYS,
    *["ks", "best_k", "chosen_ks", "speedup", "speedup_low", "speedup_high", "predicted_k", "predicted_speedup"],
    *["default_speedup", "loss", "loss_low", "loss_high", "prompts"],
]


def optimal_k(cells: pd.DataFrame, records: Iterable[Record]) -> pd.DataFrame:
    """A table with one row per setting (`KEYS`) that was measured at two or more k's. Its columns are `COLUMNS`.

    cells: the result of `cells_table`. records: the records from which `cells` was computed.

    best_k: the k with the largest measured speedup over all prompts. predicted_k: the k with the largest
    `predicted_speedup`, which follows from acceptance length and pass costs of the same cells. Among equal k's both are
    the smallest.
    speedup: what choosing k by measurement gives. Each half of the prompts is judged at the k that the other half chose
    (`cross_fit`), so that luck does not flatter it. chosen_ks: the two choices, e.g. "4, 5".
    loss: 1 - speedup at `DEFAULT_K` / `speedup`, paired by prompt. It is negative where the default did better than the
    chosen k.

    speedup and loss have 95 % intervals over prompts and runs. Both are NaN with a single prompt; loss is also NaN
    where the default k was not measured.
    """
    grouped = by_cell(records)
    speeds = {identity(members[0].cell): log_speedups(group_times(members)) for members in grouped.values()}
    runs = between(grouped)
    ratios = (
        {identity(members[0].cell): log_ratios(group_times(members)) for members in grouped.values()} if runs else {}
    )
    gain_runs = _gain_runs(cells, ratios) if runs else {}
    rows = []
    for members in _settings(cells):
        best = max(members, key=lambda found: found["speedup"])
        known = [found for found in members if not np.isnan(found["predicted_speedup"])]
        predicted = max(
            known, key=lambda found: found["predicted_speedup"], default={"k": np.nan, "predicted_speedup": np.nan}
        )
        row = {key: best[key] for key in KEYS} | {
            "ks": ", ".join(str(found["k"]) for found in members),
            "best_k": best["k"],
            "predicted_k": predicted["k"],
            "predicted_speedup": predicted["predicted_speedup"],
            "prompts": best["prompts"],
        }
        usual = [found for found in members if found["k"] == DEFAULT_K]
        if usual:
            row["default_speedup"] = usual[0]["speedup"]
        by_k = {found["k"]: {row["task"]: speeds[row_identity(found)]} for found in members}
        judged = cross_fit(by_k)
        if judged:
            own = [ratios[row_identity(found)] for found in members] if runs else []
            replicates = min((len(logs.index.unique("replicate")) for logs in own), default=1)
            job = (row["engine"], row["pair"])
            row |= _judged(
                row["task"],
                judged,
                by_k[DEFAULT_K][row["task"]] if usual else None,
                runs.get(job),
                gain_runs.get(job),
                replicates,
            )
        rows.append(row)
    return pd.DataFrame(rows, columns=COLUMNS)


def _judged(
    task: str,
    judged: Judged,
    default: pd.Series | None,
    runs: BetweenRuns | None,
    gain_runs: BetweenRuns | None,
    replicates: int,
) -> dict[str, Any]:
    """The columns of a row that follow from cross-fitting. default: log speedups at `DEFAULT_K`, or None."""

    def ends(logs: pd.Series, runs: BetweenRuns | None) -> tuple[float, float, float]:
        found = mean(logs) + runs.of_mean(replicates) if runs else mean(logs)
        low, high = interval(found, scale=np.exp) if len(logs) > 1 else UNKNOWN
        return float(np.exp(found.value)), low, high

    logs = judged.logs[task]
    row: dict[str, Any] = {"chosen_ks": ", ".join(map(str, judged.ks))}
    row |= dict(zip(("speedup", "speedup_low", "speedup_high"), ends(logs, runs), strict=True))
    if default is not None:
        kept, low, high = ends(default.loc[logs.index] - logs, gain_runs)
        row |= {"loss": 1 - kept, "loss_low": 1 - high, "loss_high": 1 - low}
    return row


def _settings(cells: pd.DataFrame) -> list[list[dict[str, Any]]]:
    """The cells, sorted by k, of every setting (values of `KEYS`) with two or more k's."""
    frame = cells[cells["k"] > 0].assign(variant=cells["variant"].fillna("")).dropna(subset=["speedup"])
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in row_dicts(frame[[*KEYS, "k", "speedup", "predicted_speedup", "prompts"]]):
        found.setdefault(tuple(row[key] for key in KEYS), []).append(row)
    return [sorted(members, key=lambda row: row["k"]) for members in found.values() if len(members) > 1]


def _gain_runs(cells: pd.DataFrame, ratios: dict[tuple[Any, ...], pd.Series]) -> dict[tuple[str, str], BetweenRuns]:
    """(engine, pair) -> what whole runs add to the difference between a k and the default."""
    found: dict[tuple[str, str], dict[str, list[Layout]]] = {}
    for members in _settings(cells):
        logs = {row["k"]: ratios[row_identity(row)] for row in members}
        first = members[0]
        jobs = found.setdefault((first["engine"], first["pair"]), {}).setdefault(first["method"], [])
        jobs += [layout((logs[k] - logs[DEFAULT_K]).dropna()) for k in logs if DEFAULT_K in logs and k != DEFAULT_K]
    pools = {key: between_runs(jobs) for key, jobs in found.items()}
    return {key: pool for key, pool in pools.items() if pool}
