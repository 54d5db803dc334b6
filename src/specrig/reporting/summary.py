"""Cells brought down to method × task: the best k of each method, speedups with intervals, the audit's verdict."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import pandas as pd

from specrig.analysis.acceptance import emitted_by_prompt
from specrig.analysis.cells import IDENTITY, by_cell, row_dicts
from specrig.analysis.crossfit import crossfit
from specrig.analysis.disturbance import disturbed
from specrig.analysis.replicates import between, count
from specrig.analysis.speedup import group_times, log_speedups
from specrig.analysis.statistics import Estimate, average, interval, mean, stratified_ratio_interval
from specrig.measurement.records import Record

LEVELS = ["engine", "pair", "temperature", "batch_size", "method", "variant"]
"""What a row of the method × task tables is, besides its k."""

MEASURES = ["acceptance_length", "acceptance_length_low", "acceptance_length_high", "acceptance_rate", "alpha"]
MEAN = "geometric_mean"
CROSSFIT = "crossfit"
"""Column of the geometric mean over tasks that choosing k by measuring gets, judged on prompts that had no part in the choice."""
BASELINE_TEST = "baseline against transformers' generate"
"""The audit's test of plain decoding itself."""

Key = tuple[Hashable, ...]
Sweep = dict[int, dict[str, pd.Series]]
"""k -> task -> log speedups by group."""


def cell_logs(records: list[Record]) -> dict[Key, pd.Series]:
    """Cell identity (values of `IDENTITY`) -> log speedups by group."""
    result = {}
    for members in by_cell(records).values():
        cell = members[0].cell
        result[tuple(getattr(cell, name) for name in IDENTITY)] = log_speedups(group_times(members))
    return result


