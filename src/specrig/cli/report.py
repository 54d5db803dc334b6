"""The verbs that make tables, figures, MLflow runs and the report. Each imports its stage when it is called."""

from __future__ import annotations

from typing import Annotated

import typer

from specrig.cli.arguments import DEFAULT, StudyFile, load
from specrig.terminal import console


def tables(
    study: StudyFile = DEFAULT,
    excel: Annotated[bool, typer.Option("--excel", help="Also write tables/excel/*.csv, for spreadsheets")] = False,
) -> None:
    """Compile cells.csv and the method × task tables from the records."""
    from specrig.report.table_files import write_tables

    loaded = load(study)
    write_tables(loaded.root, loaded.root / "tables", excel=excel)


def quality(study: StudyFile = DEFAULT) -> None:
    """Score the outputs of methods and baseline against the references with BLEU, ROUGE and other scorers."""
    from specrig.report.quality_files import write_quality

    loaded = load(study)
    if loaded.run_generated_code:
        console(stderr=True).print(
            "[bold red]run_generated_code is on: code that the models wrote runs on this machine"
        )
    write_quality(loaded, loaded.root / "tables")


def figures(study: StudyFile = DEFAULT) -> None:
    """Draw the figures from the records and tables."""
    from specrig.report.figures.drawings import write_figures

    loaded = load(study)
    write_figures(loaded.root, loaded.root / "figures")


def track(study: StudyFile = DEFAULT) -> None:
    """Log the study's runs to MLflow; unchanged runs are kept."""
    from specrig.tracking import track

    loaded = load(study)
    track(loaded.root, loaded.report)


def report(study: StudyFile = DEFAULT) -> None:
    """Write the report as one HTML file."""
    from specrig.report.documents.html import write_report

    loaded = load(study)
    typer.echo(write_report(loaded.root, loaded.report))


def paper(study: StudyFile = DEFAULT) -> None:
    """Write the report as PDF, and the folder for papers."""
    from specrig.report.documents.printed import write_for_paper

    loaded = load(study)
    for path in write_for_paper(loaded.root, loaded.report.parent):
        typer.echo(path)
