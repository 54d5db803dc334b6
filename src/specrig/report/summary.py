"""Cells by method × task: the best k, speedups with intervals, acceptance, the audit's verdict."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from specrig.analysis.acceptance import emitted_by_prompt
from specrig.analysis.cells import IDENTITY, by_cell, identity, row_dicts, row_identity
from specrig.analysis.speedup import group_times, log_speedups
from specrig.analysis.statistics import average, interval, mean, stratified_ratio_interval
from specrig.audit.multiple_testing import BASELINE_TESTS
from specrig.measurement.records import Record
from specrig.report.labels import BASELINES

LEVELS = ["engine", "pair", "temperature", "batch_size", "method", "variant"]
"""The columns that, together with k, identify a row of the method × task tables."""

MEASURES = ["acceptance_length", "acceptance_length_low", "acceptance_length_high", "acceptance_rate", "alpha"]
MEAN = "geometric_mean"

Key = tuple[Hashable, ...]


def cell_logs(records: list[Record]) -> dict[Key, pd.Series]:
    """Values of `IDENTITY` -> log speedups of this cell, indexed by group."""
    result = {}
    for members in by_cell(records).values():
        cell = members[0].cell
        result[identity(cell)] = log_speedups(group_times(members))
    return result


def best_rows(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells at each method's best k, with all columns of `cells`.

    The best k is chosen per engine, pair, batch size, method and variant, at the lowest temperature. Of the
    k's that ran the most tasks, the one with the largest geometric mean speedup over tasks is the best. Other temperatures show the same k, or their own best where it did
    not run.

    The choice and its speedup come from the same prompts, which flatters the best of many k's a little. The captions of
    the tables say so.
    """
    frame = cells.dropna(subset=["speedup"])
    if frame.empty:
        return frame
    frame = frame.assign(variant=frame["variant"].fillna(""), _log=np.log(frame["speedup"].astype(float)))
    ranked = frame.groupby([*LEVELS, "k"], as_index=False).agg(count=("_log", "count"), mean=("_log", "mean"))
    ranked = ranked.sort_values([*LEVELS, "count", "mean", "k"], ascending=[True] * len(LEVELS) + [False, False, True])
    own = ranked.drop_duplicates(LEVELS)[[*LEVELS, "k"]]
    others = [level for level in LEVELS if level != "temperature"]
    coldest = own.sort_values("temperature").drop_duplicates(others)[[*others, "k"]].rename(columns={"k": "_cold"})
    chosen = own.merge(coldest, on=others)
    ran = set(map(tuple, ranked[[*LEVELS, "k"]].itertuples(index=False)))
    chosen["k"] = [
        row["_cold"] if (*[row[level] for level in LEVELS], row["_cold"]) in ran else row["k"]
        for row in row_dicts(chosen)
    ]
    return frame.drop(columns="_log").merge(chosen[[*LEVELS, "k"]], on=[*LEVELS, "k"]).reset_index(drop=True)


