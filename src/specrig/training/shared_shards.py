"""The files in a folder of `training.text.shards`: manifests, and the shards beside each. No torch here."""

from __future__ import annotations

import lzma
from pathlib import Path

MANIFEST = "manifest.json"
"""Beside shards of a target's text: which target wrote them, and from what."""
ENDINGS = (".jsonl", ".jsonl.xz")


def manifests(folder: Path) -> list[Path]:
    """The manifests in a folder and in those below it, sorted."""
    return sorted(folder.expanduser().rglob(MANIFEST))


def shards(manifest: Path, part: str = "*") -> list[Path]:
    """The shards that lie beside a manifest, sorted. part: `train`, `heldout`, or both."""
    return sorted(file for ending in ENDINGS for file in manifest.parent.glob(f"{part}-*{ending}"))


def files(folder: Path | None) -> list[Path]:
    """All manifests and shards; none without a folder."""
    return [] if folder is None else [file for each in manifests(folder) for file in (each, *shards(each))]


def read(shard: Path) -> bytes:
    """The lines of a shard, a text each. Raises OSError, or lzma.LZMAError for a compressed one that is damaged."""
    content = shard.read_bytes()
    return lzma.decompress(content) if shard.suffix == ".xz" else content


def count(folder: Path | None) -> int:
    """How many texts there are to learn from. A shard that cannot be read counts as empty: training refuses it."""
    return sum(_lines(file) for file in files(folder) if file.name.startswith("train-"))


def _lines(shard: Path) -> int:
    try:
        return read(shard).count(b"\n")
    except (OSError, lzma.LZMAError):
        return 0
