"""Digests of the packages that a stage uses. When a digest changes, the stage's outputs are stale."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = {".bib", ".c", ".csv", ".css", ".j2", ".js", ".json", ".py", ".typ"}
"""Endings of the files that count as source."""


def code_digest(*packages: str) -> str:
    """First 16 hex digits of the SHA-256 over the sources of some packages of this one, named without its name.

    Raises ValueError for a package that is not there.
    """
    return sha256("".join(_package_digest(name) for name in packages).encode()).hexdigest()[:16]


@cache
def _package_digest(name: str) -> str:
    path = ROOT / name
    files = sorted(path.rglob("*")) if path.is_dir() else [path.with_suffix(".py")]
    if not files[0].exists():
        raise ValueError(f"{name}: no package of specrig")
    total = sha256()
    for file in files:
        if file.suffix in SOURCES:
            total.update(f"{file.relative_to(ROOT)}\0{sha256(file.read_bytes()).hexdigest()}\0".encode())
    return total.hexdigest()
