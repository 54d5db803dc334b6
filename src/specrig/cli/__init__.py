"""The command line `specrig`: one verb a stage. A verb imports its stage when it is called, so that planning loads no torch.

Errors that the user can mend are printed in a few lines with the fix. The exit code is then 2; after Ctrl-C it is 130.
SPECRIG_DEBUG=1 shows the traceback instead.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from specrig.cli import comparing, publishing, serving, training
from specrig.cli.arguments import ConfigFile, StudyFile, load

app = typer.Typer(
    name="specrig",
    help="Which speculative-decoding method makes my pair faster on my tasks, by how much, and how surely?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

INTERRUPTED = 130


@app.command()
def plan(config: ConfigFile = Path("configs/quick.yaml")) -> None:
    """Check a study; list the cells it will measure and, with the reasons, the cells that no engine can run."""
    from specrig.planning.plan import plan_of
    from specrig.planning.plan_view import show_plan

    show_plan(plan_of(load(config)), Console())


@app.command()
def where(config: ConfigFile = Path("configs/quick.yaml")) -> None:
    """Say where a study's report and results are."""
    study = load(config)
    typer.echo(f"Report: {study.report}\nResults: {study.root}")


@app.command()
def advise(
    pair: Annotated[str, typer.Argument(help="Row of the table of pairs")],
    device: Annotated[str | None, typer.Option(help="e.g. 'RTX 4090', '2x H100'")] = None,
    study: Annotated[Path | None, typer.Option(help="results/<study>, whose measurements come first")] = None,
    pairs: Annotated[Path, typer.Option(help="The table of pairs")] = Path("configs/pairs.tsv"),
    reported: Annotated[Path, typer.Option(help="What others measured")] = Path("configs/reported.csv"),
) -> None:
    """Say which method and k to use for a pair, and why: from a study's measurements, or else from a model of the hardware."""
    from specrig.planning.advice import advise
    from specrig.planning.advice_view import show_advice

    show_advice(advise(pair, pairs, reported, device, study), Console())


@app.command()
def pin(
    config: ConfigFile = Path("configs/hub.yaml"),
    check: Annotated[bool, typer.Option("--check", help="Only tell; exit code 1 where something is not pinned")] = False,
) -> None:
    """Write the hub's current commit into the tables for each model and data set that a study uses without a revision."""
    from specrig.planning.pins import pin

    if not pin(load(config), Console(), check=check):
        raise typer.Exit(1)


@app.command()
def methods() -> None:
    """List the methods with their options, and the engines."""
    from specrig.planning.methods_view import show_methods

    show_methods(Console())


@app.command()
def schema(folder: Annotated[Path, typer.Option(help="Where to write")] = Path("workflow/schemas")) -> None:
    """Write the JSON schemas of studies and tables, by which editors complete and check them."""
    from specrig.planning.schemas import write_schemas

    for path in write_schemas(folder):
        typer.echo(path)


@app.command()
def prompts(study: StudyFile, task: Annotated[str, typer.Option(help="Row of tasks.tsv with an address or a hub id")]) -> None:
    """Fetch the prompts of a task from its address or the hub."""
    from specrig.measurement.prompts import fetch_prompts

    loaded = load(study)
    if task not in loaded.tasks or not loaded.rows.tasks[task].fetched:
        known = ", ".join(name for name in loaded.tasks if loaded.rows.tasks[name].fetched) or "none"
        raise typer.BadParameter(f"study {loaded.study} does not fetch task {task!r} (it fetches: {known})")
    fetch_prompts(loaded, task, loaded.root)


for verb in (training.convert, training.corpus, training.train, training.write_text, training.train_jointly):
    app.command()(verb)


@app.command()
def measure(
    study: StudyFile,
    engine: Annotated[str, typer.Option()],
    pair: Annotated[str, typer.Option()],
    method: Annotated[
        list[str] | None, typer.Option(help="May be given several times; without it, every method of the study")
    ] = None,
    replicate: Annotated[int, typer.Option(help="Which time of `replicates`, from 0")] = 0,
) -> None:
    """Measure, in one process, those cells of an engine and a pair that are not measured yet."""
    from specrig.measurement.runner import measure

    loaded = load(study)
    measure(loaded, engine, pair, method or [job[2] for job in loaded.grid.jobs if job[:2] == (engine, pair)], replicate)


@app.command()
def remeasure(study: StudyFile) -> None:
    """Set the records of disturbed cells aside, so that the next run of the study measures only these cells again."""
    from specrig.measurement.recording import set_aside
    from specrig.measurement.records import replicate_folder
    from specrig.reporting.study_data import read_study

    loaded = load(study)
    found = read_study(loaded.root)
    aside: dict[Path, dict[str, None]] = {}
    for name, reasons in found.disturbances.items():
        job, _, slug = name.rpartition("/")
        for reason in reasons:
            folder = replicate_folder(loaded.root / "records" / job, reason.replicate)
            aside.setdefault(folder, {})[slug] = None
            typer.echo(f"{name}, replicate {reason.replicate}: {reason.text}")
    for folder, slugs in aside.items():
        set_aside(folder, slugs)
    count = sum(map(len, aside.values()))
    typer.echo(
        f"{count} record files set aside: run the study again (make, or snakemake) to measure them"
        if count
        else "no cell is disturbed"
    )


