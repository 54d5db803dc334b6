"""The verbs that plan a study: what it will run, where its results are, which method to take, what the tables may hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from specrig.cli.arguments import DEFAULT, ConfigFile, Json, load, print_json


def plan(config: ConfigFile = DEFAULT, as_json: Json = False) -> None:
    """Check a study; list the cells it will measure and, with the reasons, the cells that no engine can run."""
    from specrig.planning.plan import described, plan_of
    from specrig.planning.plan_view import show_plan

    found = plan_of(load(config))
    if as_json:
        print_json(described(found))
    else:
        show_plan(found, Console())


def where(config: ConfigFile = DEFAULT, as_json: Json = False) -> None:
    """Say where a study's report and results are."""
    study = load(config)
    if as_json:
        print_json({"report": study.report, "results": study.root})
    else:
        typer.echo(f"Report: {study.report}\nResults: {study.root}")


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


def methods(as_json: Json = False) -> None:
    """List the methods with their options, and the engines."""
    from specrig.planning.methods_view import described, show_methods

    if as_json:
        print_json(described())
    else:
        show_methods(Console())


def schema(folder: Annotated[Path, typer.Option(help="Where to write")] = Path("workflow/schemas")) -> None:
    """Write the JSON schemas of studies and tables, by which editors complete and check them."""
    from specrig.planning.schemas import write_schemas

    for path in write_schemas(folder):
        typer.echo(path)
