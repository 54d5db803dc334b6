"""Sentences of the report. Their numbers come from tables or from constants of the code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from specrig.analysis.statistics import DIFFERENCE, LEAST_UNITS, LEVEL, POWER
from specrig.report.grid import number, percent
from specrig.report.labels import BASELINES, task_name
from specrig.report.machine import model_rows
from specrig.report.metrics import definitions
from specrig.report.round_tables import EFFICIENT
from specrig.report.speed_tables import chose_k
from specrig.report.study_data import StudyData

SMALL_MODEL = 100_000_000
"""For targets with fewer parameters the report says what a target this small cannot show."""

MANY_UNSETTLED = 1 / 3
"""The report counts the cells in which timing did not settle in more than this share of the prompts."""

DEFINITIONS = {
    **definitions(),
    "interval": (
        f"{percent(LEVEL)}, over prompts: a moderated t (Smyth), of logarithms for speedups and rates. With fewer than {LEAST_UNITS} prompts there "
        "is none; tables give the number n of prompts instead."
    ),
    "best k": "the one with the largest geometric mean speedup, chosen on the same prompts that its row shows, so the best "
    "of several k looks slightly too good.",
    "mean over tasks": "geometric for speedups, unweighted for τ. Its interval can be far narrower than the tasks' own: "
    "their errors partly cancel.",
    "bold": "the fastest lossless method of its group, if it is faster than plain decoding.",
    "†": "lossy: the acceptance rule does not keep the target's distribution; speed is bought with a change of output.",
    "struck through": "the audit found output that differs from the target's.",
    "naive_batching": "its baseline decodes the same prompts one after another; that of the others decodes the same batch.",
}
"""Term -> what it means here."""


def extent(cells: pd.DataFrame, of: str = "") -> str:
    """How many cells were measured with how many prompts. of: what a cell is, in words."""
    prompts = _prompts(cells)
    if not len(cells):
        return "no cell was measured"
    if len(cells) == 1:
        return f"{len(cells)} cell{of} with {prompts} prompts"
    return f"{len(cells)} cells{of} with {prompts} prompts each"


def scope(cells: pd.DataFrame, simulated: pd.DataFrame, tasks: list[str]) -> str:
    """A sentence on how much was measured. simulated: the cells whose acceptance was declared."""
    what = "(method, pair, task, k, temperature, batch size)"
    parts = [extent(cells, f" {what}")] if len(cells) else []
    if len(simulated):
        parts.append(extent(simulated, f" {what} whose acceptance was declared,"))
        tasks = [*tasks, *(task for task in dict.fromkeys(simulated["task"]) if task not in tasks)]
    return f"{', and '.join(parts)}; tasks: {', '.join(map(task_name, tasks))}." if parts else "No cell was measured."


def certainty(unsettled: Mapping[str, tuple[int, int]]) -> str:
    """In how many prompts timing did not settle; empty where it did in all. unsettled: see `StudyData.unsettled`."""
    if not unsettled:
        return ""
    count, of = (sum(numbers[index] for numbers in unsettled.values()) for index in (0, 1))
    text = f"Timing did not settle in {count:,} of {of:,} prompts"
    most = sum(some > every * MANY_UNSETTLED for some, every in unsettled.values())
    return text + (f"; in {most} of {len(unsettled)} cells in more than a third of them." if most else ".")


def _prompts(cells: pd.DataFrame) -> str:
    return " or ".join(str(count) for count in sorted({int(count) for count in cells["prompts"]}))


def low_efficiency(cells: pd.DataFrame) -> str:
    """A warning where the harness loses much of the possible speed; else empty."""
    median = cells["efficiency"].median()
    if not median < EFFICIENT:
        return ""
    return (
        f"The median efficiency is {number(median)}, below {number(EFFICIENT)}. So {percent(1 - median)} of the "
        "possible speed is lost outside the forward passes. The last columns say where the time goes."
    )


def power_sentence(cells: pd.DataFrame) -> str:
    """How many prompts the measured spread requires, and how many cells have them."""
    speculative = cells[~cells["method"].isin(BASELINES)].dropna(subset=["prompts_needed"])
    if speculative.empty:
        return "Too few prompts to estimate how many are needed to detect a difference."
    needed = speculative["prompts_needed"] * speculative["batch_size"]  # counted in batches
    enough = int((speculative["prompts"] >= needed).sum())
    return (
        f"To detect a difference of {DIFFERENCE:.0%} in speedup ({POWER:.0%} power, {percent(1 - LEVEL)} false alarms), the median cell "
        f"needs {needed.median():.0f} prompts and the worst {needed.max():.0f}, given the spread over prompts measured "
        f"here. {enough} of {len(speculative)} cells have that many."
    )


BEST_OF_SEVERAL_K = (
    "The best k of a method was chosen on the same prompts that its row shows. So the best of several k looks slightly "
    "too good. "
    "The fastest of several methods was also named on the prompts that it was compared on."
)
BEST_OF_METHODS = (
    "The fastest of several methods was named on the prompts that it was compared on. So it looks slightly too good."
)


def limits(study: StudyData, cells: pd.DataFrame, summary: pd.DataFrame, *, trained: bool) -> list[str]:
    """Sentences on what the figures do not say. summary: see `speedup_summary`; trained: whether a target was trained."""
    prompts = _prompts(cells)
    found = [
        f"Intervals cover the choice of prompts ({prompts} a cell). They do not cover another machine or another "
        "build of the libraries.",
        power_sentence(cells),
        BEST_OF_SEVERAL_K if chose_k(summary) else BEST_OF_METHODS,
        "The length limit or an end of sequence may cut off tokens of the last round of a generation. Such a round does "
        "not count in the acceptance length and is counted separately.",
    ]
    targets: dict[int, list[str]] = {}
    for row in model_rows(study.folder):
        if row["name"] == "target" and row["parameters"]:
            targets.setdefault(row["parameters"], []).append(row["pair"])
    for size, pairs in sorted(targets.items()):
        if size < SMALL_MODEL:
            found.append(
                f"The target of {' and of '.join(pairs)} has {millions(size)} parameters. The speed of a pass of a "
                "model this small depends on processor arithmetic and on the overhead of each operation. With billions "
                "of parameters it depends on reading the weights from memory. So draft cost, verification cost and the "
                "best k do not carry over to large pairs. The order of methods may not either."
            )
    if trained:
        found.append(
            "A target trained here was trained for minutes, on text of the same kind as the prompts. So its acceptance "
            "is no estimate for open-ended chat. What carries over is the harness: counting, pairing, losslessness, "
            "and how close it comes to its own cost model."
        )
    return found


def millions(parameters: Any) -> str:
    """A number of parameters in words."""
    return f"{number(parameters / 1e6, 1)} million" if parameters else "–"
