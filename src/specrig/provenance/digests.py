"""Digests of the source code that a stage uses. When a digest changes, the stage's outputs are stale.

A digest covers whole packages of this package. Only of drafters, engines and heads, of which a job uses a few, it covers
those that the job names and those that these mention: a new method makes no measured cell stale.
"""

from __future__ import annotations

import re
from functools import cache
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = {".bib", ".c", ".csv", ".css", ".j2", ".js", ".json", ".py", ".typ"}
"""Endings of the files that count as source."""
MEMBERS = ("decoding/drafters", "engines", "heads")
"""Folders of which a package has `__init__.py` alone; a job names their other files and folders one by one."""
MENTION = re.compile(rf"\bspecrig\.((?:{'|'.join(MEMBERS)})\.\w+)".replace("/", r"\."))


@cache
def code_digest(*parts: str) -> str:
    """First 16 hex digits of the SHA-256 over the sources of some parts of this package.

    parts: packages and modules without the first name, e.g. `runtime`, `engines.native`. Raises ValueError for a part
    that is not there.
    """
    total = sha256()
    for file in source_files(*parts):
        total.update(f"{file.relative_to(ROOT)}\0{sha256(file.read_bytes()).hexdigest()}\0".encode())
    return total.hexdigest()[:16]


def source_files(*parts: str) -> list[Path]:
    """The source files of some parts, and of the drafters, engines and heads that these files mention."""
    files: set[Path] = set()
    waiting = list(parts)
    while waiting:
        new = set(_files(waiting.pop())) - files
        files |= new
        waiting += sorted({name for file in new for name in _mentions(file)})
    return sorted(files)


@cache
def _files(part: str) -> tuple[Path, ...]:
    path = _path(part)
    if path is None:
        raise ValueError(f"{part}: no package or module of specrig")
    if path.is_file():
        return (path,)
    folders = [folder for name in MEMBERS if (folder := ROOT / name).is_relative_to(path)]
    members = {file for folder in folders for file in folder.rglob("*") if file != folder / "__init__.py"}
    return tuple(file for file in path.rglob("*") if file.suffix in SOURCES and file not in members)


@cache
def _mentions(file: Path) -> tuple[str, ...]:
    """The drafters, engines and heads that a file of code names, also in functions."""
    if file.suffix != ".py":
        return ()
    names = sorted(set(MENTION.findall(file.read_text(encoding="utf-8"))))
    # `from specrig.heads.base import f` names a module, `specrig.heads.f` may name an object of the package.
    return tuple(name for name in names if _path(name) is not None)


def _path(part: str) -> Path | None:
    """The folder of a package or the file of a module; None where there is neither."""
    path = ROOT.joinpath(*part.split("."))
    return next((found for found in (path, path.with_suffix(".py")) if found.exists()), None)
