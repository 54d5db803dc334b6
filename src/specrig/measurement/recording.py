"""Turns what an engine generated into a `Run` for the records, writes an index of record files, reports failures."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from specrig.errors import with_type
from specrig.files import file_sha256, write_atomically
from specrig.measurement.records import Counts, Repeat, Rounds, Run

if TYPE_CHECKING:
    from specrig.decoding.types import Generation


RESOLUTION = 7
"""Decimals of the seconds of a round: a tenth of a microsecond, below what a clock resolves."""


def as_runs(generations: Sequence[Generation], energy_j: float | None) -> list[Run]:
    """Return what an engine generated for a batch as the `Run`s of one repeat. energy_j: of the whole batch."""
    first = generations[0]
    round_s = [round(seconds, RESOLUTION) for seconds in first.round_s]
    repeat = Repeat(
        tokens=sum(len(generation.tokens) - generation.prefill_tokens for generation in generations),
        ttft_s=first.ttft_s,
        prefill_s=first.prefill_s,
        decode_s=first.decode_s,
        round_s=round_s,
        energy_j=energy_j,
    )
    return [_as_run(generation, repeat) for generation in generations]


def _as_run(generation: Generation, repeat: Repeat) -> Run:
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
        repeats=[repeat],
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


def write_index(folder: Path, digests: Mapping[str, str], failed: Mapping[str, str], rows: str = "cells") -> None:
    """Write `index.json` into a job's folder: under `rows` each record file with its hash and digest, and why others
    failed. digests, failed: by the name of a record file, without its ending.
    """
    entries = {
        name: {"records": f"{name}.jsonl", "sha256": file_sha256(folder / f"{name}.jsonl"), "digest": mark}
        for name, mark in digests.items()
    }
    write_atomically(folder / "index.json", json.dumps({rows: entries, "failed": dict(failed)}, indent=1))


def reported(name: str, error: Exception) -> str:
    """The reason of a failure in one line, also written to standard error; with SPECRIG_DEBUG=1 the traceback too."""
    reason = with_type(error)
    print(f"{name} failed: {reason}", file=sys.stderr)
    if os.environ.get("SPECRIG_DEBUG"):
        traceback.print_exception(error)
    return reason
