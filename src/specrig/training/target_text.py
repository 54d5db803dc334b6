"""Text that the target writes, once a pair; the pair's draft and heads learn from it.

On the target's own text a draft sees the states that it will meet when it drafts (DistillSpec, arXiv:2310.08461).
Shapes: N sequences, T tokens, D hidden.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig

from specrig.errors import first_line
from specrig.heads.base import TrainingError
from specrig.heads.learner import Texts
from specrig.heads.teacher import end_tokens, weight_files
from specrig.tasks.trained_on import fingerprint
from specrig.training.conversations import Written
from specrig.training.generate import Writer
from specrig.training.recipe import Recipe
from specrig.training.run import key_of, training_device, within_memory
from specrig.training.source_text import SourceText
from specrig.training.stages import TEXT

FOLDER = "text"
"""In a pair's folder: what its target wrote, a file of JSON lines a source of prompts."""
_REQUESTS = "train.requests"


@dataclass(frozen=True, slots=True)
class TargetText:
    """What one target wrote."""

    train: Texts
    """Training prompts with answers at the temperatures in `text.temperatures`; by default a part is greedy."""
    heldout: Texts
    """Held-out prompts with greedy answers."""


def write_text(recipe: Recipe, models: Path, target: Path, device: str = "cpu", without: Collection[str] = ()) -> None:
    """Let the model in the folder `target` answer prompts; what it wrote lies in `models`/text, a file a source of prompts,
    and for trainings in `models`/text.safetensors.

    without: prompts that it must not answer. Raises PromptError for requests that cannot be had, TrainingError when there
    is no target, it cannot write, or the texts are longer than it can read.
    """
    _check_positions(recipe, present(target, "target"))
    where = training_device(device)
    writer = cache(lambda: Writer(target, where))
    eos = end_tokens(target)[0]
    counts = {"train": recipe.text.sequences, "heldout": recipe.text.heldout_sequences}
    shares = {part: math.ceil(count / len(recipe.prompts)) for part, count in counts.items()}
    texts: dict[str, list[Written]] = {"train": [], "heldout": []}
    with within_memory("the target's text"):
        for source in recipe.prompts:
            file = SourceText(models / FOLDER, recipe, source, target, without)
            file.write(shares["train"], shares["heldout"], writer)
            texts["train"] += file.texts("train", shares["train"])
            texts["heldout"] += file.texts("heldout", shares["heldout"])
    tensors: dict[str, Tensor] = {}
    for part, count in counts.items():
        if count and not texts[part]:
            raise TrainingError(
                f"training.prompts: no {part} request is left. A request counts if it has at most "
                f"{(recipe.text.sequence + 1) // 2} tokens (half of training.text.sequence) and is not a prompt of the "
                "study. Add or shorten requests, or raise training.text.sequence"
            )
        tokens = torch.full((len(texts[part]), recipe.text.sequence + 1), eos)
        written = torch.zeros_like(tokens, dtype=torch.bool)
        for row, text in enumerate(texts[part]):
            tokens[row, : len(text.tokens)] = torch.tensor(text.tokens)
            for start, end in text.spans:
                written[row, start:end] = True
        tensors |= {f"{part}.tokens": tokens, f"{part}.written": written}
    learnt = sorted({int(fingerprint(request), 16) for text in texts["train"] for request in text.requests})
    tensors[_REQUESTS] = torch.tensor(learnt, dtype=torch.uint64)
    out = models / TEXT
    out.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out.with_suffix(".unfinished"))
    out.with_suffix(".unfinished").replace(out)


def _check_positions(recipe: Recipe, target: Path) -> None:
    """Raise TrainingError for texts of more tokens than the target has positions: behind those it reads none rightly."""
    config = AutoConfig.from_pretrained(target).get_text_config(decoder=True)
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and recipe.text.sequence > positions:
        raise TrainingError(
            f"{target}: the model has {positions} positions, training.text.sequence is {recipe.text.sequence}; lower it"
        )


def requests_of(models: Path) -> set[str]:
    """The `fingerprint`s of the requests that the training text of a pair's folder answers."""
    return {f"{request:016x}" for request in load_file(models / TEXT)[_REQUESTS].tolist()}


def read_text(models: Path) -> TargetText:
    """The text of a pair's folder. Raises TrainingError when it is not written yet, or damaged."""
    file = models / TEXT
    if not file.is_file():
        raise TrainingError(f"{file}: the target's text is missing; write it first with `specrig stage write-text`")
    try:
        found = load_file(file)
        parts = [(found[f"{part}.tokens"], found[f"{part}.written"]) for part in ("train", "heldout")]
    except (SafetensorError, LookupError, ValueError) as error:
        raise TrainingError(
            f"{file}: not a target's text ({first_line(error)}); write it again with `specrig stage write-text`"
        ) from error
    for tokens, written in parts:
        if (
            tokens.dtype != torch.int64
            or written.dtype != torch.bool
            or tokens.shape != written.shape
            or tokens.dim() != 2
        ):
            raise TrainingError(f"{file}: not a target's text; write it again with `specrig stage write-text`")
    return TargetText(*(Texts(*part) for part in parts))


def training_key(recipe: Recipe, models: Path, *folders: Path) -> str:
    """`key_of` a training that learns from the text of the pair's target, and from the models in `folders`."""
    weights = (file for folder in folders for file in weight_files(folder))
    return key_of(recipe, models / TEXT, *weights)


def present(folder: Path, name: str) -> Path:
    """`folder`, which holds the pair's model `name`. Raises TrainingError when no weights are there."""
    if not weight_files(folder):
        raise TrainingError(
            f"{folder}: no trained {name} there; train it first with `specrig stage train --model {name}`"
        )
    return folder


def frequent(texts: Texts, count: int | None, vocabulary: int) -> Tensor | None:
    """The `count` tokens that the target most often wrote, rising ids `[count]`; among equals the lower id. None: that
    is all of them.
    """
    if count is None or count >= vocabulary:
        return None
    found = torch.bincount(texts.tokens[texts.written], minlength=vocabulary).argsort(descending=True, stable=True)
    return found[:count].sort().values


def row_batches(count: int, batch: int, seed: int) -> Iterator[Tensor]:
    """Yield the indices of `batch` rows at a time for ever; each epoch goes through all `count` rows in a new order."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.int64)
    while True:
        while len(order) < batch:
            order = torch.cat((order, torch.randperm(count, generator=generator)))
        yield order[:batch]
        order = order[batch:]
