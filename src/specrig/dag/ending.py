"""What a run ends with: the answer of its study, and where report and results are."""

from __future__ import annotations

from pathlib import Path

TEXTS = ("variant", "disturbed", "cross_fitted_disturbed")
"""Columns of the table of speedups that would be read as numbers where no row has an entry."""


def ending(root: Path, report: Path) -> str:
    """A line for each engine and pair, and the paths of report and results; only the paths where the run made no tables."""
    table = root / "tables" / "speedup.csv"
    found = []
    if table.is_file():
        import pandas as pd  # planning needs none

        from specrig.results.conclusions import in_short

        found = in_short(pd.read_csv(table, dtype=dict.fromkeys(TEXTS, str)).fillna(dict.fromkeys(TEXTS, "")))
    return "\n".join([*found, f"Report: {report}", f"Results: {root}"])
