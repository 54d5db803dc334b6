"""Read `results/<study>/tables/quality.csv`, the scores of each method's outputs and of its baseline's, for readers."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from specrig.analysis.cells import row_dicts
from specrig.analysis.quality import COLUMNS
from specrig.report import grid
from specrig.report.damage import reading
from specrig.report.grid import Column, Grid, GridEntry
from specrig.report.labels import named, task_name
from specrig.tables import read_table

CAPTION = (
    "Quality of the outputs: the method's score, its baseline's on the same prompts, and the difference with its 95 % "
    "interval over prompts; all k together. A lossless method must score as its baseline does: at temperature 0 the "
    "texts are the same, above they are other samples of one distribution, told apart by a paired randomisation test "
    "at 1 in 1,000."
)


def read_quality(folder: Path) -> pd.DataFrame:
    """The table that `write_quality` wrote in a study's folder; without rows where it is missing.

    Raises RecordError, with the path, for a damaged one.
    """
    path = folder / "tables" / "quality.csv"
    if not path.is_file():
        return pd.DataFrame(columns=COLUMNS)
    with reading(path):
        table = read_table(path)
        if lacking := [name for name in COLUMNS if name not in table]:
            raise ValueError(f"it lacks {', '.join(lacking)}")
        return table


def quality_grid(table: pd.DataFrame, study: str) -> Grid:
    """`quality_table` for readers. Scores of lossless methods that differ are struck through. Methods whose texts all equal
    the baseline's share a row.
    """
    table = _equal_merged(table)
    several = [name for name in ("engine", "pair", "batch_size") if len(table[name].unique()) > 1]
    columns: dict[str, Column] = {
        **{name.replace("_", " "): grid.text(name) for name in several},
        "task": lambda row: task_name(row["task"]),
        "method": lambda row: row["merged"] or named(row, lossless=row["lossless"]),
        "T": lambda row: f"{row['temperature']:g}",
        "k": grid.text("ks"),
        "scorer": grid.text("scorer"),
        "prompts": grid.text("prompts"),
        "score": lambda row: GridEntry(grid.number(row["score"]), struck=row["lossless"] and row["same"] is False),
        "baseline": grid.figure("baseline_score"),
        "difference": grid.estimate("difference"),
        "identical texts": grid.share("identical"),
        "finding": lambda row: (
            row["note"] or ("differs" if row["same"] is False else "same") + f" (p = {row['p_value']:.2g})"
        ),
    }
    labels, label = len(several) + 5, f"tab:{study}-quality"
    return Grid.of(row_dicts(table), columns, labels=labels, groups=len(several), caption=CAPTION, label=label)


def _equal_merged(table: pd.DataFrame) -> pd.DataFrame:
    """The table with one row for all methods whose texts equal those of the same baseline; column `merged` counts them."""
    same_texts = ["engine", "pair", "task", "temperature", "batch_size", "scorer", "prompts", "baseline_score"]
    equal = table["identical"].eq(1)
    groups = table[equal].groupby(same_texts, sort=False, dropna=False)
    counts = groups["method"].transform("size").reindex(table.index).fillna(1).astype(int)
    first = ~(equal & table.duplicated([*same_texts, "identical"]))
    merged = counts.map(lambda count: f"{count} with equal texts" if count > 1 else "")
    ks = table["ks"].astype(str).where(merged.eq(""), "–")
    return table.assign(merged=merged, ks=ks)[first]
