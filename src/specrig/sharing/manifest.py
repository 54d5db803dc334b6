"""`manifest.json` of a publication: the code that made it, the code that measured, and the hash of every file."""

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
LIBRARIES = ("matplotlib", "numpy", "pandas", "scipy")
"""The packages, besides this one, on whose versions the last digits of a table and the lines of a figure depend."""


class PublicationError(ValueError):
    """A study cannot be published, or a publication cannot be read. The message names the file and what to do."""


class FileHash(BaseModel):
    """The hash and size of one file."""

    model_config = ConfigDict(extra="forbid")

    sha256: str
    bytes: int


class Manifest(BaseModel):
    """The content of `manifest.json`."""

    model_config = ConfigDict(extra="forbid")

    manifest: Literal[1] = 1
    study: str
    hardware: str
    measured_with: list[str] = Field(default_factory=list)
    """The commits of the code that made the records."""
    specrig: str
    """Version of the code that made the tables. commit: empty for an installed wheel. dirty: uncommitted changes."""
    commit: str = ""
    dirty: bool = False
    libraries: dict[str, str] = Field(default_factory=dict)
    record_schema: int = SCHEMA_VERSION
    columns: dict[str, list[str]] = Field(default_factory=dict)
    """Name of a table -> its columns when it was published."""
    left_out: list[str] = Field(default_factory=list)
    """Descriptions of what was left out of the publication."""
    files: dict[str, FileHash] = Field(default_factory=dict)
    """Path in the folder -> hash and size, for all files except the manifest itself."""

    @property
    def code(self) -> str:
        """The code that made the tables, as text: version, commit, whether there were uncommitted changes."""
        commit = (
            f", commit {self.commit[:12]}{' with uncommitted changes' if self.dirty else ''}" if self.commit else ""
        )
        return f"SpecRig {self.specrig}{commit}"


def current_manifest(**fields: Any) -> Manifest:
    """A manifest with `fields`, and with version, commit and libraries of the running code."""
    git = code_version()
    return Manifest(
        specrig=__version__,
        commit=git.get("commit", ""),
        dirty=git.get("dirty", False),
        libraries={name: version(name) for name in LIBRARIES},
        **fields,
    )


def file_hashes(folder: Path) -> dict[str, FileHash]:
    """Path below `folder` -> hash and size, for every file except the manifest."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / FILE)
    return {path.relative_to(folder).as_posix(): _file_hash(path) for path in paths}


def _file_hash(path: Path) -> FileHash:
    content = path.read_bytes()
    return FileHash(sha256=sha256(content).hexdigest(), bytes=len(content))


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a published study. Raises PublicationError where it is missing or this code cannot read it."""
    path = folder / FILE
    if not path.is_file():
        raise PublicationError(f"{path} does not exist: is {folder} a published study? `specrig publish` makes one")
    try:
        return Manifest.model_validate_json(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise PublicationError(f"{path}: not UTF-8 at byte {error.start}; restore the file") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        raise PublicationError(
            f"{path}: {where or 'not JSON'}: {first['msg']}; restore the file, or verify with the SpecRig that wrote it"
        ) from error
