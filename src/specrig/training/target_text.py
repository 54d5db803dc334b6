"""Text that the target writes, once a pair; the pair's draft and heads learn from it.

On the target's own text a draft sees the states that it will meet when it drafts (DistillSpec, arXiv:2310.08461).
Shapes: N sequences, T tokens, D hidden.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specrig.corpus import gather as corpus
from specrig.heads.base import TrainingError
from specrig.heads.learner import Texts
from specrig.heads.teacher import end_tokens, weights_of
from specrig.training.generate import Writer
from specrig.training.prompts import heldout_prompts, training_prompts
from specrig.training.recipe import Recipe
from specrig.training.run import key_of, within_memory
from specrig.training.stages import TEXT
from specrig.training.tokenizer import load_tokenizer
from specrig.training.trainer import PackedText, tokenize, training_device


@dataclass(frozen=True, slots=True)
class TargetText:
    """What one target wrote."""

    train: Texts
    """Training prompts with sampled continuations."""
    heldout: Texts
    """Held-out prompts with greedy continuations."""


def write_text(
    recipe: Recipe, corpus_dir: Path, models: Path, target: Path, device: str = "cpu", without: Collection[str] = ()
) -> None:
    """Let the model in the folder `target` continue prompts and write `models`/text.safetensors.

    without: prompts that it must not be asked (`prompts.training_prompts`). Raises CorpusError for a missing corpus,
    TrainingError when there is no target or it cannot write.
    """
    eos, settings = end_tokens(present(target, "target")), recipe.text
    to_learn_from = training_prompts(recipe, corpus_dir, target, without)
    asked = {"train": to_learn_from, "heldout": heldout_prompts(recipe, corpus_dir, target)}
    out = models / TEXT
    out.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal(out.with_suffix(".jsonl.unfinished"), key_of(recipe, *weights_of(target)) + json.dumps(asked))
    tensors: dict[str, Tensor] = {}
    with within_memory("the target's text"):
        writer = Writer(target, training_device(device), eos)
        for part, prompts in asked.items():
            temperatures = settings.temperatures if part == "train" else (0.0,)
            width = settings.sequence + 1
            tokens = torch.full((len(prompts), width), eos[0])
            written = torch.zeros_like(tokens, dtype=torch.bool)
            known = journal.answers(part)
            for batch in writer.answers(prompts, width, temperatures, settings.batch, recipe.seed, known):
                journal.keep(part, {row: answer for row, answer in batch.items() if row not in known})
                for row, answer in batch.items():
                    text = prompts[row] + answer
                    tokens[row, : len(text)] = torch.tensor(text)
                    written[row, len(prompts[row]) : len(text)] = True
            tensors |= {f"{part}.tokens": tokens, f"{part}.written": written}
    save_file(tensors, out.with_suffix(".unfinished"))
    out.with_suffix(".unfinished").replace(out)
    journal.path.unlink()


class Journal:
    """What was written already, batch by batch, so that a writing that was cut goes on: JSON lines, the first says of
    which writing.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.lines = path, []
        digest = {"writing": hashlib.sha256(key.encode()).hexdigest()}
        if path.is_file():
            first, *rest = path.read_text(encoding="utf-8").splitlines(keepends=True) or [""]
            if first == json.dumps(digest) + "\n":
                self.lines = [json.loads(line) for line in rest if line.endswith("\n")]
        lines = [digest, *self.lines]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

    def answers(self, part: str) -> dict[int, list[int]]:
        """Of the prompts `train` or `heldout`: prompt's number -> tokens."""
        return {row: tokens for line in self.lines if line["part"] == part for row, tokens in line["answers"]}

    def keep(self, part: str, answers: dict[int, list[int]]) -> None:
        """Add a batch."""
        if answers:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"part": part, "answers": list(answers.items())}) + "\n")


def read_text(models: Path) -> TargetText:
    """The text of a pair's folder. Raises TrainingError when it is not written yet."""
    if not (models / TEXT).is_file():
        raise TrainingError(f"{models / TEXT}: the target's text is missing; write it first with `specrig write-text`")
    found = load_file(models / TEXT)
    return TargetText(*(Texts(found[f"{part}.tokens"], found[f"{part}.written"]) for part in ("train", "heldout")))


def training_key(recipe: Recipe, corpus_dir: Path, models: Path, *folders: Path) -> str:
    """`key_of` a training that learns from the corpus, from the text of the pair's target, and from the models in
    `folders`.
    """
    weights = (file for folder in folders for file in weights_of(folder))
    return key_of(recipe, corpus_dir / "train.jsonl", models / TEXT, *weights)


def present(folder: Path, name: str) -> Path:
    """`folder`, which holds the pair's model `name`. Raises TrainingError when no weights are there."""
    if not weights_of(folder):
        raise TrainingError(f"{folder}: no trained {name} there; train it first with `specrig train --model {name}`")
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
