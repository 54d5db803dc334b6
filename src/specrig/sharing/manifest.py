"""`manifest.json` of a publication: the code and the record schema that made it, its speedups, and the hash of every
file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specrig.errors import first_line
from specrig.files import file_sha256

FILE = "manifest.json"


class PublicationError(ValueError):
    """A study cannot be published, or a publication cannot be read. The message names the file and what to do."""


class PublishedSpeedup(BaseModel):
    """The speedup of one method of a pair over all tasks. fair: it is lossless, passed the audit, and counts."""

    model_config = ConfigDict(extra="forbid")

    method: str
    label: str
    """The method with its variant, k and signs, for readers."""
    speedup: float
    low: float | None
    high: float | None
    """The 95 % interval; None where it is not known."""
    tasks: int
    fair: bool


class PublishedPair(BaseModel):
    """What a study measured of one pair in one engine. precision: of the target's weights. speedups: fastest first."""

    model_config = ConfigDict(extra="forbid")

    engine: str
    pair: str
    precision: str
    cells: int
    speedups: list[PublishedSpeedup]

    @property
    def title(self) -> str:
        """The pair and the precision of its target."""
        return f"{self.pair} ({self.precision})" if self.precision else self.pair

    @property
    def fastest(self) -> PublishedSpeedup | None:
        """The fastest fair method, of those that were measured on the most tasks; None without one."""
        fair = [speedup for speedup in self.speedups if speedup.fair]
        most = max((speedup.tasks for speedup in fair), default=0)
        return next((speedup for speedup in fair if speedup.tasks == most), None)


class Manifest(BaseModel):
    """The content of `manifest.json`."""

    model_config = ConfigDict(extra="forbid")

    manifest: Literal[2] = 2
    study: str
    hardware: str
    measured: str
    """The day on which measuring began; empty where no job says."""
    measured_with: list[str]
    """The commits of the code that made the records."""
    specrig: str
    """Version of the code that made the publication. commit: empty for an installed wheel. dirty: uncommitted changes."""
    commit: str = ""
    dirty: bool = False
    record_schema: int
    left_out: list[str]
    """Descriptions of what was left out of the publication."""
    pairs: list[PublishedPair]
    """Empty where all acceptance was declared."""
    files: dict[str, str] = Field(default_factory=dict)
    """Path in the folder -> SHA-256, for all files except the manifest itself."""

    @property
    def code(self) -> str:
        """The code that made the publication, as text: version, commit, whether there were uncommitted changes."""
        changes = " with uncommitted changes" if self.dirty else ""
        return f"SpecRig {self.specrig}" + (f", commit {self.commit[:12]}{changes}" if self.commit else "")

    @property
    def checkout(self) -> str:
        """The command that brings the code that made the publication."""
        return f"git checkout {self.commit or f'v{self.specrig}'}"


def file_hashes(folder: Path) -> dict[str, str]:
    """Path below `folder` -> SHA-256, for every file except the manifest."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / FILE)
    return {path.relative_to(folder).as_posix(): file_sha256(path) for path in paths}


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a published study. Raises PublicationError where it is missing or this code cannot read it."""
    path = folder / FILE
    if not path.is_file():
        raise PublicationError(f"{path} does not exist: is {folder} a published study? `specrig publish` makes one")
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise PublicationError(
            f"{path}: {first_line(error)}; restore the file, or verify with the SpecRig that wrote it"
        ) from error
