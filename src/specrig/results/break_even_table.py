"""Break-even as a table and a sentence."""

from __future__ import annotations

import pandas as pd

from specrig.analysis.break_even import SPEEDUPS
from specrig.analysis.cells import row_dicts
from specrig.results import grid
from specrig.results.grid import Grid, GridEntry
from specrig.results.labels import DISTURBED_NOTE
from specrig.results.speed_tables import row_labels, varying_levels

BREAK_EVEN, WORTH = (f"tokens_for_{speedup:g}" for speedup in SPEEDUPS)


def break_even_grid(found: pd.DataFrame, study: str) -> Grid:
    """The result of `break_even.break_even` as a table for readers. Bold: what is enough for a speedup above 1, by costs
    that were measured undisturbed.
    """
    levels = varying_levels(found)
    marked = found["disturbed"] != ""
    rows = [
        [
            *row_labels(row, levels, disturbed=sign),
            *(GridEntry(grid.number(row[name])) for name in ("draft_cost_per_round", "verify_cost", "efficiency")),
            GridEntry(grid.number(row["round_cost"])),
            GridEntry(
                grid.number(row["acceptance_length"]), bold=row["acceptance_length"] > row[BREAK_EVEN] and not sign
            ),
            GridEntry(grid.number(row[WORTH])),
            GridEntry(grid.number(row["alpha"])),
            *(GridEntry(grid.number(row[f"alpha_for_{speedup:g}"])) for speedup in SPEEDUPS),
        ]
        for row, sign in zip(row_dicts(found), marked, strict=True)
    ]
    head = [*(level.replace("_", " ") for level in levels), "k", "draft cost", "verification cost", "efficiency"]
    return Grid(
        header=[*head, "a round costs", "τ", "τ for 1.5×", "α", "α for 1×", "α for 1.5×"],
        rows=rows,
        labels=len(levels) + 1,
        groups=levels.index("method"),
        caption=(
            "What a round costs, and the acceptance that it takes to be as fast as plain decoding and half as fast again; means over "
            "tasks. Cost: (drafting + verification) / efficiency, in plain tokens; it is the τ for 1×. τ: tokens that a round "
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
    text += f"settings, and for half as fast again in {int((found['acceptance_length'] > found[WORTH]).sum())}."
    hopeless = found[found[BREAK_EVEN] > found["k"] + 1]
    if len(hopeless):
        text += f" In {len(hopeless)} a round costs more than the k + 1 tokens that it can emit at most."
    return text
