"""The verbs of the command line that publish a study and verify a publication."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specrig.cli.arguments import DEFAULT, Json, load, print_json


def publish(
    config: Annotated[
        Path, typer.Argument(help="A finished study's config; or a publication, to render it anew with changed code")
    ] = DEFAULT,
    name: Annotated[str | None, typer.Option("--as", help="Name of the publication; else <hardware>-<study>")] = None,
    to: Annotated[Path, typer.Option(help="Folder of publications")] = Path("reports/published"),
) -> None:
    """Publish a finished study for others to check: compressed records, tables, figures, report; no weights or prompts."""
    from specrig.sharing.publish import publish, render_again

    if config.is_dir():
        typer.echo(render_again(config))
        return
    folder, notes = publish(load(config), name, to)
    for note in notes:
        typer.echo(note, err=True)
    typer.echo(folder)


def verify(
    folder: Annotated[Path, typer.Argument(help="A published study, e.g. reports/published/<hardware>-<study>")],
    as_json: Json = False,
) -> None:
    """Compute the tables of a published study again from its records, and say what differs; exit code 1 if anything
    does.
    """
    from specrig.sharing.verify import verify

    found = verify(folder, (lambda _: None) if as_json else typer.echo)
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
    """Write the index of published studies, with a picture of what each found: README.md and headline.svg in their
    folder.
    """
    from specrig.sharing.gallery import write_gallery

    for path in write_gallery(folder):
        typer.echo(path)
