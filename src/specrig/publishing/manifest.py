"""`manifest.json`: which code made a publication, from which records, and the digest of every file."""

from __future__ import annotations

from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specrig import __version__
from specrig.measurement.records import SCHEMA_VERSION
from specrig.provenance.environment import code_version

FILE = "manifest.json"
LIBRARIES = ("numpy", "pandas", "scipy")
"""What besides this package decides the last digits of a table."""


class PublicationError(ValueError):
    """A study that cannot be published, or a publication that cannot be read; says which file and what to do."""


class Entry(BaseModel):
    """One file."""

    model_config = ConfigDict(extra="forbid")

    sha256: str
    bytes: int


class Manifest(BaseModel):
    """What a publication says of itself."""

    model_config = ConfigDict(extra="forbid")

    manifest: Literal[1] = 1
    study: str
    hardware: str
    measured_with: list[str] = Field(default_factory=list)
    """Commits of the code that made the records."""
    specrig: str
    """Version of the code that made the tables, then its commit (empty: an installed wheel) and whether the tree differed from it."""
    commit: str = ""
    dirty: bool = False
    libraries: dict[str, str] = Field(default_factory=dict)
    record_schema: int = SCHEMA_VERSION
    columns: dict[str, list[str]] = Field(default_factory=dict)
    """Recomputed table -> its columns, as that code made them."""
    left_out: list[str] = Field(default_factory=list)
    """What the study has and the publication does not."""
    files: dict[str, Entry] = Field(default_factory=dict)
    """Path in the folder -> its digest; all files but this one."""

    @property
    def code(self) -> str:
        """The code that made the tables, for people."""
        commit = f", commit {self.commit[:12]}{' with uncommitted changes' if self.dirty else ''}" if self.commit else ""
        return f"SpecRig {self.specrig}{commit}"


def present(**fields: Any) -> Manifest:
    """A manifest of the code that runs now, with these fields."""
    git = code_version()
    return Manifest(
        specrig=__version__,
        commit=git.get("commit", ""),
        dirty=git.get("dirty", False),
        libraries={name: version(name) for name in LIBRARIES},
        **fields,
    )


def entries(folder: Path) -> dict[str, Entry]:
    """Every file below `folder` but the manifest, by its path there."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / FILE)
    return {path.relative_to(folder).as_posix(): _entry(path) for path in paths}


def _entry(path: Path) -> Entry:
    content = path.read_bytes()
    return Entry(sha256=sha256(content).hexdigest(), bytes=len(content))


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a published study. Raises PublicationError where there is none, or one that this code cannot read."""
    path = folder / FILE
    if not path.is_file():
        raise PublicationError(f"{path} does not exist: is {folder} a published study? `specrig publish` makes one")
    try:
        return Manifest.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        raise PublicationError(
            f"{path}: {where or 'not JSON'}: {first['msg']}; restore the file, or verify with the SpecRig that wrote it"
        ) from error
