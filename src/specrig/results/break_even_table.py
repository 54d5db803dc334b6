"""Break-even as a table and a sentence."""

from __future__ import annotations

import pandas as pd

from specrig.analysis.break_even import SPEEDUPS
from specrig.analysis.cells import row_dicts
from specrig.results import grid
from specrig.results.grid import Grid, GridEntry
from specrig.results.speed_tables import row_labels, varying_levels

BREAK_EVEN, WORTH = (f"tokens_for_{speedup:g}" for speedup in SPEEDUPS)


def break_even_grid(found: pd.DataFrame, study: str) -> Grid:
    """The result of `break_even.break_even` as a table for readers. Bold: what is enough for a speedup above 1."""
    levels = varying_levels(found)
    contexts = found["context"].any()
    rows = [
        [
            *row_labels(row, levels),
            *([GridEntry(str(row["context"] or "–"))] if contexts else []),
            *(GridEntry(grid.number(row[name])) for name in ("draft_cost_per_round", "verify_cost", "efficiency")),
            GridEntry(grid.number(row["round_cost"])),
            GridEntry(grid.number(row["acceptance_length"]), bold=row["acceptance_length"] > row[BREAK_EVEN]),
            GridEntry(grid.number(row[WORTH])),
            GridEntry(grid.number(row["alpha"])),
            *(GridEntry(grid.number(row[f"alpha_for_{speedup:g}"])) for speedup in SPEEDUPS),
        ]
        for row in row_dicts(found)
    ]
    head = [*(level.replace("_", " ") for level in levels), "k", *(["context"] if contexts else [])]
    costs = ["draft cost", "verification cost", "efficiency", "a round costs"]
    return Grid(
        header=[*head, *costs, "τ", "τ for 1.5×", "α", "α for 1×", "α for 1.5×"],
        rows=rows,
        labels=len(head),
        groups=levels.index("method"),
        caption=(
            "The cost of a round, and the acceptance that is needed to be as fast as plain decoding and 1.5 times as fast; means over "
            "tasks. Cost: (drafting + verification) / efficiency, in plain tokens; it is the τ for 1×. τ: tokens that a round "
            "emits; bold: enough to be faster than plain decoding. α: the same for a chain of k tokens by Leviathan's equation 1; a dash for "
            "trees, for rounds that draft less than k, and where no acceptance is enough."
        ),
        label=f"tab:{study}-break-even",
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