def best_rows(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells of each method's best k, all columns kept.

    Best: of the ks that ran the most tasks, and of those with the fewest disturbed ones, the one with the largest geometric mean speedup
    over tasks at the lowest temperature (0 where it ran), per engine, pair, batch size, method and variant. Other temperatures show that same k; where it did
    not run there, their own best. The choice and its speedup come from the same prompts, so the best of many ks is a little
    flattered: the tables' captions say so, and `speedup_summary` has what it gets on other prompts.
    """
    frame = cells.dropna(subset=["speedup"])
    if frame.empty:
        return frame
    frame = frame.assign(variant=frame["variant"].fillna(""), _log=np.log(frame["speedup"].astype(float)))
    frame = frame.assign(_disturbed=disturbed(frame))
    ranked = frame.groupby([*LEVELS, "k"], as_index=False).agg(
        count=("_log", "count"), mean=("_log", "mean"), spoilt=("_disturbed", "sum")
    )
    ranked = ranked.sort_values(
        [*LEVELS, "count", "spoilt", "mean", "k"], ascending=[True] * len(LEVELS) + [False, True, False, True]
    )
    own = ranked.drop_duplicates(LEVELS)[[*LEVELS, "k"]]
    others = [level for level in LEVELS if level != "temperature"]
    coldest = own.sort_values("temperature").drop_duplicates(others)[[*others, "k"]].rename(columns={"k": "_cold"})
    chosen = own.merge(coldest, on=others)
    ran = set(map(tuple, ranked[[*LEVELS, "k"]].itertuples(index=False)))
    chosen["k"] = [
        row["_cold"] if (*[row[level] for level in LEVELS], row["_cold"]) in ran else row["k"] for row in row_dicts(chosen)
    ]
    return frame.drop(columns=["_log", "_disturbed"]).merge(chosen[[*LEVELS, "k"]], on=[*LEVELS, "k"]).reset_index(drop=True)


def speedup_summary(
    cells: pd.DataFrame, records: list[Record], tasks: list[str], audit: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Speedup by method × task at each method's best k.

    Columns: `LEVELS`, k, lossless, failed (see `audit_failures`), `disturbed` (the disturbed tasks' names); for each task `<task>`,
    `<task>_low`, `<task>_high`; geometric_mean over the tasks with its 95 % interval over prompts (and runs, where there are
    replicates), and `tasks`, how many entered it; `crossfit` with its interval: the same where each half of the prompts is judged at
    the k that the other half chose (`crossfit_ks`, "4, 5"), and plainly the geometric mean where there was no k to choose
    (`crossfit_ks` empty).
    """
    logs, grouped = cell_logs(records), by_cell(records)
    pools, replicates = between(grouped), {key: count(members) for key, members in _by_identity(grouped).items()}
    sweeps = _sweeps(cells, logs)
    best = best_rows(cells)
    rows = []
    for key, members in best.groupby([*LEVELS, "k"], sort=False):
        cell_rows = {str(row["task"]): row for row in row_dicts(members)}
        row = _head(key, members, audit)
        row["disturbed"] = " ".join(members.loc[disturbed(members), "task"])
        for task in tasks:
            found = cell_rows.get(task)
            for name, column in ((task, "speedup"), (f"{task}_low", "speedup_low"), (f"{task}_high", "speedup_high")):
                row[name] = found[column] if found else np.nan
        identities = [tuple(found[name] for name in IDENTITY) for found in cell_rows.values()]
        pool = pools.get((row["engine"], row["pair"]))
        runs = pool.of_mean(min(replicates[key] for key in identities)) if pool else None
        strata = [logs[identity] for identity in identities]
        row |= _mean_over_tasks(MEAN, strata, runs) | {"tasks": len(strata)}
        judged = crossfit(*_choice(row, sweeps))
        row |= _mean_over_tasks(CROSSFIT, list(judged.logs.values()) if judged else strata, runs)
        row[f"{CROSSFIT}_ks"] = ", ".join(map(str, judged.ks)) if judged else ""
        rows.append(row)
    columns = [*LEVELS, "k", "lossless", "failed", "disturbed"]
    columns += [f"{name}{end}" for name in (*tasks, MEAN) for end in ("", "_low", "_high")] + ["tasks"]
    columns += [f"{CROSSFIT}{end}" for end in ("", "_low", "_high", "_ks")]
    return _sorted(pd.DataFrame(rows, columns=columns))


def acceptance_summary(
    cells: pd.DataFrame, records: list[Record], tasks: list[str], audit: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Acceptance by method × task, the rows of `speedup_summary`.

    Columns: `LEVELS`, k, lossless, failed; for each task `<task>_<measure>` of `MEASURES`; `mean_<measure>`: mean over tasks, each
    task counting alike; that of the acceptance length with its 95 % interval over prompts.
    """
    parts = {
        tuple(getattr(members[0].cell, name) for name in IDENTITY): [
            (emitted, passes) for emitted, passes in emitted_by_prompt(members).values() if passes
        ]
        for members in by_cell(records).values()
    }
    rows = []
    for key, members in best_rows(cells).groupby([*LEVELS, "k"], sort=False):
        cell_rows = {str(row["task"]): row for row in row_dicts(members)}
        row = _head(key, members, audit)
        for task in tasks:
            for measure in MEASURES:
                row[f"{task}_{measure}"] = cell_rows[task][measure] if task in cell_rows else np.nan
        for measure in ("acceptance_length", "acceptance_rate", "alpha"):
            row[f"mean_{measure}"] = members[measure].mean()
        strata = [parts[tuple(found[name] for name in IDENTITY)] for found in cell_rows.values()]
        interval = stratified_ratio_interval(strata)
        row["mean_acceptance_length_low"], row["mean_acceptance_length_high"] = interval
        rows.append(row)
    columns = [*LEVELS, "k", "lossless", "failed"]
    columns += [f"{task}_{measure}" for task in tasks for measure in MEASURES]
    columns += [f"mean_{measure}" for measure in MEASURES]
    return _sorted(pd.DataFrame(rows, columns=columns))


def spoilt(summary: pd.DataFrame, column: str) -> pd.Series:
    """Which rows of `speedup_summary` are disturbed in a column: in that task, or for the mean in any."""
    names = (
        summary["disturbed"].fillna("").str.split() if "disturbed" in summary else pd.Series([[]] * len(summary), summary.index)
    )
    return names.map(lambda tasks: bool(tasks) if column == MEAN else column in tasks).astype(bool)


def audit_failures(cells: pd.DataFrame, audit: pd.DataFrame | None) -> pd.Series:
    """Which rows of `cells` the audit failed: the one place where its verdict enters the tables.

    audit: a boolean column `passed` and any of `IDENTITY`; a failed row condemns every cell that agrees on the columns
    it has (an empty entry, but for `variant`, agrees with all), one of the baseline all that was measured against it. An empty
    `passed` (not judged) condemns nothing, as does None, the default everywhere.
    """
    failed = pd.Series(False, index=cells.index)
    if audit is None or "passed" not in audit:
        return failed
    keys = [name for name in IDENTITY if name in audit and name in cells]
    for verdict in audit[~audit["passed"].astype(bool)].to_dict("records"):
        match = pd.Series(True, index=cells.index)
        for name in keys if verdict.get("test") != BASELINE_TEST else [key for key in keys if key in ("engine", "pair")]:
            wanted = "" if pd.isna(verdict[name]) else verdict[name]
            if name == "variant":  # empty is a variant too: the method with its default options
                match &= cells[name].fillna("") == wanted
            elif wanted != "":
                match &= cells[name] == wanted
        failed |= match
    return failed


def _mean_over_tasks(name: str, strata: list[pd.Series], runs: Estimate | None) -> dict[str, float]:
    """`name`, `<name>_low` and `<name>_high` of the geometric mean over tasks (log speedups of each), with what whole runs add."""
    found = average([mean(stratum) for stratum in strata])
    low, high = interval(found + runs if runs else found, scale=np.exp)
    return {name: float(np.exp(found.value)), f"{name}_low": low, f"{name}_high": high}


def _by_identity(grouped: dict[str, list[Record]]) -> dict[Key, list[Record]]:
    return {tuple(getattr(members[0].cell, name) for name in IDENTITY): members for members in grouped.values()}


def _sweeps(cells: pd.DataFrame, logs: dict[Key, pd.Series]) -> dict[Key, Sweep]:
    """Values of `LEVELS` -> k -> task -> log speedups, of cells that have a speedup."""
    found: dict[Key, Sweep] = {}
    for row in row_dicts(cells.dropna(subset=["speedup"])):
        row["variant"] = row["variant"] if isinstance(row["variant"], str) else ""
        by_k = found.setdefault(tuple(row[level] for level in LEVELS), {})
        by_k.setdefault(row["k"], {})[row["task"]] = logs[tuple(row[name] for name in IDENTITY)]
    return found


def _choice(row: dict[str, Any], sweeps: dict[Key, Sweep]) -> tuple[Sweep, Sweep]:
    """(the sweep that chooses a row's k, the sweep that judges it), as `best_rows` has it: the coldest chooses for all where it can."""
    own = {
        key: sweep
        for key, sweep in sweeps.items()
        if all(value == row[level] for level, value in zip(LEVELS, key, strict=True) if level != "temperature")
    }
    place = LEVELS.index("temperature")
    judging = own[tuple(row[level] for level in LEVELS)]
    coldest = own[min(own, key=lambda key: float(str(key[place])))]
    return (coldest if len(set(coldest) & set(judging)) > 1 else judging), judging


def _head(key: Key, members: pd.DataFrame, audit: pd.DataFrame | None) -> dict[str, Any]:
    head: dict[str, Any] = dict(zip([*LEVELS, "k"], key, strict=True))
    head["lossless"] = bool(members["lossless"].all())
    head["failed"] = bool(audit_failures(members, audit).any())
    return head


def _sorted(frame: pd.DataFrame) -> pd.DataFrame:
    from specrig.reporting.style import method_order

    order = [level for level in LEVELS if level not in ("method", "variant")]
    rank = frame["method"].map({name: number for number, name in enumerate(method_order(frame["method"]))})
    frame = frame.assign(_rank=rank).sort_values([*order, "_rank", "variant"], kind="stable")
    return frame.drop(columns="_rank").reset_index(drop=True)
