"""Text that the target writes, once a pair; the pair's draft and heads learn from it.

On the target's own text a draft sees the states that it will meet when it drafts (DistillSpec, arXiv:2310.08461).
Shapes: N sequences, T tokens, D hidden.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig

from specrig.corpus import gather as corpus
from specrig.corpus.trained_on import fingerprint
from specrig.errors import first_line
from specrig.heads.base import TrainingError
from specrig.heads.learner import Texts
from specrig.heads.teacher import end_tokens, weight_files
from specrig.training.recipe import Recipe
from specrig.training.run import key_of, within_memory
from specrig.training.stages import TEXT
from specrig.training.text_shards import TextShards
from specrig.training.tokenizer import load_tokenizer
from specrig.training.trainer import PackedText, tokenize

SHARDS = "text"
"""In a pair's folder: what its target wrote, in shards."""
_REQUESTS = "train.requests"


@dataclass(frozen=True, slots=True)
class TargetText:
    """What one target wrote."""

    train: Texts
    """Training prompts with continuations at the temperatures in `text.temperatures`; by default a part is greedy."""
    heldout: Texts
    """Held-out prompts with greedy continuations."""


def write_text(
    recipe: Recipe, corpus_dir: Path, models: Path, target: Path, device: str = "cpu", without: Collection[str] = ()
) -> None:
    """Let the model in the folder `target` answer prompts, and write `models`/text.safetensors from the shards in
    `models`/text.

    without: prompts that it must not answer (`prompts.kept`). Raises CorpusError for a missing corpus, PromptError
    for requests that cannot be had, TrainingError when there is no target, it cannot write, or the texts are longer than
    it can read.
    """
    _check_positions(recipe, present(target, "target"))
    shards = TextShards(models / SHARDS, recipe, corpus_dir, target, device, without)
    with within_memory("the target's text"):
        heldout = shards.texts("heldout", recipe.text.heldout_sequences)
        train = shards.texts("train", recipe.text.sequences, heldout)
    tensors: dict[str, Tensor] = {}
    for part, found, wanted in (
        ("train", train, recipe.text.sequences),
        ("heldout", heldout, recipe.text.heldout_sequences),
    ):
        if wanted and not found:
            raise TrainingError(
                f"training.prompts: no {part} request is left. A request counts if it has at most "
                f"{(recipe.text.sequence + 1) // 2} tokens (half of training.text.sequence) and is not a prompt of the "
                "study. Add or shorten requests, or raise training.text.sequence"
            )
        tokens = torch.full((len(found), recipe.text.sequence + 1), shards.eos[0])
        written = torch.zeros_like(tokens, dtype=torch.bool)
        for row, text in enumerate(found):
            tokens[row, : len(text.tokens)] = torch.tensor(text.tokens)
            for start, end in text.spans:
                written[row, start:end] = True
        tensors |= {f"{part}.tokens": tokens, f"{part}.written": written}
    learnt = sorted({int(fingerprint(request), 16) for text in train for request in text.requests})
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


def training_key(recipe: Recipe, corpus_dir: Path, models: Path, *folders: Path) -> str:
    """`key_of` a training that learns from the corpus, from the text of the pair's target, and from the models in
    `folders`. Raises CorpusError for a missing corpus.
    """
    weights = (file for folder in folders for file in weight_files(folder))
    return key_of(recipe, corpus.present(corpus_dir / "train.jsonl"), models / TEXT, *weights)


def present(folder: Path, name: str) -> Path:
    """`folder`, which holds the pair's model `name`. Raises TrainingError when no weights are there."""
    if not weight_files(folder):
        raise TrainingError(
            f"{folder}: no trained {name} there; train it first with `specrig stage train --model {name}`"
        )
    return folder


def with_corpus(own: Texts, count: int, corpus_dir: Path, target: Path, seed: int) -> Texts:
    """`own` with `count` sequences of the corpus, equally long, behind it; of those every token counts as written."""
    if not count:
        return own
    rows = corpus.read(corpus_dir / "train.jsonl")
    texts = tokenize(rows, load_tokenizer(target), end_tokens(target)[0])
    packed = next(iter(PackedText(texts, count, own.tokens.shape[1] - 1, seed)))
    return Texts(torch.cat((own.tokens, packed)), torch.cat((own.written, torch.ones_like(packed, dtype=torch.bool))))


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
