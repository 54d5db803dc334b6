"""The best k as a table and a sentence, and a sentence on how many prompts are needed to detect a difference of 5 %."""

from __future__ import annotations

from typing import Any, cast

import pandas as pd

from specrig.analysis.cells import row_dicts
from specrig.analysis.optimal_k import DEFAULT_K
from specrig.analysis.statistics import DIFFERENCE, POWER
from specrig.results import grid
from specrig.results.grid import Column, Grid, GridEntry
from specrig.results.labels import BASELINES, method_name, task_name
from specrig.results.speed_tables import level_columns


def optimal_k_grid(optimal: pd.DataFrame, study: str) -> Grid:
    """The result of `optimal_k.optimal_k` as a table for readers."""
    levels = [name for name in ("engine", "pair", "temperature", "batch_size") if len(optimal[name].unique()) > 1]
    columns: dict[str, Column] = {
        **{name: column for name, column in level_columns(levels).items() if name != "k"},
        "method": lambda row: method_name(row["method"], variant=row["variant"]),
        "task": lambda row: task_name(row["task"]),
        "measured k": grid.text("ks"),
        "best k": lambda row: GridEntry(str(row["best_k"]), bold=True),
        "k of the halves": lambda row: row["chosen_ks"] if isinstance(row["chosen_ks"], str) else "–",
        "speedup": grid.estimate("speedup"),
        "predicted best k": grid.figure("predicted_k", 0),
        "predicted speedup": grid.figure("predicted_speedup"),
    }
    caption = (
        "The k with the largest measured and the largest predicted speedup. Speedup: each half of the prompts at the k "
        "that the other half chose, so that the choice adds no bias."
    )
    if optimal["default_speedup"].notna().any():  # else no method ran with the default k
        columns |= {
            f"speedup at k = {DEFAULT_K}": grid.figure("default_speedup"),
            f"loss at k = {DEFAULT_K} (%)": grid.estimate("loss", 1, scale=100),
        }
        caption += (
            f" Loss: the share of that speedup that the default k = {DEFAULT_K} loses (95 % intervals, paired by prompt); "
            "negative where the default was better."
        )
    return Grid.of(
        row_dicts(optimal),
        columns,
        labels=len(levels) + 3,
        groups=len(levels),
        caption=caption,
        label=f"tab:{study}-optimal-k",
    )


def optimal_k_sentence(optimal: pd.DataFrame) -> str:
    """What choosing k gains over the default, and how close the predicted best k is to the measured one."""
    if optimal.empty:
        return "No method was measured at more than one k without being disturbed."
    known = optimal.dropna(subset=["predicted_k"])
    near = (known["best_k"] - known["predicted_k"]).abs() <= 1
    text = (
        f"Measured and predicted best k are at most 1 apart in {int(near.sum())} of {len(known)} settings."
        if len(known)
        else "No best k is predicted, since the engine does not time bare passes."
    )
    lost = optimal.dropna(subset=["loss"])
    if len(lost):
        average, surely = lost["loss"].mean(), lost[lost["loss_low"] > 0]
        verdict = f"loses {grid.percent(average, 1)}" if average > 0 else f"gains {grid.percent(-average, 1)}"
        text += (
            f" Against a k that other prompts chose, the default k = {DEFAULT_K} {verdict} on average. It certainly "
            f"loses in {len(surely)} of {len(lost)} settings"
        )
        worst = cast("dict[str, Any]", surely.sort_values("loss").iloc[-1].to_dict()) if len(surely) else None
        text += (
            f", most on {task_name(worst['task'])} with {worst['method']} ({grid.percent(worst['loss'], 1)}; k = "
            f"{worst['best_k']} is best)."
            if worst
            else "."
        )
    return text


def power_sentence(cells: pd.DataFrame) -> str:
    """How many prompts the measured spread requires, and how many cells have them."""
    speculative = cells[~cells["method"].isin(BASELINES)].dropna(subset=["prompts_needed"])
    if speculative.empty:
        return "Too few prompts to estimate how many are needed to detect a difference."
    needed = speculative["prompts_needed"] * speculative["batch_size"]  # counted in batches
    enough = int((speculative["prompts"] >= needed).sum())
    return (
        f"To detect a difference of {DIFFERENCE:.0%} in speedup ({POWER:.0%} power, 5 % false alarms), the median cell "
        f"needs {needed.median():.0f} prompts and the worst {needed.max():.0f}, given the spread over prompts measured "
        f"here. {enough} of {len(speculative)} cells have that many."
    )
