"""The arguments that several verbs share, and the reading of their study. No torch here."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic_core import to_json

if TYPE_CHECKING:
    from specrig.study.study import Study

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""
DEFAULT = Path("configs/quick.yaml")
"""The default study."""
ConfigFile = Annotated[Path, typer.Argument(help="A study's config, e.g. configs/quick.yaml")]
StudyFile = Annotated[Path, typer.Option("--study", help="results/<study>/study.json, or a config")]


def known_methods() -> list[str]:
    """The names of the methods, for completion."""
    from specrig.decoding.drafters import registry

    return list(registry())


Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts")]
PairName = Annotated[str, typer.Option(help="Row of the table of pairs")]


def print_json(value: Any) -> None:
    """Print a value as JSON on standard output: dataclasses and models as objects, paths as text, NaN as null."""
    typer.echo(to_json(value, indent=1, inf_nan_mode="null", fallback=lambda number: number.item()).decode())


def load(file: Path) -> Study:
    """Read the study that a verb works on from its config or study.json. Raises StudyError."""
    from specrig.study.load import load_study

    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # no bars in logs
    return load_study(file)
