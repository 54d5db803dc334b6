"""From what an engine generated to what is kept of it: a Run, and a job's index of its record files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specrig.cell import Cell
from specrig.measurement.records import Counts, Rounds, Run, write_atomically

if TYPE_CHECKING:
    from specrig.decoding.types import Generation

ASIDE = ".disturbed-"
"""Between a record file's name and a number: what stood there before the cell was measured again."""


def as_run(generation: Generation) -> Run:
    """A Generation as it is recorded."""
    rounds = generation.rounds
    return Run(
        tokens=generation.tokens,
        stop=generation.stop,
        rounds=Rounds(
            drafted=[entry.drafted for entry in rounds],
            depth=[entry.depth for entry in rounds],
            accepted=[entry.accepted for entry in rounds],
            emitted=[entry.emitted for entry in rounds],
            cut=any(entry.cut for entry in rounds),
        ),
        counts=None if generation.counts is None else Counts.model_validate(asdict(generation.counts)),
        overlap=generation.overlap,
        reached=generation.reached,
        ttft_s=generation.ttft_s,
        prefill_s=generation.prefill_s,
        decode_s=generation.decode_s,
        target_passes=generation.target_passes,
        draft_passes=generation.draft_passes,
        prefill_tokens=generation.prefill_tokens,
    )


def write_index(folder: Path, cells: list[Cell], digests: dict[Cell, str], failed: dict[str, str]) -> None:
    """Write `index.json`: the record file of each cell with its digests, and why the others failed."""
    index: dict[str, Any] = {"cells": {}, "failed": failed}
    for cell in cells:
        path = folder / f"{cell.slug}.jsonl"
        if cell.slug not in failed:
            index["cells"][cell.slug] = {
                "records": path.name,
                "sha256": sha256(path.read_bytes()).hexdigest(),
                "digest": digests[cell],
            }
    write_atomically(folder / "index.json", json.dumps(index, indent=1))


def set_aside(folder: Path, slugs: Iterable[str]) -> None:
    """Have cells of a job's folder measured again: their records are kept as `<slug>.jsonl.disturbed-<number>`, which nothing reads.

    The index forgets them first, so that it never names what is gone. The workflow runs a job again that has more such files than when
    it last ran, and the job measures what has no records.
    """
    index, names = folder / "index.json", list(slugs)
    if index.is_file():
        content = json.loads(index.read_text(encoding="utf-8"))
        content["cells"] = {slug: entry for slug, entry in content["cells"].items() if slug not in names}
        write_atomically(index, json.dumps(content, indent=1))
    for slug in names:
        path = folder / f"{slug}.jsonl"
        path.replace(path.with_name(f"{path.name}{ASIDE}{1 + len(list(folder.glob(f'{path.name}{ASIDE}*')))}"))


def aside(folder: Path) -> list[str]:
    """Names of the record files of a job's folder that were set aside."""
    return sorted(path.name for path in folder.glob(f"*{ASIDE}*"))
