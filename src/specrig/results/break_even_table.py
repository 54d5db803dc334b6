"""Break-even as a table and a sentence."""

from __future__ import annotations

from typing import Any

import pandas as pd

from specrig.analysis.break_even import SPEEDUPS
from specrig.results import grid
from specrig.results.grid import Grid, GridEntry
from specrig.results.labels import DISTURBED_NOTE
from specrig.results.speed_tables import method_grid, varying_levels

BREAK_EVEN, WORTH = (f"tokens_for_{speedup:g}" for speedup in SPEEDUPS)


def break_even_grid(found: pd.DataFrame, study: str) -> Grid:
    """The result of `break_even.break_even` as a table for readers. Bold: what is enough for a speedup above 1, by costs
    that were measured undisturbed.
    """
    marked = found["disturbed"] != ""

    def enough(row: dict[str, Any]) -> GridEntry:
        pays = row["acceptance_length"] > row[BREAK_EVEN] and not row["marked"]
        return GridEntry(grid.number(row["acceptance_length"]), bold=pays)

    return method_grid(
        found.assign(marked=marked),
        varying_levels(found),
        {
            **({"context": lambda row: str(row["context"] or "–")} if found["context"].any() else {}),
            "draft cost": grid.figure("draft_cost_per_round"),
            "verification cost": grid.figure("verify_cost"),
            "efficiency": grid.figure("efficiency"),
            "a round costs": grid.figure("round_cost"),
            "τ": enough,
            "τ for 1.5×": grid.figure(WORTH),
            "α": grid.figure("alpha"),
            **{f"α for {speedup:g}×": grid.figure(f"alpha_for_{speedup:g}") for speedup in SPEEDUPS},
        },
        caption=(
            "The cost of a round, and the acceptance that is needed to be as fast as plain decoding and 1.5 times as fast; means over "
            "tasks. Cost: (drafting + verification) / efficiency, in units of plain decoding's time per token; it equals the τ for 1×. τ: tokens that a round "
            "emits; bold: enough to be faster than plain decoding. α: the same for a chain of k tokens by Leviathan's equation 1; a dash for "
            "trees, for rounds that draft less than k, and where no acceptance is enough."
        ),
        label=f"tab:{study}-break-even",
        notes=[DISTURBED_NOTE] if marked.any() else [],
    )


def break_even_sentence(found: pd.DataFrame) -> str:
    """In how many settings the acceptance pays, and where it lacks least."""
    if found.empty:
        return ""
    margin = found["acceptance_length"] / found[BREAK_EVEN]
    text = f"The measured acceptance is enough to be faster than plain decoding in {int((margin > 1).sum())} of {len(found)} "
    text += f"settings, and 1.5 times as fast in {int((found['acceptance_length'] > found[WORTH]).sum())}."
    hopeless = found[found[BREAK_EVEN] > found["k"] + 1]
    if len(hopeless):
        text += f" In {len(hopeless)} a round costs more than the k + 1 tokens that it can emit at most."
    return text
