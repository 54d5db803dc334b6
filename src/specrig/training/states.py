"""A model's states of the texts that heads learn from. On a CPU: computed once, kept on disk in shards, read a batch at
a time. On a GPU: computed at each read, which needs no disk (not timed against reading).

So memory holds one shard at most, whatever the text, and a training that was cut finds the shards it has made. Those of
moderate size are kept beside the pair's models, so that its other trainings find them too.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from specrig import heads
from specrig.files import files_sha256
from specrig.heads.base import NeuralHead
from specrig.heads.learner import Texts
from specrig.heads.teacher import Teacher, load_teacher, moved, weight_files
from specrig.training.recipe import Recipe
from specrig.training.run import STATES, training_device
from specrig.training.target_text import read_text

TOKENS = 1024
"""Tokens that go through the model together: few, so that their states stay in the processor's cache."""
SHARD = 1 << 28
"""Bytes of a shard at most, but for one of a single text."""
TEXTS = 16
"""Texts of a shard at most: trainings whose texts begin alike share the shards of these."""
KEPT = 1 << 31
"""Bytes of states at most that outlast a training; larger ones go with it. A workflow that has succeeded removes them
all.
"""


def prepare(recipe: Recipe, models: Path, target: Path, trained: Collection[str], device: str = "cpu") -> None:
    """Compute, in one pass over the texts, the states that the trainings of the models `trained` of a pair will read;
    none on a GPU.

    models: the pair's folder, in which the target's text is; target: the folder of the target. States that are too
    large to be kept are left to the trainings.
    """
    kinds = heads.registry()
    readers = [recipe.head(name) for name in trained if name in kinds and issubclass(kinds[name], NeuralHead)]
    where = training_device(device)
    if not (readers or "draft" in trained) or not stores(where):
        return
    text, teacher = read_text(models), load_teacher(target, where)
    aux_layers = tuple(sorted({layer for reader in readers for layer in reader.aux_layers(teacher.layers)}))
    if 2 * text.train.tokens.numel() * teacher.hidden * (len(aux_layers) + 1) <= KEPT:
        for texts in (text.train, text.heldout):
            StoredStates(models / "states", target, teacher, texts, aux_layers)


def stores(where: torch.device) -> bool:
    """Whether states are kept on disk for trainings on this device."""
    return where.type == "cpu"


def states_of(
    run: Path, model: Path, teacher: Teacher, texts: Texts, aux_layers: tuple[int, ...] = ()
) -> StoredStates | LiveStates:
    """The states of a frozen model, for a training. See `StoredStates` for the arguments."""
    if stores(teacher.where):
        return StoredStates(run, model, teacher, texts, aux_layers)
    return LiveStates(teacher, texts.tokens, aux_layers)


@dataclass(frozen=True, slots=True)
class LiveStates:
    """States of texts `[N, T]`, computed when they are read; those behind the end of a text are no zeros."""

    model: Teacher
    texts: Tensor
    aux_layers: tuple[int, ...]

    def __getitem__(self, rows: Tensor) -> Tensor:
        """See `StoredStates`."""
        found = self.model.states(moved(self.texts[rows], self.model.where), self.aux_layers)
        return found.to(self.model.products)


class StoredStates:
    """States `[N, T, (F + 1) D]` bfloat16 of N texts, on disk (`Teacher.states`); zeros behind the end of a text.

    Those after each layer lie in files of their own, so that trainings which read the same texts share what they have
    in common.
    """

    def __init__(
        self, run: Path, model: Path, teacher: Teacher, texts: Texts, aux_layers: tuple[int, ...] = ()
    ) -> None:
        """Compute those of `texts` that are not there yet.

        run: the folder of a training, below that of the pair; model: the folder that the teacher was loaded from.
        """
        self.where, self.products = teacher.where, teacher.products
        N, T = texts.tokens.shape
        size = 2 * T * teacher.hidden  # bytes of a text's states after one layer
        self.rows = max(1, min(TEXTS, SHARD // size))
        folder = (run.parent if N * size * (len(aux_layers) + 1) <= KEPT else run) / STATES
        folder.mkdir(exist_ok=True)
        shards = texts.tokens.split(self.rows)
        lengths = texts.lengths().split(self.rows)
        self.files = [
            [_file(folder, model, layer, *part) for part in zip(shards, lengths, strict=True)]
            for layer in (*aux_layers, None)
        ]
        key, there = files_sha256(weight_files(model)), 0
        for part, length, files in zip(shards, lengths, zip(*self.files, strict=True), strict=True):
            with FileLock(folder / ".lock"):  # another training of the pair may be making the same
                lacking = {
                    layer: file for layer, file in zip((*aux_layers, None), files, strict=True) if _key(file) != key
                }
                if lacking:
                    self._make(lacking, key, teacher, part, length)
            before, there = there, there + len(part)
            if lacking and (before // (10 * TEXTS) < there // (10 * TEXTS) or there == N):
                print(f"hidden states: {there} of {N} texts", file=sys.stderr, flush=True)

    def _make(
        self, lacking: dict[int | None, Path], key: str, teacher: Teacher, texts: Tensor, lengths: Tensor
    ) -> None:
        """Write the shards that are lacking, of `texts` `[n, T]`. A pass gives the state after the final norm, layer
        None, in any case.
        """
        aux_layers = tuple(layer for layer in lacking if layer is not None)
        made = {layer: torch.zeros(*texts.shape, teacher.hidden, dtype=torch.bfloat16) for layer in (*aux_layers, None)}
        for rows in _alike(lengths, TOKENS):
            longest = int(lengths[rows].max())
            found = teacher.states(moved(texts[rows, :longest], self.where), aux_layers).cpu()
            found[torch.arange(longest) >= lengths[rows].unsqueeze(1)] = 0
            for whole, part in zip(made.values(), found.chunk(len(made), -1), strict=True):
                whole[rows, :longest] = part.to(whole.dtype)
        for layer, file in lacking.items():
            save_file({"states": made[layer]}, file.with_suffix(".unfinished"), metadata={"key": key})
            file.with_suffix(".unfinished").replace(file)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Of the texts `rows` `[B]` (on the CPU), on the teacher's device: `[B, T, (F + 1) D]`."""
        found = []
        for row in rows.tolist():
            parts = []
            for files in self.files:
                with safe_open(files[row // self.rows], "pt") as file:
                    parts.append(file.get_slice("states")[row % self.rows])
            found.append(torch.cat(parts, -1))
        return moved(torch.stack(found), self.where).to(self.products)


def _file(folder: Path, model: Path, layer: int | None, texts: Tensor, lengths: Tensor) -> Path:
    """The shard with the states of these texts after a layer; None: after the final norm."""
    read = f"{model.name} {layer} {lengths.tolist()} ".encode() + texts.numpy().tobytes()
    name = hashlib.sha256(read).hexdigest()[:16]
    return folder / f"{name}.safetensors"


def _alike(lengths: Tensor, tokens: int) -> Iterator[Tensor]:
    """Rows of similar length, `[n]`, in groups of so many tokens at most, but for a group of one row."""
    group: list[int] = []
    for row in lengths.argsort(stable=True).tolist():  # rising: the last row of a group is its longest
        if group and (len(group) + 1) * int(lengths[row]) > tokens:
            yield torch.tensor(group)
            group = []
        group.append(row)
    if group:
        yield torch.tensor(group)


def _key(file: Path) -> str | None:
    """Of the model that a whole shard was made with."""
    try:
        with safe_open(file, "pt") as opened:
            return (opened.metadata() or {}).get("key")
    except (OSError, SafetensorError):
        return None
