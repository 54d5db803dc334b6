"""The training loop that every embedded model shares: packed batches, optimiser, schedule, evaluation, curve, safe
folder.

A trained model depends only on the recipe, the corpus and the machine: budgets are in steps, and all randomness is
seeded. On a CPU a run gives the same bits again. On a GPU sums have no fixed order, so two runs give models that differ
in the last digits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

from specrig.corpus import gather as corpus
from specrig.corpus.example import TASKS, CorpusError
from specrig.heads.base import TrainingError
from specrig.heads.teacher import autocast, moved, rows_at_once
from specrig.training.llama import Llama
from specrig.training.optimizer import Optimizer
from specrig.training.recipe import Optimisation
from specrig.training.run import Run


def training_device(device: str) -> torch.device:
    """The device to train on, `cpu` or `cuda`, made ready. Raises TrainingError where PyTorch sees no GPU."""
    where = torch.device(device)
    if where.type == "cuda":
        if not torch.cuda.is_available():
            raise TrainingError(
                "device cuda: PyTorch sees no GPU here; set `device: cpu` or `device: auto`, or install its CUDA build"
            )
        torch.set_float32_matmul_precision("high")  # TF32 for what autocast leaves in float32
    return where


@dataclass(frozen=True)
class Heldout:
    """Held-out texts of one task: token ids (end-of-text included) and their size in UTF-8 bytes."""

    tokens: list[list[int]]
    bytes: int


@dataclass(frozen=True)
class Losses:
    """Held-out loss of every task: nats a token, and bits a byte (which different tokenizers share)."""

    nats: dict[str, float]
    bits_per_byte: dict[str, float]


class PackedText:
    """Texts joined by end-of-text into one stream, cut into sequences; a new order of the texts each epoch."""

    def __init__(self, texts: Sequence[list[int]], batch: int, sequence: int, seed: int) -> None:
        length = sum(map(len, texts))
        if length <= sequence:
            raise TrainingError(
                f"the corpus has {length} tokens, less than one sequence of {sequence}; "
                "raise corpus.characters or shorten the sequence"
            )
        self.texts = [torch.tensor(text, dtype=torch.int64) for text in texts]
        self.batch, self.sequence, self.seed = batch, sequence, seed

    def __iter__(self) -> Iterator[Tensor]:
        """Yield batches `[batch, sequence + 1]` int64 for ever: inputs are `[:, :-1]`, labels `[:, 1:]`."""
        generator = torch.Generator().manual_seed(self.seed)
        width, rows = self.sequence + 1, []
        while True:
            order = torch.randperm(len(self.texts), generator=generator).tolist()
            stream = torch.cat([self.texts[index] for index in order])
            for row in stream[: len(stream) // width * width].view(-1, width):
                rows.append(row)
                if len(rows) == self.batch:
                    yield torch.stack(rows)
                    rows = []


def tokenize(rows: Sequence[dict[str, str]], tokenizer: Tokenizer, eos: int) -> list[list[int]]:
    """Token ids of every row: prompt, completion, end-of-text.

    Prompt and completion are encoded apart, as they are when a model answers: no token straddles their boundary. What a
    tokenizer adds at the beginning of a text stands before the prompt alone.
    """
    prompts = tokenizer.encode_batch([row["prompt"] for row in rows])
    completions = tokenizer.encode_batch([row["completion"] for row in rows], add_special_tokens=False)
    return [[*prompt.ids, *completion.ids, eos] for prompt, completion in zip(prompts, completions, strict=True)]


def read_heldout(corpus_dir: Path, tokenizer: Tokenizer, eos: int) -> dict[str, Heldout]:
    """Held-out texts of every task, in the order of the tasks."""
    rows = corpus.read(corpus_dir / "heldout.jsonl")
    heldout = {}
    for task in TASKS:
        mine = [row for row in rows if row["task"] == task]
        if not mine:
            raise CorpusError(f"{corpus_dir / 'heldout.jsonl'}: no text of task {task!r}; build the corpus again")
        heldout[task] = Heldout(tokenize(mine, tokenizer, eos), sum(len(row["text"].encode()) for row in mine))
    return heldout


@torch.no_grad()
def evaluate(model: Llama, heldout: dict[str, Heldout]) -> Losses:
    """Held-out loss of every task: the mean over its tokens, each text by itself from its second token on."""
    nats, bits = {}, {}
    where = model.embedding.device
    for task, texts in heldout.items():
        total, count = torch.zeros((), dtype=torch.float64, device=where), 0
        # Texts of similar length go together, so that little is padding; -100 labels it, which the loss leaves out.
        longest_first, together = sorted(texts.tokens, key=len, reverse=True), rows_at_once(where)
        for start in range(0, len(longest_first), together):
            rows = [tokens[: model.shape.context + 1] for tokens in longest_first[start : start + together]]
            batch = torch.zeros(len(rows), len(rows[0]), dtype=torch.int64)
            labels = torch.full_like(batch, -100)
            for index, tokens in enumerate(rows):
                batch[index, : len(tokens)] = torch.tensor(tokens)
                labels[index, : len(tokens)] = batch[index, : len(tokens)]
            batch, labels = moved(batch, where), moved(labels, where)
            with autocast(where):
                logits = model.logits(model(batch[:, :-1]))
            loss = F.cross_entropy(logits.flatten(0, 1).float(), labels[:, 1:].flatten(), reduction="sum")
            total, count = total + loss, count + sum(len(tokens) - 1 for tokens in rows)
        nats[task] = total.item() / count
        bits[task] = total.item() / math.log(2) / texts.bytes
    return Losses(nats, bits)


def loss_summary(found: Losses) -> tuple[dict[str, Any], str]:
    """An evaluation as values for a curve, and as text for the log."""
    summary = ", ".join(f"{task} {found.nats[task]:.3f} ({found.bits_per_byte[task]:.3f} b/B)" for task in found.nats)
    return {"heldout": _rounded(found.nats), "bits_per_byte": _rounded(found.bits_per_byte)}, f"held-out loss {summary}"


def train(
    model: Llama,
    settings: Optimisation,
    batches: Iterator[Any],
    loss_of: Callable[[Any], Tensor],
    measure: Callable[[], tuple[dict[str, Any], str]],
    run: Run,
) -> None:
    """Take `settings.steps` steps, less those that a cut training took before.

    batches: of `settings.batch // settings.accumulate` sequences; `loss_of(batch)` is the mean loss in nats a token;
    `measure()` returns what the curve gets, and a line for a person. Raises TrainingError when the loss is not finite.
    """
    due = {round(settings.steps * (i + 1) / settings.evaluations) for i in range(settings.evaluations)}
    growth = {round(settings.steps * stage.until) for stage in settings.growth}
    depths = [*(stage.layers for stage in settings.growth[1:]), model.shape.layers]
    tokens = settings.batch * settings.sequence
    for _ in [before for before in growth if before < run.done]:
        model.grow(depths.pop(0))
    optimizer = Optimizer(model, settings)
    run.begin({"model": (model, optimizer)})
    parts = settings.accumulate
    seen = run.done * parts
    next(islice(batches, seen, seen), None)  # pass over what a cut training has seen
    model.compile_layers(settings.compile)
    for step in range(run.done + 1, settings.steps + 1):
        if step - 1 in growth:
            model.grow(depths.pop(0))
            optimizer.adopt(model)
            model.compile_layers(settings.compile)
        run.take_step(step, map(loss_of, islice(batches, parts)), parts=parts, tokens=step * tokens, lr=settings.lr)
        if step in due:
            model.eval()
            found, line = measure()
            model.train()
            run.curve.write(step, texts=step * settings.batch, **found)
            run.curve.log(f"after {step} steps, {time.perf_counter() - run.curve.start:.0f} s: {line}")
        run.keep(step)


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 5) for name, value in values.items()}
