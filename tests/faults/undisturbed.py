"""What the faults are judged by: runs of configs/test.yaml as a user starts them, and what of their results may not
depend on a fault.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd

import runs
from specrig.measurement.records import study_records

RESULTS = Path("results/test")
RECORDS = RESULTS / "records"
CELLS = RESULTS / "tables/cells.csv"
"""As a target: measuring, audits and tables, without figures, report and MLflow."""
TIMELESS = ["engine", "pair", "method", "k", "task", "temperature", "batch_size", "prompts", "tokens"]
TIMELESS += ["acceptance_rate", "acceptance_length", "alpha"]
"""Columns of the table of cells in which no time is."""


def run(folder: Path, *arguments: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run the study in `folder` to the target in `arguments`, by default the tables; settings: of the process."""
    return runs.run(folder, *arguments or [str(CELLS)], **settings)


def copied(start: Path, folder: Path) -> Path:
    """A copy of a study's folder with the times of its files, by which Snakemake judges."""
    shutil.copytree(start, folder, copy_function=shutil.copy2)
    return folder


def without_measurements(folder: Path) -> None:
    """Take away what was measured and what follows from it; models and exact audits stay."""
    for name in ("records", "measured", "tables"):
        shutil.rmtree(folder / RESULTS / name, ignore_errors=True)
    (folder / RESULTS / "audit/records.csv").unlink(missing_ok=True)


def stamps(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Record file -> (time of writing, content)."""
    return runs.stamps(folder / RECORDS)


def timeless(folder: Path) -> dict[str, Any]:
    """Everything that a rerun must bring back exactly: the table of cells but for times, and `outputs`."""
    cells = pd.read_csv(folder / CELLS)[TIMELESS]
    return {"cells": cells.to_dict("records"), "outputs": outputs(folder)}


def outputs(folder: Path) -> dict[Any, Any]:
    """Of every prompt of every cell: seed, token ids, accepted tokens of each round, and the digest of all that decides
    them.
    """
    return {
        (each.cell.name, each.prompt_id, each.repeat, each.replicate): (
            each.seed,
            each.digest,
            each.text,
            each.run.tokens,
            each.run.rounds.model_dump(),
            each.run.overlap,
            each.baseline.tokens,
        )
        for each in study_records(folder / RECORDS)
    }
