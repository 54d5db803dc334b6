"""The arguments that several verbs of the command line share, and the reading of their study. No torch here."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from specrig.study.study import Study

ConfigFile = Annotated[Path, typer.Argument(help="A study's config, e.g. configs/quick.yaml")]
StudyFile = Annotated[Path, typer.Option("--study", help="results/<study>/study.json, or a config")]
PairName = Annotated[str, typer.Option(help="Row of pairs.tsv")]


def load(file: Path) -> Study:
    """Read the study that a verb works on from its config or study.json. Raises StudyError."""
    from specrig.study.load import load_study

    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # no bars in logs
    return load_study(file)
