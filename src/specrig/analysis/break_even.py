"""Break-even: how many tokens a round must emit, and which acceptance that takes, for a speedup of 1 and of 1.5.

A speedup of S takes τ ≥ S · cost of a round. The cost is measured: drafting d and verification v, both in units of the
baseline's one-token pass, divided by the efficiency, which counts what the loop spends outside of passes. For a chain
whose rounds draft all k tokens, Leviathan's equation 1 (2211.17192) turns τ into α.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from specrig.analysis.cells import IDENTITY, row_dicts
from specrig.analysis.cost_model import required_alpha
from specrig.analysis.disturbance import disturbed
from specrig.tasks.variants import variant_of

SPEEDUPS = (1.0, 1.5)
"""The speedups for which the acceptance is computed."""
KEYS = [*(name for name in IDENTITY if name != "task"), "context"]
"""What a row of the table is about. Tasks are averaged, each counting alike."""
NEEDED = [f"{name}_for_{speedup:g}" for name in ("tokens", "alpha") for speedup in SPEEDUPS]
COLUMNS = [
    *KEYS,
    *["tasks", "lossless", "draft_cost_per_round", "verify_cost", "efficiency", "round_cost"],
    *["acceptance_length", "alpha", *NEEDED, "disturbed"],
]
FULL = 0.9
"""A chain counts as drafting all k positions if its rounds draft at least this share of them on average."""


def break_even(cells: pd.DataFrame) -> pd.DataFrame:
    """One row for each engine, pair, method, variant, k, temperature, batch size and context, with the columns
    `COLUMNS`.

    cells: a table of cells (`cells.cells_table`). round_cost: acceptance length / speedup, which is what a round took,
    in times of the baseline's tokens. tokens_for_<S>: the τ that gives the speedup S at this cost. alpha_for_<S>: the α
    that gives this τ, for a chain of k tokens; NaN for trees and for rounds that draft less, and where even α = 1 is
    not enough. Costs of passes are NaN where the engine does not time them. disturbed: names of the disturbed tasks.
    """
    drafting = by_context(cells[(cells["k"] > 0) & (cells["speedup"] > 0)]).dropna(subset=["acceptance_length"])
    lengths = drafting["acceptance_length"]
    drafting = drafting.assign(
        round_cost=lengths / drafting["speedup"],
        draft_cost_per_round=(lengths / drafting["predicted_speedup"] - drafting["verify_cost"]).clip(lower=0),
        chain=np.isclose(drafting["acceptance_rate"].astype(float), drafting["depth_acceptance_rate"].astype(float)),
    )
    rows = [_row(frame) for _, frame in drafting.groupby(KEYS, sort=False)]
    return pd.DataFrame(rows, columns=COLUMNS)


def by_context(cells: pd.DataFrame) -> pd.DataFrame:
    """`cells` with the column `context`, in tokens (0: the task as it is), the tasks named without it."""
    return cells.assign(
        variant=cells["variant"].fillna(""),
        task=[without_context(task) for task in cells["task"]],
        context=[variant_of(task).context for task in cells["task"]],
    )


def without_context(task: str) -> str:
    """The name of a task without its context."""
    found = variant_of(task)
    return found.task if found.context else task


def _row(cells: pd.DataFrame) -> dict[str, Any]:
    """The row of one setting's cells, which differ in the task."""
    measures = ["draft_cost_per_round", "verify_cost", "efficiency", "round_cost", "acceptance_length", "alpha"]
    row = row_dicts(cells[KEYS])[0] | {name: float(cells[name].mean()) for name in measures}
    row |= {"tasks": len(cells), "lossless": bool(cells["lossless"].all())}
    row["disturbed"] = " ".join(cells.loc[disturbed(cells), "task"])
    drafted = row["draft_cost_per_round"] / float(cells["draft_cost"].mean() or np.nan)
    chain = bool(cells["chain"].all()) and drafted >= FULL * row["k"]
    for speedup in SPEEDUPS:
        row[f"tokens_for_{speedup:g}"] = speedup * row["round_cost"]
        # The whole cost stands in place of v, so that c is 0.
        alpha = required_alpha(speedup, row["k"], 0.0, row["round_cost"]) if chain else None
        row[f"alpha_for_{speedup:g}"] = np.nan if alpha is None else alpha
    return row