@app.command()
def audit(study: StudyFile) -> None:
    """Audit every record: at temperature 0 it must equal plain decoding; above, its tokens must fit the target's distribution."""
    import pandas as pd

    from specrig.audit.run import audit_records
    from specrig.measurement.records import study_records
    from specrig.reporting.verdicts import identity

    loaded = load(study)
    records, out = study_records(loaded.root / "records", loaded.replicates), loaded.root / "audit" / "records.csv"
    audit_records(loaded, records, loaded.root, out)
    if said := identity(pd.read_csv(out)):
        typer.echo(said)


@app.command()
def audit_exact(
    study: StudyFile,
    engine: Annotated[str, typer.Option()],
    method: Annotated[str, typer.Option()],
) -> None:
    """Test one method's samples against the exactly known distribution of a tiny model."""
    from specrig.audit.run import audit_exact as run

    loaded = load(study)
    run(loaded, engine, method, loaded.root / "audit" / f"exact-{engine}-{method}.csv")


@app.command()
def tables(study: StudyFile) -> None:
    """Compile cells.csv and the method × task tables from the records."""
    import pandas as pd

    from specrig.reporting.disturbance import warning
    from specrig.reporting.tables import write_tables

    loaded = load(study)
    write_tables(loaded.root, loaded.root / "tables")
    if said := warning(pd.read_csv(loaded.root / "tables" / "cells.csv"), loaded.root):
        typer.echo(f"warning: {said}", err=True)


@app.command()
def quality(study: StudyFile) -> None:
    """Score the outputs of methods and baseline against the references with BLEU, ROUGE and other scorers."""
    from specrig.reporting.quality import write_quality

    loaded = load(study)
    if loaded.run_generated_code:
        Console(stderr=True).print("[bold red]run_generated_code is on: what the models wrote is executed on this machine")
    write_quality(loaded, loaded.root / "tables")


@app.command()
def figures(study: StudyFile) -> None:
    """Draw the figures from the records and tables."""
    from specrig.reporting.figures import write_figures

    loaded = load(study)
    write_figures(loaded.root, loaded.root / "figures")


@app.command()
def track(study: StudyFile) -> None:
    """Enter the study's runs into MLflow; runs that are there already stay unchanged."""
    from specrig.tracking import track

    loaded = load(study)
    track(loaded.root, loaded.report)


@app.command()
def report(study: StudyFile) -> None:
    """Write the report as one HTML file and as PDF, and the folder for papers."""
    from specrig.reporting.reports import write_reports

    loaded = load(study)
    for path in write_reports(loaded.root, loaded.report.parent):
        typer.echo(path)


app.command()(publishing.publish)
app.command()(publishing.verify)
app.command()(publishing.gallery)
app.command()(comparing.compare)
app.add_typer(serving.serve, name="serve")


def main() -> None:
    """Run the command line that the process was given, and exit with its code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run a command line (without the program's name) and return its exit code. Errors are printed, not raised."""
    try:
        code = app(arguments, standalone_mode=False)
        if code == INTERRUPTED:  # typer has caught the signal
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return _explain("interrupted", "Finished cells are kept; the same command goes on from there.", INTERRUPTED)
    except typer.Exit as stop:
        return stop.exit_code
    except Exception as error:
        # Wrong usage; by its face, since typer's own copy of click is private.
        if hasattr(error, "show") and isinstance(code := getattr(error, "exit_code", None), int):
            error.show()
            return code
        if os.environ.get("SPECRIG_DEBUG") == "1":
            raise
        # SpecRig's own exceptions are written for the user: they name the place and the fix.
        if type(error).__module__.split(".")[0] == "specrig":
            return _explain(type(error).__name__, str(error), 2)
        if isinstance(error, OSError):
            where = f"{error.filename}: " if error.filename else ""
            reason = f"{where}{error.strerror or error}"
            return _explain("cannot read or write", f"{reason}\n    → check the path, its permissions and the free space", 2)
        reason = f"{type(error).__name__}: {str(error) or 'no message'}"
        return _explain("unexpected error", f"{reason}\n    → SPECRIG_DEBUG=1 shows where; please report it", 1)


def _explain(title: str, message: str, code: int) -> int:
    console = Console(stderr=True, highlight=False)
    console.print(f"✗ {title}", style="bold red", markup=False)
    console.print(message, markup=False, soft_wrap=True)
    return code
