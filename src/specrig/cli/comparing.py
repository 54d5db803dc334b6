"""The verb of the command line that compares two finished studies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from specrig.cli.arguments import Json, print_json

WHERE = "results/<study>, a published study, or a study's config"


def compare(
    a: Annotated[Path, typer.Argument(help=f"The first study: {WHERE}")],
    b: Annotated[Path, typer.Argument(help="The second study, likewise")],
    as_json: Json = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page to this file")] = None,
) -> None:
    """Say which cells of two studies differ beyond chance, by how much, and what else differs that could explain it."""
    from specrig.sharing.compare.apart import compared
    from specrig.sharing.compare.comparison import Side
    from specrig.sharing.compare.sources import opened
    from specrig.sharing.compare.view import as_values, show, write_page

    with opened(a) as first, opened(b) as second:
        comparison = compared(Side(str(a), first), Side(str(b), second))
        if as_json:
            print_json(as_values(comparison))
        if html is not None:
            typer.echo(write_page(comparison, html), err=as_json)
        if not as_json and html is None:
            show(comparison, Console())
