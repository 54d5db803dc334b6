"""Turns what an engine generated into a `Run` for the records, and writes an index of record files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specrig.cell import Cell
from specrig.measurement.records import Counts, Rounds, Run, write_atomically

if TYPE_CHECKING:
    from specrig.decoding.types import Generation


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


def write_index(folder: Path, cells: Sequence[Cell], digests: Mapping[Cell, str], failed: Mapping[str, str]) -> None:
    """Write `index.json` into a job's folder: each cell's record file with its digests, and why cells failed."""
    index: dict[str, Any] = {"cells": {}, "failed": dict(failed)}
    for cell in cells:
        path = folder / f"{cell.slug}.jsonl"
        if cell.slug not in failed:
            index["cells"][cell.slug] = {
                "records": path.name,
                "sha256": sha256(path.read_bytes()).hexdigest(),
                "digest": digests[cell],
            }
    write_atomically(folder / "index.json", json.dumps(index, indent=1))
