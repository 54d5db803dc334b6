"""Compute the report's sentences from the tables. No number is written in this file: all follow from the data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from specrig.analysis.cells import row_dicts
from specrig.analysis.repetition import LOOPING
from specrig.report.advice import SHOWN, first_names
from specrig.report.grid import interval, number, percent
from specrig.report.labels import BASELINES, named, task_name
from specrig.report.speed_tables import mean_units
from specrig.report.summary import MEAN, base_setting, comparable, over_most_tasks


class Leader(NamedTuple):
    """The fastest lossless method of an engine and pair.

    top: its row of `rows`; None without one. near: the rows of others whose interval reaches into its own, fastest first.
    """

    where: str
    rows: pd.DataFrame
    top: dict[str, Any] | None
    near: list[dict[str, Any]]


class Finding(NamedTuple):
    """What is concluded on an engine and pair: the answer in a sentence, with doubt in another, and what explains it."""

    where: str
    answer: str
    explanation: str

    @property
    def paragraph(self) -> str:
        """Both."""
        return f"{self.answer} {self.explanation}".rstrip()


def findings(summary: pd.DataFrame, best: pd.DataFrame, tasks: list[str]) -> list[Finding]:
    """The fastest method per engine and pair, at the lowest temperature and the smallest batch.

    summary: the result of `summary.speedup_summary`. best: the cells from which it was computed. Lossy methods and
    methods that failed the audit are never named as the fastest, nor those that were measured on fewer tasks.
    """
    found = []
    for leader in _leaders(summary):
        where, rows, top, _ = leader
        if top is None:
            measured = rows["lossless"].astype(bool) & ~rows["method"].isin(list(BASELINES))
            none = f"No lossless speculative method on {where} passed the audit and has a speedup."
            found.append(
                Finding(
                    where, none if measured.any() else f"No lossless speculative method was measured on {where}.", ""
                )
            )
            continue
        found.append(Finding(where, _answer(leader, top, tasks), " ".join(_explanation(top, rows, best, tasks))))
    return found


def in_short(summary: pd.DataFrame) -> list[str]:
    """The answers of `findings` as lines for a terminal. summary: see there."""
    lines = []
    for leader in _leaders(summary):
        where, _, top, _ = leader
        if top is None:
            continue
        name = named(top)
        over = f"mean over {top['tasks']} task{'s' if top['tasks'] != 1 else ''}"
        lines.append(
            f"Fastest lossless method on {where}: {name} at k = {top['k']}, {number(top[MEAN])} times the speed "
            f"of plain decoding ({over}{_batch(top)}, {_spread(top)})"
        )
        lines += filter(None, [_overlapping(leader)])
    return lines


def _leaders(summary: pd.DataFrame) -> Iterator[Leader]:
    for (engine, pair), rows in summary.groupby(["engine", "pair"], sort=False):
        where = f"{pair} ({engine})"
        rows = base_setting(rows)
        fair = rows[comparable(rows)].dropna(subset=[MEAN])
        if fair.empty:
            yield Leader(where, rows, None, [])
            continue
        top, *others = row_dicts(over_most_tasks(fair).sort_values(MEAN, ascending=False))
        near = [row for row in others if row[f"{MEAN}_high"] >= top[f"{MEAN}_low"]]
        yield Leader(where, rows, top, near if top[MEAN] > 1 else [])


def _spread(top: dict[str, Any]) -> str:
    low, high = top[f"{MEAN}_low"], top[f"{MEAN}_high"]
    return f"{interval(low, high)} at 95 %" if np.isfinite(low) else f"n = {mean_units(top)}: no interval"


def _overlapping(leader: Leader) -> str:
    """The methods that cannot be told from the fastest one, as a sentence; empty without any."""
    if not leader.near:
        return ""
    names = [f"{named(row)} ({number(row[MEAN])})" for row in leader.near]
    return f"Not certainly slower, since the intervals overlap: {first_names(names, SHOWN)}."


def _answer(leader: Leader, top: dict[str, Any], tasks: list[str]) -> str:
    name = named(top)
    measured = sum(np.isfinite(top[task]) for task in tasks)
    return (
        f"On {leader.where} the fastest lossless method is {name} at k = {top['k']}: {number(top[MEAN])} times the "
        f"speed of autoregressive decoding in the geometric mean over {measured} task{'s' if measured != 1 else ''} at "
        f"temperature {top['temperature']:g}{_batch(top)} ({_spread(top)}).{_doubt(top)} {_overlapping(leader)}"
    ).rstrip()


def _batch(top: dict[str, Any]) -> str:
    return f", batch size {top['batch_size']}" if top["batch_size"] > 1 else ""


def _doubt(top: dict[str, Any]) -> str:
    if top[f"{MEAN}_high"] < 1:
        return " That is slower than plain decoding."
    if top[f"{MEAN}_low"] <= 1:
        return " The interval contains 1, so these prompts show no certain gain."
    return ""


def _explanation(top: dict[str, Any], rows: pd.DataFrame, best: pd.DataFrame, tasks: list[str]) -> list[str]:
    measured = [task for task in tasks if np.isfinite(top[task])]
    sentences = []
    if top["several_k"]:
        sentences.append("Its k was chosen on the same prompts.")
    ordered = sorted(measured, key=lambda task: top[task])
    if len(ordered) > 1:
        most, least = ordered[-1], ordered[0]
        name = named(top)
        sentences.append(
            f"{name} gains most on {task_name(most)} ({number(top[most])}), least on {task_name(least)} "
            f"({number(top[least])})."
        )
    same = np.logical_and.reduce(
        [best[key] == top[key] for key in ("engine", "pair", "method", "variant", "temperature", "batch_size", "k")]
    )
    cells = best[same]
    length, rate = cells["acceptance_length"].mean(), cells["acceptance_rate"].mean()
    if np.isfinite(length) and np.isfinite(rate):
        sentences.append(
            f"A target pass emits {number(length)} tokens on average; {percent(rate)} of the drafted tokens are "
            "accepted."
        )
    kept = cells["efficiency"].median()
    if np.isfinite(kept):
        sentences.append(
            f"The measured speed is {percent(kept)} of the speed that its acceptance and the cost of bare passes "
            "predict (median over tasks)."
        )
    others = rows[~rows["method"].isin([top["method"], *BASELINES])]
    slower = others[others[f"{MEAN}_high"] < 1]
    if len(slower):
        names = (named(row) for row in row_dicts(slower))
        sentences.append(f"Methods whose whole interval is below plain decoding: {', '.join(dict.fromkeys(names))}.")
    return sentences


def best_k_sentences(cells: pd.DataFrame, summary: pd.DataFrame) -> list[str]:
    """For each engine and pair: the best k of every method that ran at several, and its speedup; empty without one.

    cells: `StudyResults.cells`. summary: `summary.speedup_summary` of them, which has a method at its best k.
    """
    sentences = []
    for (engine, pair), rows in summary.groupby(["engine", "pair"], sort=False):
        measured = cells[(cells["engine"] == engine) & (cells["pair"] == pair)]
        counts = measured.assign(variant=measured["variant"].fillna("")).groupby(["method", "variant"])["k"].nunique()
        labels = [
            f"{named(row)} {row['k']} ({number(row[MEAN])} times)"
            for row in row_dicts(base_setting(rows).sort_values(MEAN, ascending=False))
            if counts[row["method"], row["variant"]] > 1
        ]
        if labels:
            sentences.append(
                f"The best k on {pair} ({engine}), with its speedup in the geometric mean over tasks, chosen on the same "
                f"prompts: {', '.join(labels)}."
            )
    return sentences


def repetition_warnings(cells: pd.DataFrame) -> list[str]:
    """A warning for each pair whose plain outputs repeat more than `LOOPING` of their 4-grams in some task."""
    if cells.empty:
        return []
    shares = cells.groupby(["pair", "task"], sort=False)["baseline_repeated_4grams"].mean().reset_index()
    looping = shares[shares["baseline_repeated_4grams"] > LOOPING]
    return [
        f"The target of {pair} repeats itself: "
        + ", ".join(
            f"{percent(share)} of its 4-grams on {task_name(task)}"
            for task, share in zip(rows["task"], rows["baseline_repeated_4grams"], strict=True)
        )
        + " are repeats. So methods that copy, as ngram does, gain more on these tasks than they would elsewhere."
        for pair, rows in looping.groupby("pair", sort=False)
    ]
