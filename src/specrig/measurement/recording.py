"""Turns what an engine generated into a `Run` for the records, writes a job's index of record files, and sets files
aside.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specrig.cell import Cell
from specrig.measurement.records import Counts, Rounds, Run, write_atomically

if TYPE_CHECKING:
    from specrig.decoding.types import Generation

ASIDE = ".disturbed-"
"""Added with a number to the name of a record file that is set aside, so that its cell is measured again."""


def as_run(generation: Generation) -> Run:
    """Return a `Generation` of an engine as the `Run` of a record."""
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


def text_ends(tokens: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[int]:
    """For each token, the number of characters of `decode(tokens)` that it and the tokens before it make.

    A character whose bytes are spread over several tokens (byte-level BPE) belongs to the token that completes it: a
    beginning whose text ends in U+FFFD, or is not how the whole text begins, waits for its next token.
    """
    whole, ends, end = decode(tokens), [], 0
    for count in range(1, len(tokens)):
        text = decode(tokens[:count])
        if whole.startswith(text) and not text.endswith("\ufffd"):
            end = max(end, len(text))
        ends.append(end)
    return [*ends, len(whole)] if tokens else []


def write_index(folder: Path, cells: list[Cell], digests: dict[Cell, str], failed: dict[str, str]) -> None:
    """Write `index.json` into a job's folder: each cell's record file with its digests, and why cells failed."""
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
    """Rename the record files of some cells to `<slug>.jsonl.disturbed-<number>`, so that these cells are measured
    again.

    Nothing reads the renamed files. The cells leave the index first, so that it never names a missing file. The
    workflow runs a job again if its folder has more renamed files than before, and the job then measures the cells that
    have no records.
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
    """Names of the files in a job's folder that `set_aside` renamed."""
    return sorted(path.name for path in folder.glob(f"*{ASIDE}*"))
