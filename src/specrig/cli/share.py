"""The verbs for finished studies: publish, verify, list what is published, compare two."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specrig.cli.arguments import DEFAULT, Json, load, print_json
from specrig.terminal import console

WHERE = "results/<study>, a published study, or a study's config"


def publish(
    config: Annotated[
        Path, typer.Argument(help="Config of a finished study; or a publication, to render it again with changed code")
    ] = DEFAULT,
    name: Annotated[
        str | None, typer.Option("--as", help="Name of the publication. Default: <hardware>-<study>")
    ] = None,
    to: Annotated[Path, typer.Option(help="Folder of publications")] = Path("reports/published"),
    as_json: Json = False,
) -> None:
    """Publish a finished study for others to check: records, tables, figures, report; no weights or prompts."""
    from specrig.sharing.publish import publish, rerender

    folder, notes = (rerender(config), []) if config.is_dir() else publish(load(config), name, to)
    if as_json:
        print_json({"folder": folder, "notes": notes})
        return
    for note in notes:
        typer.echo(note, err=True)
    typer.echo(folder)


def verify(
    folder: Annotated[Path, typer.Argument(help="A published study, e.g. reports/published/<hardware>-<study>")],
    render: Annotated[
        bool, typer.Option(help="Render figures and report again, if the same code published them")
    ] = True,
    as_json: Json = False,
) -> None:
    """Check a published study and compute it again from its records; exit code 1 if anything differs."""
    from specrig.sharing.verify import verify

    found = verify(folder, (lambda _: None) if as_json else typer.echo, render=render)
    if as_json:
        manifest = found.manifest
        print_json(
            {
                "study": manifest.study,
                "hardware": manifest.hardware,
                "measured_with": manifest.measured_with,
                "published_with": {"specrig": manifest.specrig, "commit": manifest.commit, "dirty": manifest.dirty},
                "verified_with": {"specrig": found.now.specrig, "commit": found.now.commit, "dirty": found.now.dirty},
                "differences": found.wrong,
                "findings": found.findings,
            }
        )
    if found.wrong:
        raise typer.Exit(1)


def gallery(folder: Annotated[Path, typer.Argument(help="Folder of publications")] = Path("reports/published")) -> None:
    """Write the index of published studies: README.md, headline.svg with the speedups, index.html to filter them."""
    from specrig.sharing.gallery import write_gallery

    for path in write_gallery(folder):
        typer.echo(path)


def compare(
    a: Annotated[Path, typer.Argument(help=f"The first study: {WHERE}")],
    b: Annotated[Path, typer.Argument(help="The second study, likewise")],
    as_json: Json = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page to this file")] = None,
) -> None:
    """Compare two studies: which cells differ beyond chance, by how much, and what in their setup can explain it."""
    from specrig.sharing.compare.render import print_comparison, write_page
    from specrig.sharing.compare.sources import opened
    from specrig.sharing.compare.study_comparison import ComparedStudy, StudyComparison
    from specrig.sharing.compare.tables import as_values

    with opened(a) as first, opened(b) as second:
        comparison = StudyComparison(ComparedStudy("A", str(a), first), ComparedStudy("B", str(b), second))
        if as_json:
            print_json(as_values(comparison))
        if html is not None:
            typer.echo(write_page(comparison, html), err=as_json)
        if not as_json and html is None:
            print_comparison(comparison, console())
