"""The verbs that plan a study: its cells, its paths, advice, pinned revisions, methods, schemas."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specrig.cli.arguments import DEFAULT, ConfigFile, Json, known_methods, load, print_json
from specrig.terminal import console


def plan(config: ConfigFile = DEFAULT, as_json: Json = False) -> None:
    """Check a study and list its cells, also those that no engine can run, with the reasons."""
    from specrig.planning.plan import described, plan_of, show_plan

    found = plan_of(load(config))
    if as_json:
        print_json(described(found))
    else:
        show_plan(found, console())


def where(config: ConfigFile = DEFAULT, as_json: Json = False) -> None:
    """Print the paths of a study's report and results."""
    study = load(config)
    if as_json:
        print_json({"report": study.report, "results": study.root})
    else:
        typer.echo(f"Report: {study.report}\nResults: {study.root}")


def advise(
    pair: Annotated[str, typer.Argument(help="Row of the table of pairs")],
    device: Annotated[str | None, typer.Option(help="e.g. 'RTX 4090', '2x H100'")] = None,
    study: Annotated[Path | None, typer.Option(help="results/<study>, whose measurements are preferred")] = None,
    pairs: Annotated[Path, typer.Option(help="Table of pairs")] = Path("configs/pairs.tsv"),
    reported: Annotated[Path, typer.Option(help="Table of reported figures")] = Path("configs/reported.csv"),
    trained_by: Annotated[Path, typer.Option(help="Study that trains the pair, where --study does not")] = DEFAULT,
    as_json: Json = False,
) -> None:
    """Advise a method and k for a pair, with reasons: from a study's measurements, else from a cost model."""
    from specrig.planning.advice import advise, show_advice

    found = advise(pair, pairs, reported, device, study, trained_by)
    if as_json:
        print_json(found)
    else:
        show_advice(found, console())


def pin(
    config: ConfigFile = Path("configs/hub.yaml"),
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit code 1 if a revision is missing")] = False,
) -> None:
    """Pin the models and data sets of a study: write the hub's current commits into its tables."""
    from specrig.planning.pins import pin

    if not pin(load(config), console(), check=check):
        raise typer.Exit(1)


def methods(
    name: Annotated[
        str | None, typer.Argument(help="A method or engine, whose options are printed", autocompletion=known_methods)
    ] = None,
    as_json: Json = False,
) -> None:
    """List the methods and engines, or the options of one."""
    from specrig.planning.methods_view import described, show_methods

    if as_json:
        print_json(described(name))
    else:
        show_methods(console(), name)


def schema(folder: Annotated[Path, typer.Option(help="Folder to write to")] = Path("workflow/schemas")) -> None:
    """Write the JSON schemas, with which editors complete studies and tables, and the captions of Snakemake's report."""
    from specrig.planning.schemas import write_captions, write_schemas

    for path in [*write_schemas(folder), *write_captions(folder.parent / "report")]:
        typer.echo(path)
