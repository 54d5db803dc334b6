"""The verbs for finished studies: publish, verify, compare two."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specrig.cli.arguments import DEFAULT, Json, load, print_json
from specrig.terminal import console

WHERE = "results/<study>, a published study, or a study's config"


def publish(
    config: Annotated[Path, typer.Argument(help="Config of a finished study")] = DEFAULT,
    name: Annotated[
        str | None, typer.Option("--as", help="Name of the publication. Default: <hardware>-<study>")
    ] = None,
    to: Annotated[Path, typer.Option(help="Folder of publications")] = Path("reports/published"),
    as_json: Json = False,
) -> None:
    """Publish a finished study for others to check: records, tables, report; no weights or prompts."""
    from specrig.sharing.publish import publish

    folder, left_out = publish(load(config), name, to)
    if as_json:
        print_json({"folder": folder, "left_out": left_out})
        return
    for what in left_out:
        typer.echo(f"left out: {what}", err=True)
    typer.echo(folder)


def verify(
    folder: Annotated[Path, typer.Argument(help="A published study, e.g. reports/published/<hardware>-<study>")],
    as_json: Json = False,
) -> None:
    """Check a published study and compute its tables again from its records; exit code 1 if anything differs."""
    from specrig.sharing.verify import running_code, verify

    verification = verify(folder, (lambda _: None) if as_json else typer.echo)
    if as_json:
        manifest = verification.manifest
        print_json(
            {
                "study": manifest.study,
                "hardware": manifest.hardware,
                "measured_with": manifest.measured_with,
                "published_with": manifest.code,
                "verified_with": running_code(),
                "recomputed": verification.recomputed,
                "differences": verification.differences,
                "findings": verification.findings,
            }
        )
    if verification.differences:
        raise typer.Exit(1)


def compare(
    a: Annotated[Path, typer.Argument(help=f"The first study: {WHERE}")],
    b: Annotated[Path, typer.Argument(help="The second study, likewise")],
    as_json: Json = False,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write the table to this file")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page to this file")] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Exit with 1 where the acceptance length fell by more than this share, e.g. 0.02"
        ),
    ] = None,
) -> None:
    """Compare two studies cell by cell: the speedup of each, their ratio, and whether outputs are equal."""
    from specrig.analysis.cells import row_dicts
    from specrig.files import write_atomically
    from specrig.sharing.compare import compare, comparison_page
    from specrig.tables import table_text
    from specrig.terminal import Column, print_table

    comparison = compare(a, b)
    lower = [] if tolerance is None else list(comparison.lower_acceptance(tolerance)["cell"])
    if csv is not None:
        write_atomically(csv, table_text(comparison.cells))
    if html is not None:
        write_atomically(html, comparison_page(comparison))
    for written in filter(None, (csv, html)):
        typer.echo(written, err=as_json)
    if as_json:
        print_json(
            {
                **{"a": comparison.a, "b": comparison.b, "cells": row_dicts(comparison.cells)},
                **{"only_a": comparison.only_a, "only_b": comparison.only_b, "lower_acceptance": lower},
            }
        )
    elif csv is None and html is None:
        out, table = console(), comparison.table
        for line in (comparison.a, comparison.b, "", *comparison.sentences, "", table.caption):
            out.print(line, markup=False, soft_wrap=True)
        columns = [Column(name, right=is_number, breaks=not is_number) for name, is_number in table.columns]
        for group, rows in table.grouped():
            out.print(f"\n{group}" if group else "", style="bold", markup=False)
            print_table(out, columns, [[f"{entry.text} {entry.note}".strip() for entry in row] for row in rows])
    if tolerance is not None and not as_json:
        typer.echo("\n".join(comparison.acceptance_sentences(tolerance)))
    if lower:
        raise typer.Exit(1)
