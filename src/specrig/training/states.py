"""A model's states of the texts that heads learn from: computed once, kept on disk in shards, read a batch at a time.

So memory holds one shard at most, whatever the text, and a training that was cut finds the shards it has made. Those of
moderate size are kept beside the pair's models, so that its other trainings find them too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from pathlib import Path

import torch
from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from specrig.heads.eagle3 import choose_aux_layers
from specrig.training import teacher
from specrig.training.recipe import Recipe
from specrig.training.run import STATES
from specrig.training.stages import STAGES
from specrig.training.target_text import read_text, with_corpus
from specrig.training.teacher import Teacher, weights_of
from specrig.training.trainer import moved, place, rows_at_once

SHARD = 1 << 28
"""Bytes of a shard at most, but for one of a single text."""
TEXTS = 16
"""Texts of a shard at most: trainings whose texts begin alike share the shards of these."""
KEPT = 1 << 31
"""Bytes of states at most that outlast a training; larger ones go with it. A workflow that has succeeded removes them
all.
"""


def prepare(
    recipe: Recipe, corpus_dir: Path, models: Path, target: Path, trained: Collection[str], device: str = "cpu"
) -> None:
    """Compute, in one pass over the texts, the states that the trainings of the models `trained` of a pair will read.

    models: the pair's folder, in which the target's text is; target: the folder of the target. States that are too
    large to be kept are left to the trainings.
    """
    readers = [stage for name in trained if (stage := STAGES[name]).reads is not None]
    if not readers:
        return
    text, tutor = read_text(models), teacher.load(target, place(device))
    counts = {stage.reads(recipe) for stage in readers if stage.reads}
    read = [with_corpus(text.train, count, corpus_dir, target, recipe.seed + 3) for count in sorted(counts)]
    streams = choose_aux_layers(tutor.layers) if any(stage.streams for stage in readers) else ()
    if 2 * read[-1].tokens.numel() * tutor.hidden * (len(streams) + 1) <= KEPT:
        for texts in (*read, text.heldout):
            StoredStates(models / "states", target, tutor, texts.tokens, streams)


class StoredStates:
    """States `[N, T, (F + 1) D]` bfloat16 of N texts, on disk (`Teacher.states`).

    Each stream lies in files of its own, so that trainings which read the same texts share what they have in common.
    """

    def __init__(self, run: Path, model: Path, tutor: Teacher, texts: Tensor, streams: tuple[int, ...] = ()) -> None:
        """Compute those of `texts` `[N, T]` that are not there yet.

        run: the folder of a training, below that of the pair; model: the folder that the teacher was loaded from.
        """
        self.where = tutor.where
        N, T = texts.shape
        size = 2 * T * tutor.hidden  # bytes of a text's stream
        self.rows = max(1, min(TEXTS, SHARD // size))
        folder = (run.parent if N * size * (len(streams) + 1) <= KEPT else run) / STATES
        folder.mkdir(exist_ok=True)
        shards = texts.split(self.rows)
        self.files = [[_file(folder, model, stream, part) for part in shards] for stream in (*streams, None)]
        with FileLock(folder / ".lock"):  # another training of the pair may be making the same
            key = _digest(model)
            for part, files in zip(shards, zip(*self.files, strict=True), strict=True):
                lacking = {
                    stream: file for stream, file in zip((*streams, None), files, strict=True) if _key(file) != key
                }
                if lacking:
                    self._make(lacking, key, tutor, part)

    def _make(self, lacking: dict[int | None, Path], key: str, tutor: Teacher, texts: Tensor) -> None:
        """Write the shards of the streams that are lacking. A pass gives the state after the final norm, stream None,
        in any case.
        """
        streams = tuple(stream for stream in lacking if stream is not None)
        made = {stream: torch.empty(*texts.shape, tutor.hidden, dtype=torch.bfloat16) for stream in (*streams, None)}
        for start, rows in _few(texts, rows_at_once(self.where)):
            found = tutor.states(moved(rows, self.where), streams).cpu()
            for whole, part in zip(made.values(), found.chunk(len(made), -1), strict=True):
                whole[start : start + len(rows)] = part
        for stream, file in lacking.items():
            save_file({"states": made[stream]}, file.with_suffix(".unfinished"), metadata={"key": key})
            file.with_suffix(".unfinished").replace(file)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Of the texts `rows` `[B]` (on the CPU), on the teacher's device: `[B, T, (F + 1) D]`."""
        found = []
        for row in rows.tolist():
            streams = []
            for files in self.files:
                with safe_open(files[row // self.rows], "pt") as file:
                    streams.append(file.get_slice("states")[row % self.rows])
            found.append(torch.cat(streams, -1))
        return moved(torch.stack(found), self.where)


def _file(folder: Path, model: Path, stream: int | None, texts: Tensor) -> Path:
    """The shard with a stream of these texts."""
    asked = hashlib.sha256(f"{model.name} {stream} ".encode() + texts.numpy().tobytes()).hexdigest()[:16]
    return folder / f"{asked}.safetensors"


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
