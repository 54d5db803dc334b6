"""The command line `specrig`: one verb a stage. A verb imports its stage when it is called, so that planning loads no
torch.

Errors that the user can mend are printed in a few lines with the fix. The exit code is then 2; after Ctrl-C it is 130.
SPECRIG_DEBUG=1 shows the traceback instead.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from specrig.cli import comparing, decoding, doctor, measuring, publishing, running, serving, training
from specrig.cli.arguments import DEFAULT, ConfigFile, Json, StudyFile, load, print_json
from specrig.cli.examples import epilog

app = typer.Typer(
    name="specrig",
    help="Which speculative-decoding method makes my pair faster on my tasks, by how much, and how surely?",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)

INTERRUPTED = 130
FULL = os.strerror(errno.ENOSPC)


@app.command()
def plan(config: ConfigFile = DEFAULT, as_json: Json = False) -> None:
    """Check a study; list the cells it will measure and, with the reasons, the cells that no engine can run."""
    from specrig.planning.plan import described, plan_of
    from specrig.planning.plan_view import show_plan

    found = plan_of(load(config))
    if as_json:
        print_json(described(found))
    else:
        show_plan(found, Console())


@app.command()
def where(config: ConfigFile = DEFAULT, as_json: Json = False) -> None:
    """Say where a study's report and results are."""
    study = load(config)
    if as_json:
        print_json({"report": study.report, "results": study.root})
    else:
        typer.echo(f"Report: {study.report}\nResults: {study.root}")


@app.command()
def advise(
    pair: Annotated[str, typer.Argument(help="Row of the table of pairs")],
    device: Annotated[str | None, typer.Option(help="e.g. 'RTX 4090', '2x H100'")] = None,
    study: Annotated[Path | None, typer.Option(help="results/<study>, whose measurements come first")] = None,
    pairs: Annotated[Path, typer.Option(help="The table of pairs")] = Path("configs/pairs.tsv"),
    reported: Annotated[Path, typer.Option(help="What others measured")] = Path("configs/reported.csv"),
    trained_by: Annotated[
        Path, typer.Option(help="The study whose recipe trains the pair, where --study does not say")
    ] = DEFAULT,
    as_json: Json = False,
) -> None:
    """Say which method and k to use for a pair, and why: from a study's measurements, or else from a model of the
    hardware.
    """
    from specrig.planning.advice import advise
    from specrig.planning.advice_view import show_advice

    found = advise(pair, pairs, reported, device, study, trained_by)
    if as_json:
        print_json(found)
    else:
        show_advice(found, Console())


@app.command()
def pin(
    config: ConfigFile = Path("configs/hub.yaml"),
    check: Annotated[
        bool, typer.Option("--check", help="Only tell; exit code 1 where something is not pinned")
    ] = False,
) -> None:
    """Write the hub's current commit into the tables for each model and data set that a study uses without a revision."""
    from specrig.planning.pins import pin

    if not pin(load(config), Console(), check=check):
        raise typer.Exit(1)


@app.command()
def methods(as_json: Json = False) -> None:
    """List the methods with their options, and the engines."""
    from specrig.planning.methods_view import described, show_methods

    if as_json:
        print_json(described())
    else:
        show_methods(Console())


@app.command()
def schema(folder: Annotated[Path, typer.Option(help="Where to write")] = Path("workflow/schemas")) -> None:
    """Write the JSON schemas of studies and tables, by which editors complete and check them."""
    from specrig.planning.schemas import write_schemas

    for path in write_schemas(folder):
        typer.echo(path)


@app.command()
def prompts(
    study: StudyFile, task: Annotated[str, typer.Option(help="Row of tasks.tsv with an address or a hub id")]
) -> None:
    """Fetch the prompts of a task from its address or the hub."""
    from specrig.measurement.prompts import fetch_prompts

    loaded = load(study)
    if task not in loaded.tasks or not loaded.rows.tasks[task].fetched:
        known = ", ".join(name for name in loaded.tasks if loaded.rows.tasks[name].fetched) or "none"
        raise typer.BadParameter(f"study {loaded.study} does not fetch task {task!r} (it fetches: {known})")
    fetch_prompts(loaded, task, loaded.root)


