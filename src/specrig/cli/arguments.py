"""The arguments that several verbs of the command line share, and the reading of their study. No torch here."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import BaseModel

if TYPE_CHECKING:
    from specrig.study.study import Study

DEFAULT = Path("configs/quick.yaml")
"""The default study."""
ConfigFile = Annotated[Path, typer.Argument(help="A study's config, e.g. configs/quick.yaml")]
StudyFile = Annotated[Path, typer.Option("--study", help="results/<study>/study.json, or a config")]


def known_methods() -> list[str]:
    """The names of the methods, for completion."""
    from specrig.decoding.drafters import registry

    return list(registry())


Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts")]
PairName = Annotated[str, typer.Option(help="Row of pairs.tsv")]


def print_json(value: Any) -> None:
    """Print a value as JSON on standard output: dataclasses and models as objects, paths as text, NaN as null."""
    typer.echo(json.dumps(_plain(value), ensure_ascii=False, indent=1))


def _plain(value: Any) -> Any:
    """The value in what JSON has."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    elif is_dataclass(value):
        value = {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def load(file: Path) -> Study:
    """Read the study that a verb works on from its config or study.json. Raises StudyError."""
    from specrig.study.load import load_study

    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # no bars in logs
    return load_study(file)
