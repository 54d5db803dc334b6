"""The verbs that measure and audit. Each imports its stage when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specrig.cli.arguments import DEFAULT, ConfigFile, StudyFile, load


def measure(
    study: StudyFile,
    engine: Annotated[str, typer.Option()],
    pair: Annotated[str, typer.Option()],
    method: Annotated[list[str] | None, typer.Option(help="Repeatable. Default: every method of the study")] = None,
    replicate: Annotated[int, typer.Option(help="Number of the replicate, from 0")] = 0,
) -> None:
    """Measure the missing cells of an engine and a pair, in one process."""
    from specrig.measurement.runner import measure

    loaded = load(study)
    measure(
        loaded,
        engine,
        pair,
        method or [job[2] for job in loaded.grid.by_method if job[:2] == (engine, pair)],
        replicate,
    )


def remeasure(
    config: ConfigFile = DEFAULT,
    study: Annotated[Path | None, typer.Option(hidden=True, help="The same; reports of older versions name it")] = None,
) -> None:
    """Quarantine the records of disturbed cells: the next run of the study measures only these cells again."""
    from specrig.measurement.quarantine import quarantine_disturbed
    from specrig.measurement.records import replicate_folder
    from specrig.results.study_data import read_study

    loaded = load(study or config)
    found = read_study(loaded.root)
    disturbed: dict[Path, dict[str, None]] = {}
    for name, reasons in found.disturbances.items():
        job, _, slug = name.rpartition("/")
        for reason in reasons:
            folder = replicate_folder(loaded.root / "records" / job, reason.replicate)
            disturbed.setdefault(folder, {})[slug] = None
            typer.echo(f"{name}, replicate {reason.replicate}: {reason.text}")
    for folder, slugs in disturbed.items():
        quarantine_disturbed(folder, slugs)
    count = sum(map(len, disturbed.values()))
    typer.echo(
        f"{count} record files quarantined: run the study again (make, or snakemake) to measure them"
        if count
        else "no cell is disturbed"
    )


def audit(study: StudyFile = DEFAULT) -> None:
    """Audit every record: at temperature 0 it must equal plain decoding; above, its tokens must fit the target's
    distribution.
    """
    import pandas as pd

    from specrig.audit.run import audit_records
    from specrig.measurement.records import study_records
    from specrig.results.audit_tables import identity

    loaded = load(study)
    records, out = study_records(loaded.root / "records", loaded.replicates), loaded.root / "audit" / "records.csv"
    audit_records(loaded, records, loaded.root, out)
    if text := identity(pd.read_csv(out)):
        typer.echo(text)


def audit_exact(
    study: StudyFile,
    engine: Annotated[str, typer.Option()],
    method: Annotated[str, typer.Option()],
) -> None:
    """Test one method's samples against the exactly known distribution of a tiny model."""
    from specrig.audit.run import audit_exact as run

    loaded = load(study)
    run(loaded, engine, method, loaded.root / "audit" / f"exact-{engine}-{method}.csv")
