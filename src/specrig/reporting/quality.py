"""Write `results/<study>/tables/quality`: the scores of each method's outputs and of its baseline's."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from specrig.analysis.cells import row_dicts
from specrig.analysis.quality import Score, quality_table, scores
from specrig.measurement.records import write_atomically
from specrig.reporting import grid
from specrig.reporting.grid import Entry, Grid
from specrig.reporting.latex import latex
from specrig.reporting.study_data import read_study
from specrig.reporting.style import method_name, task_name
from specrig.study.study import Study

CAPTION = (
    "Quality of the outputs: the method's score, its baseline's on the same prompts, and the difference with its 95 % "
    "interval over prompts; all k together. A lossless method must score as its baseline does: at temperature 0 the texts are the "
    "same, above they are other samples of one distribution, told apart by a paired randomisation test at 1 in 1,000."
)


def write_quality(study: Study, out: Path) -> list[Path]:
    """Score the study's outputs, write quality.csv, .md and .tex into `out`, and return their paths.

    Raises RecordError or PromptError for files that cannot be read.
    """
    return write_quality_table(study_scores(study), study.study, out)


def study_scores(study: Study) -> list[Score]:
    """`analysis.quality.scores` of all records whose task has scorers.

    Raises RecordError or PromptError for files that cannot be read.
    """
    scorers = {task: study.rows.tasks[task].scorer.split() for task in study.tasks if study.rows.tasks[task].scorer}
    prompts = {task: {prompt.id: prompt for prompt in study.prompts_of(task, study.root)} for task in scorers}
    records = [record for record in read_study(study.root).records if record.cell.task in scorers]
    return scores(records, prompts, scorers, run_code=study.run_generated_code)


def write_quality_table(found: Iterable[Score], study: str, out: Path) -> list[Path]:
    """Write quality.csv, .md and .tex of these scores into `out`, and return their paths. study: the study's name."""
    table = quality_table(found)
    shown = quality_grid(table, study)
    texts = {"csv": table.to_csv(index=False), "md": grid.markdown(shown), "tex": latex(shown)}
    for ending, text in texts.items():
        write_atomically(out / f"quality.{ending}", text)
    return [out / f"quality.{ending}" for ending in texts]


def read_quality(folder: Path, study: str) -> Grid | None:
    """The table that `write_quality` wrote in a study's folder, for readers; None where it is missing or has no rows."""
    path = folder / "tables" / "quality.csv"
    table = (
        pd.read_csv(path, dtype={"variant": str, "note": str}).fillna({"variant": "", "note": ""})
        if path.is_file()
        else pd.DataFrame()
    )
    return None if table.empty else quality_grid(table, study)


def quality_grid(table: pd.DataFrame, study: str) -> Grid:
    """`analysis.quality.quality_table` as a table for readers. Scores of lossless methods that differ are struck
    through.
    """
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
                *map(Entry, labels),
                Entry(str(row["prompts"])),
                Entry(grid.number(row["score"]), struck=differs),
                Entry(grid.number(row["baseline_score"])),
                Entry(grid.number(row["difference"]), grid.interval(row["difference_low"], row["difference_high"])),
                Entry(grid.percent(row["identical"])),
                Entry(row["note"] or ("differs" if row["same"] is False else "same") + f" (p = {row['p_value']:.2g})"),
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
