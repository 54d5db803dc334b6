"""A model's states of the texts that heads learn from: computed once, kept on disk in shards, read a batch at a time.

So memory holds one shard at most, whatever the text, and a training that was cut finds the shards it has made. Those of moderate size
are kept beside the pair's models, so that its other trainings find them too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import torch
from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from specrig.training.run import STATES
from specrig.training.teacher import Teacher, weights_of
from specrig.training.trainer import moved, rows_at_once

SHARD = 1 << 28
"""Bytes of a shard at most, but for one of a single text."""
KEPT = 1 << 31
"""Bytes of states at most that outlast a training; larger ones go with it. A workflow that has succeeded removes them all."""


class StoredStates:
    """States `[N, T, (F + 1) D]` bfloat16 of N texts, on disk (`Teacher.states`)."""

    def __init__(self, run: Path, model: Path, teacher: Teacher, texts: Tensor, streams: tuple[int, ...] = ()) -> None:
        """Compute those of `texts` `[N, T]` that are not there yet.

        run: the folder of the training, below that of the pair; model: the folder that the teacher was loaded from.
        """
        self.where = teacher.where
        N, T = texts.shape
        width = (len(streams) + 1) * teacher.hidden
        self.rows = max(1, SHARD // (2 * T * width))
        folder = (run.parent if 2 * N * T * width <= KEPT else run) / STATES
        folder.mkdir(exist_ok=True)
        asked = hashlib.sha256(f"{model.name} {streams} ".encode() + texts.numpy().tobytes()).hexdigest()[:16]
        self.files = [folder / f"{asked}.{number}.safetensors" for number in range(-(-N // self.rows))]
        with FileLock(folder / ".lock"):  # another training of the pair may be making the same
            key = _digest(model)
            for file, part in zip(self.files, texts.split(self.rows), strict=True):
                if _key(file) != key:
                    self._make(file, key, teacher, part, streams)

    def _make(self, file: Path, key: str, teacher: Teacher, texts: Tensor, streams: tuple[int, ...]) -> None:
        made = torch.empty(*texts.shape, (len(streams) + 1) * teacher.hidden, dtype=torch.bfloat16)
        for start, rows in _few(texts, rows_at_once(self.where)):
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


def _digest(model: Path) -> str:
    """Of a model's weights."""
    total = hashlib.sha256()
    for path in weights_of(model):
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


def _key(file: Path) -> str | None:
    """Of the model that a whole shard was made with."""
    try:
        with safe_open(file, "pt") as opened:
            return (opened.metadata() or {}).get("key")
    except (OSError, SafetensorError):
        return None
