"""Text that the target writes, once a pair; the pair's draft and heads learn from it.

On the target's own text a draft sees the states that it will meet when it drafts (DistillSpec, arXiv:2310.08461). Shapes: N sequences,
T tokens, D hidden.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from specrig.corpus import gather as corpus
from specrig.training import llama
from specrig.training.generate import continuations
from specrig.training.llama import Llama
from specrig.training.prompts import heldout_prompts, training_prompts
from specrig.training.recipe import Recipe
from specrig.training.run import TrainingError, key_of, within_memory
from specrig.training.stages import TEXT
from specrig.training.tokenizer import end_of_text, load_tokenizer
from specrig.training.trainer import PackedText, autocast, moved, place, rows_at_once, tokenize


@dataclass(frozen=True, slots=True)
class TargetText:
    """What one target wrote."""

    train: Tensor
    """Training prompts with sampled continuations: `[N, text.sequence + 1]` int64."""
    heldout: Tensor
    """Held-out prompts with greedy continuations: `[M, text.sequence + 1]` int64."""
    written: Tensor
    """Which tokens of `heldout` the target wrote, its end-of-text included: `[M, text.sequence + 1]` bool."""


def write_text(
    recipe: Recipe, corpus_dir: Path, models: Path, target: Path, device: str = "cpu", without: Collection[str] = ()
) -> None:
    """Let the model in the folder `target` continue prompts and write `models`/text.safetensors.

    without: prompts that it must not be asked (`prompts.training_prompts`).
    Raises CorpusError for a missing corpus, TrainingError when there is no target.
    """
    target, width, together = present(target, "target"), recipe.text.sequence + 1, recipe.text.batch
    tokenizer = load_tokenizer(target)
    # In bfloat16, twice as fast: what it writes is text, its teaching stays float32's.
    writer = llama.load(target).to(place(device)).eval().bfloat16()
    prompts = training_prompts(recipe, corpus_dir, target, without)
    asked = heldout_prompts(recipe, corpus_dir, target)
    with within_memory("the target's text"):
        made = [
            continuations(writer, prompts[start : start + together], width, recipe.text.temperatures, recipe.seed + start)
            for start in range(0, len(prompts), together)
        ]
        heldout = continuations(writer, asked, width, (0.0,), recipe.seed)
    tensors = {
        "train": torch.cat(made) if made else torch.zeros(0, width, dtype=torch.int64),
        "heldout": heldout,
        "written": _written(heldout, asked, end_of_text(tokenizer)),
    }
    out = models / TEXT
    save_file(tensors, out.with_suffix(".unfinished"))
    out.with_suffix(".unfinished").replace(out)


def read_text(models: Path) -> TargetText:
    """The text of a pair's folder. Raises TrainingError when it is not written yet."""
    if not (models / TEXT).is_file():
        raise TrainingError(f"{models / TEXT}: the target's text is missing; write it first with `specrig write-text`")
    return TargetText(**load_file(models / TEXT))


def learnt_from(recipe: Recipe, corpus_dir: Path, models: Path, *folders: Path) -> str:
    """`key_of` a training that learns from the corpus, from the text of the pair's target, and from the models in `folders`."""
    weights = (file for folder in folders for file in sorted(folder.glob("*.safetensors")))
    return key_of(recipe, corpus_dir / "train.jsonl", models / TEXT, *weights)


def present(folder: Path, name: str) -> Path:
    """`folder`, which holds the pair's model `name`. Raises TrainingError when no weights are there."""
    if not any(folder.glob("*.safetensors")):
        raise TrainingError(f"{folder}: no trained {name} there; train it first with `specrig train --model {name}`")
    return folder


def _written(texts: Tensor, prompts: list[list[int]], eos: int) -> Tensor:
    written = torch.zeros_like(texts, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        ends = (texts[row, len(prompt) :] == eos).nonzero()
        written[row, len(prompt) : len(prompt) + int(ends[0]) + 1 if len(ends) else texts.shape[1]] = True
    return written


def with_corpus(own: Tensor, count: int, corpus_dir: Path, tokenizer: Tokenizer, seed: int) -> Tensor:
    """`own` `[N, T + 1]` with `count` sequences of the corpus, equally long, behind it: `[N + count, T + 1]`."""
    if not count:
        return own
    rows = corpus.read(corpus_dir / "train.jsonl")
    packed = PackedText(tokenize(rows, tokenizer, end_of_text(tokenizer)), count, own.shape[1] - 1, seed)
    return torch.cat((own, next(iter(packed))))


@torch.no_grad()
def states(model: Llama, texts: Tensor, streams: tuple[int, ...] = ()) -> Tensor:
    """The model's states for `texts` `[N, T]`: `[N, T, (F + 1) D]` bfloat16 on its device, F streams (see `Llama.forward`)."""
    where, together = model.embedding.device, rows_at_once(model.embedding.device)
    N, T = texts.shape
    # Made whole at once: to join pieces would take the memory twice.
    found = torch.empty(N, T, (len(streams) + 1) * model.shape.hidden, dtype=torch.bfloat16, device=where)
    with autocast(where):
        for start in range(0, N, together):
            found[start : start + together] = model(moved(texts[start : start + together], where), streams)
    return found


def row_batches(count: int, batch: int, seed: int) -> Iterator[Tensor]:
    """Yield the indices of `batch` rows at a time for ever; each epoch goes through all `count` rows in a new order."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.int64)
    while True:
        while len(order) < batch:
            order = torch.cat((order, torch.randperm(count, generator=generator)))
        yield order[:batch]
        order = order[batch:]