for verb in (training.convert, training.corpus, training.train, training.write_text, training.train_jointly):
    app.command()(verb)


app.command()(measuring.measure)
app.command()(measuring.remeasure)
app.command()(measuring.audit)
app.command()(measuring.audit_exact)


@app.command()
def tables(study: StudyFile = DEFAULT) -> None:
    """Compile cells.csv and the method × task tables from the records."""
    import pandas as pd

    from specrig.reporting.tables.files import write_tables
    from specrig.results.disturbed_cells import warning

    loaded = load(study)
    write_tables(loaded.root, loaded.root / "tables")
    if said := warning(pd.read_csv(loaded.root / "tables" / "cells.csv"), loaded.root):
        typer.echo(f"warning: {said}", err=True)


@app.command()
def quality(study: StudyFile = DEFAULT) -> None:
    """Score the outputs of methods and baseline against the references with BLEU, ROUGE and other scorers."""
    from specrig.reporting.tables.quality import write_quality

    loaded = load(study)
    if loaded.run_generated_code:
        Console(stderr=True).print(
            "[bold red]run_generated_code is on: what the models wrote is executed on this machine"
        )
    write_quality(loaded, loaded.root / "tables")


@app.command()
def figures(study: StudyFile = DEFAULT) -> None:
    """Draw the figures from the records and tables."""
    from specrig.reporting.figures.drawings import write_figures

    loaded = load(study)
    write_figures(loaded.root, loaded.root / "figures")


@app.command()
def track(study: StudyFile = DEFAULT) -> None:
    """Enter the study's runs into MLflow; runs that are there already stay unchanged."""
    from specrig.tracking import track

    loaded = load(study)
    track(loaded.root, loaded.report)


@app.command()
def report(study: StudyFile = DEFAULT) -> None:
    """Write the report as one HTML file."""
    from specrig.reporting.documents.html import write_report

    loaded = load(study)
    typer.echo(write_report(loaded.root, loaded.report))


@app.command()
def paper(study: StudyFile = DEFAULT) -> None:
    """Write the report as PDF, and the folder for papers."""
    from specrig.reporting.documents.printed import write_for_paper

    loaded = load(study)
    for path in write_for_paper(loaded.root, loaded.report.parent):
        typer.echo(path)


app.command(context_settings={"ignore_unknown_options": True})(running.run)
app.command()(decoding.decode)
app.command()(doctor.doctor)
app.command()(publishing.publish)
app.command()(publishing.verify)
app.command()(publishing.gallery)
app.command()(comparing.compare)
app.add_typer(serving.serve, name="serve")
for group, prefix in ((app, ""), (serving.serve, "serve ")):
    for command in group.registered_commands:
        name = command.name or command.callback.__name__.replace("_", "-")  # type: ignore[union-attr]
        command.epilog = epilog(prefix + name)


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
        if isinstance(error, OSError) or FULL in str(error):  # safetensors has an error of its own
            name, said = getattr(error, "filename", None), getattr(error, "strerror", None) or str(error)
            reason = f"{name}: {said}" if name else f"{said}{_free(arguments)}"
            return _explain(
                "cannot read or write", f"{reason}\n    → check the path, its permissions and the free space", 2
            )
        reason = f"{type(error).__name__}: {str(error) or 'no message'}"
        return _explain("unexpected error", f"{reason}\n    → SPECRIG_DEBUG=1 shows where; please report it", 1)


def _free(arguments: Sequence[str]) -> str:
    """The free space where a command line writes, for an error that does not say which disk is full."""
    files = [Path(word) for word in arguments if "/" in word and Path(word).is_file()]
    folders = dict.fromkeys([*(file.parent for file in files), Path.cwd(), Path(tempfile.gettempdir())])
    return "; free: " + ", ".join(f"{shutil.disk_usage(folder).free / 1e6:,.1f} MB in {folder}" for folder in folders)


def _explain(title: str, message: str, code: int) -> int:
    console = Console(stderr=True, highlight=False)
    console.print(f"✗ {title}", style="bold red", markup=False)
    console.print(message, markup=False, soft_wrap=True)
    return code
