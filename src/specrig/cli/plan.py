"""The verbs that plan a study: its cells and paths, advice, pinned revisions, methods, schemas."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specrig.cli.arguments import DEFAULT, ConfigFile, Json, known_methods, load, print_json
from specrig.terminal import console


def plan(
    config: ConfigFile = DEFAULT,
    show: Annotated[str | None, typer.Option(metavar="TASK", help="Print the first prompt of a task instead")] = None,
    as_json: Json = False,
) -> None:
    """Check a study, list its cells, also those that no engine can run, with the reasons, and say where results go."""
    from specrig.planning.plan import plan_of, show_plan
    from specrig.planning.prompt_view import show_prompt

    study = load(config)
    if show is not None:
        show_prompt(study, show, console())
        return
    plan = plan_of(study)
    if as_json:
        print_json({**plan, "results": study.root, "report": study.report})
    else:
        show_plan(study, plan, console())
        typer.echo(f"Results: {study.root}\nReport: {study.report}")


def advise(
    pair: Annotated[str, typer.Argument(help="Row of the table of pairs")],
    device: Annotated[str | None, typer.Option(help="e.g. 'RTX 4090', '2x H100'")] = None,
    study: Annotated[
        Path | None,
        typer.Option(help="results/<study> to read; default: the newest in results/ that measured the pair"),
    ] = None,
    pairs: Annotated[Path, typer.Option(help="Table of pairs")] = Path("configs/pairs.tsv"),
    reported: Annotated[Path, typer.Option(help="Table of reported figures")] = Path("configs/reported.csv"),
    trained_by: Annotated[Path, typer.Option(help="Study that trains the pair, where --study does not")] = DEFAULT,
    as_json: Json = False,
) -> None:
    """Advise a method and k for a pair, with reasons: from a study's measurements, else from a cost model.

    Without --device and --study it reads the newest finished study in results/ that measured the pair.
    """
    from specrig.planning.advice import advise
    from specrig.planning.advice_view import show_advice

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
