"""The target's states of the texts that heads learn from: computed once, kept on disk in shards, read a batch at a time.

So memory holds one shard at most, whatever the text, and a training that was cut finds the shards it has made.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from specrig.training.run import STATES
from specrig.training.teacher import Teacher
from specrig.training.trainer import moved, rows_at_once

SHARD = 1 << 28
"""Bytes of a shard at most, but for one of a single text."""


class StoredStates:
    """States `[N, T, (F + 1) D]` bfloat16 of N texts, on disk (`Teacher.states`)."""

    def __init__(self, folder: Path, name: str, key: str, teacher: Teacher, texts: Tensor, streams: tuple[int, ...] = ()) -> None:
        """Compute those of `texts` `[N, T]` that are not there yet. name: of these states; key: of the training (`run.key_of`)."""
        self.where = teacher.where
        N, T = texts.shape
        width = (len(streams) + 1) * teacher.hidden
        self.rows = max(1, SHARD // (2 * T * width))
        folder = folder / STATES
        folder.mkdir(exist_ok=True)
        self.files = [folder / f"{name}.{number}.safetensors" for number in range(-(-N // self.rows))]
        for file, part in zip(self.files, texts.split(self.rows), strict=True):
            if _key(file) != key:
                made = torch.empty(len(part), T, width, dtype=torch.bfloat16)
                for start, rows in _few(part, rows_at_once(self.where)):
                    made[start : start + len(rows)] = teacher.states(moved(rows, self.where), streams).cpu()
                save_file({"states": made}, file.with_suffix(".unfinished"), metadata={"key": key})
                file.with_suffix(".unfinished").replace(file)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Of the texts `rows` `[B]` (on the CPU), on the teacher's device: `[B, T, (F + 1) D]`."""
        found = []
        for row in rows.tolist():
            with safe_open(self.files[row // self.rows], "pt") as file:
                found.append(file.get_slice("states")[row % self.rows])
        return moved(torch.stack(found), self.where)


def _few(texts: Tensor, together: int) -> Iterator[tuple[int, Tensor]]:
    for start in range(0, len(texts), together):
        yield start, texts[start : start + together]


def _key(file: Path) -> str | None:
    """Of the training that a whole shard belongs to."""
    try:
        with safe_open(file, "pt") as opened:
            return (opened.metadata() or {}).get("key")
    except (OSError, SafetensorError):
        return None
