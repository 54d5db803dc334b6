"""The files in a folder of `training.text.shards`: manifests, and the shards beside each. No torch here."""

from __future__ import annotations

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
