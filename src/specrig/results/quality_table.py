"""Write `results/<study>/tables/quality`: the scores of each method's outputs and of its baseline's."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from specrig.analysis.cells import row_dicts
from specrig.results import grid
from specrig.results.grid import Grid, GridEntry
from specrig.results.labels import method_name, task_name
from specrig.results.study_data import reading

CAPTION = (
    "Quality of the outputs: the method's score, its baseline's on the same prompts, and the difference with its 95 % "
    "interval over prompts; all k together. A lossless method must score as its baseline does: at temperature 0 the "
    "texts are the same, above they are other samples of one distribution, told apart by a paired randomisation test "
    "at 1 in 1,000."
)


def read_quality(folder: Path, study: str) -> Grid | None:
    """The table that `write_quality` wrote in a study's folder, for readers; None where it is missing or has no rows.
    Raises RecordError, with the path, for a damaged one.
    """
    path = folder / "tables" / "quality.csv"
    if not path.is_file():
        return None
    with reading(path):
        table = pd.read_csv(path, dtype={"variant": str, "note": str}).fillna({"variant": "", "note": ""})
        return None if table.empty else quality_grid(table, study)


def quality_grid(table: pd.DataFrame, study: str) -> Grid:
    """`quality_table` for readers. Scores of lossless methods that differ are struck through."""
    several = [name for name in ("engine", "pair", "batch_size") if len(table[name].unique()) > 1]
    rows = []
    for row in row_dicts(table):
        labels = [
            *(str(row[name]) for name in several),
            task_name(row["task"]),
            method_name(row["method"], variant=row["variant"], lossless=row["lossless"]),
            f"{row['temperature']:g}",
            str(row["ks"]),
            str(row["scorer"]),
        ]
        differs = row["lossless"] and row["same"] is False
        rows.append(
            [
                *map(GridEntry, labels),
                GridEntry(str(row["prompts"])),
                GridEntry(grid.number(row["score"]), struck=differs),
                GridEntry(grid.number(row["baseline_score"])),
                grid.measured(row, "difference"),
                GridEntry(grid.percent(row["identical"])),
                GridEntry(
                    row["note"] or ("differs" if row["same"] is False else "same") + f" (p = {row['p_value']:.2g})"
                ),
            ]
        )
    header = [*(name.replace("_", " ") for name in several), "task", "method", "T", "k", "scorer"]
    return Grid(
        header=[*header, "prompts", "score", "baseline", "difference", "identical texts", "finding"],
        rows=rows,
        labels=len(header),
        groups=len(several),
        caption=CAPTION,
        label=f"tab:{study}-quality",
    )