def base_setting(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells that one setting shows: those at the lowest temperature and, of these, the smallest batch at which a
    method drafts.
    """
    drafting = cells[~cells["method"].isin(list(BASELINES))]
    shown = cells if drafting.empty else drafting
    coldest = shown[shown["temperature"] == shown["temperature"].min()]
    smallest = coldest["batch_size"].min()
    return cells[cells["temperature"].isin(coldest["temperature"]) & (cells["batch_size"] == smallest)]


def speedup_summary(
    cells: pd.DataFrame, records: list[Record], tasks: list[str], audit: pd.DataFrame | None = None
) -> pd.DataFrame:
    """The speedup by method × task at each method's best k (`best_rows`).

    tasks: the tasks in the order of the columns. audit: see `audit_failures`.

    Columns: `LEVELS`, `k`, `lossless`, `failed` (see `audit_failures`); for each task `<task>`, `<task>_low`,
    `<task>_high`; `geometric_mean` over the tasks with its 95 % interval over prompts; `tasks`, the number of tasks in
    this mean; `prompts`, the fewest of a task; `several_k`, whether the method ran with several k.
    """
    logs, best = cell_logs(records), best_rows(cells)
    named = cells.assign(variant=cells["variant"].fillna(""))
    ks = named.groupby([level for level in LEVELS if level != "temperature"])["k"].nunique()
    rows = []
    for key, members in best.groupby([*LEVELS, "k"], sort=False):
        cell_rows = {str(row["task"]): row for row in row_dicts(members)}
        row = _head(key, members, audit)
        for task in tasks:
            found = cell_rows.get(task)
            for name, column in ((task, "speedup"), (f"{task}_low", "speedup_low"), (f"{task}_high", "speedup_high")):
                row[name] = found[column] if found else np.nan
        identities = [row_identity(found) for found in cell_rows.values()]
        strata = [logs[identity] for identity in identities]
        row |= _mean_over_tasks(strata)
        row |= {"tasks": len(strata), "prompts": int(members["prompts"].min()) if "prompts" in members else np.nan}
        row["several_k"] = bool(ks[tuple(row[level] for level in LEVELS if level != "temperature")] > 1)
        rows.append(row)
    columns = [*LEVELS, "k", "lossless", "failed", "label"]
    columns += [f"{name}{end}" for name in (*tasks, MEAN) for end in ("", "_low", "_high")]
    columns += ["tasks", "prompts", "several_k"]
    return _sorted(pd.DataFrame(rows, columns=columns))


def acceptance_summary(
    cells: pd.DataFrame, records: list[Record], tasks: list[str], audit: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Acceptance by method × task, with the same rows as `speedup_summary`.

    Columns: `LEVELS`, `k`, `lossless`, `failed`; for each task and each of `MEASURES` `<task>_<measure>`;
    `mean_<measure>`, the mean over tasks, in which each task has the same weight. The mean acceptance length has a 95 %
    interval over prompts.
    """
    parts = {
        identity(members[0].cell): [
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
        strata = [parts[row_identity(found)] for found in cell_rows.values()]
        interval = stratified_ratio_interval(strata)
        row["mean_acceptance_length_low"], row["mean_acceptance_length_high"] = interval
        rows.append(row)
    columns = [*LEVELS, "k", "lossless", "failed", "label"]
    columns += [f"{task}_{measure}" for task in tasks for measure in MEASURES]
    columns += [f"mean_{measure}" for measure in MEASURES]
    return _sorted(pd.DataFrame(rows, columns=columns))


def comparable(frame: pd.DataFrame) -> pd.Series:
    """A boolean for each row: whether its speed compares with others'. It does not of lossy methods, of those that the
    audit failed, and of baselines.
    """
    baseline = frame["method"].isin(list(BASELINES))
    return frame["lossless"].astype(bool) & ~frame["failed"].astype(bool) & ~baseline


def over_most_tasks(summary: pd.DataFrame, groups: Sequence[str] = ()) -> pd.DataFrame:
    """The rows of a `speedup_summary` that were measured on the most tasks of their group. The other rows' means over
    tasks do not compare with theirs.
    """
    tasks = summary["tasks"]
    return summary[
        tasks == (tasks.groupby([summary[level] for level in groups]).transform("max") if groups else tasks.max())
    ]


def in_order(summary: pd.DataFrame) -> pd.DataFrame:
    """The rows of a `speedup_summary`, the fastest first; then those of fewer tasks, and those without a mean last."""
    rows = summary.assign(tasks=summary["tasks"].where(summary[MEAN].notna()))
    order = rows.sort_values(["tasks", MEAN], ascending=False, kind="stable", na_position="last").index
    return summary.loc[order].reset_index(drop=True)


def audit_failures(cells: pd.DataFrame, audit: pd.DataFrame | None) -> pd.Series:
    """A boolean for each row of `cells`: whether the audit failed it. Only here the audit's verdict enters the tables.

    audit: a table with the column `passed` and any columns of `IDENTITY`; None fails no cell. A row that did not pass
    fails every cell that agrees with it on these columns. An empty entry agrees with all cells, except in `variant`,
    where it names the method with its default options. A failed test of the baseline fails everything that was measured
    against this baseline. An empty `passed` means not judged, and fails nothing.
    """
    failed = pd.Series(False, index=cells.index)
    if audit is None or "passed" not in audit:
        return failed
    keys = [name for name in IDENTITY if name in audit and name in cells]
    for verdict in audit[~audit["passed"].astype(bool)].to_dict("records"):
        match = pd.Series(True, index=cells.index)
        for name in (
            keys if verdict.get("test") not in BASELINE_TESTS else [key for key in keys if key in ("engine", "pair")]
        ):
            expected = "" if pd.isna(verdict[name]) else verdict[name]
            if name == "variant":  # empty is a variant too: the method with its default options
                match &= cells[name].fillna("") == expected
            elif expected != "":
                match &= cells[name] == expected
        failed |= match
    return failed


def _mean_over_tasks(strata: list[pd.Series]) -> dict[str, float]:
    """The geometric mean over tasks with its interval, as columns. strata: log speedups of each task."""
    found = average([mean(stratum) for stratum in strata])
    low, high = interval(found, scale=np.exp)
    return {MEAN: float(np.exp(found.value)), f"{MEAN}_low": low, f"{MEAN}_high": high}


def _head(key: Key, members: pd.DataFrame, audit: pd.DataFrame | None) -> dict[str, Any]:
    head: dict[str, Any] = dict(zip([*LEVELS, "k"], key, strict=True))
    head["lossless"] = bool(members["lossless"].all())
    head["failed"] = bool(audit_failures(members, audit).any())
    head["label"] = str(members["label"].iloc[0]) if "label" in members else ""
    return head


def _sorted(frame: pd.DataFrame) -> pd.DataFrame:
    from specrig.report.labels import method_order

    order = [level for level in LEVELS if level not in ("method", "variant")]
    rank = frame["method"].map({name: number for number, name in enumerate(method_order(frame["method"]))})
    frame = frame.assign(_rank=rank).sort_values([*order, "_rank", "variant"], kind="stable")
    return frame.drop(columns="_rank").reset_index(drop=True)
