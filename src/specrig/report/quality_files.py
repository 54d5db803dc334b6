"""Write `results/<study>/tables/quality`: the scores of each method's outputs and of its baseline's."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from specrig.analysis.quality import Score, quality_table, scores
from specrig.files import write_atomically
from specrig.report import grid
from specrig.report.latex import latex
from specrig.report.quality_table import quality_grid
from specrig.report.study_data import read_study
from specrig.study.study import Study
from specrig.tables import table_text


def write_quality(study: Study, out: Path) -> list[Path]:
    """Score the study's outputs, write quality.csv, .md and .tex into `out`, and return their paths.

    Raises RecordError or PromptError for files that cannot be read.
    """
    return write_quality_table(study_scores(study), study.study, out)


def write_quality_table(found: Iterable[Score], study: str, out: Path) -> list[Path]:
    """Write quality.csv, .md and .tex of these scores into `out`, and return their paths. study: the study's name."""
    table = quality_table(found)
    formatted = quality_grid(table, study)
    texts = {"csv": table_text(table), "md": grid.markdown(formatted), "tex": latex(formatted)}
    for ending, text in texts.items():
        write_atomically(out / f"quality.{ending}", text)
    return [out / f"quality.{ending}" for ending in texts]


def study_scores(study: Study) -> list[Score]:
    """`analysis.quality.scores` of all records whose task has scorers.

    Raises RecordError or PromptError for files that cannot be read.
    """
    scorers = {task: names for task in study.tasks if (names := study.scorers(task))}
    prompts = {task: {prompt.id: prompt for prompt in study.prompts_of(task, study.root)} for task in scorers}
    records = [record for record in read_study(study.root).records if record.cell.task in scorers]
    return scores(records, prompts, scorers, run_code=study.run_generated_code)
