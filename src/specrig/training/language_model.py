"""Training of the embedded target: its tokenizer and a small Llama on the corpus."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from specrig.corpus import gather as corpus
from specrig.heads.losses import cross_entropy
from specrig.heads.teacher import autocast, moved
from specrig.training import llama
from specrig.training.llama import Llama
from specrig.training.recipe import Recipe
from specrig.training.run import key_of, training
from specrig.training.tokenizer import end_of_text, save_tokenizer, train_tokenizer
from specrig.training.trainer import PackedText, evaluate, loss_summary, read_heldout, tokenize, train, training_device


def train_target(recipe: Recipe, corpus_dir: Path, target: Path, progress: bool, device: str = "cpu") -> None:
    """Train the tokenizer and the target on `corpus_dir` and write the model folder `target` (Hugging Face format,
    fp32).

    Also writes its `training.jsonl`, the loss curve. Raises CorpusError for a missing corpus, TrainingError for a
    corpus shorter than a sequence and for a loss that is not finite.
    """
    where = training_device(device)
    rows = corpus.read(corpus_dir / "train.jsonl")
    tokenizer = train_tokenizer((row["text"] for row in rows), recipe.vocabulary)
    eos = end_of_text(tokenizer)
    settings = recipe.target_training
    together = settings.batch // settings.accumulate
    batches = iter(PackedText(tokenize(rows, tokenizer, eos), together, settings.sequence, recipe.seed))
    heldout = read_heldout(corpus_dir, tokenizer, eos)
    layers = settings.growth[0].layers if settings.growth else recipe.target.layers
    model = Llama(recipe.target, tokenizer.get_vocab_size(), layers).initialise(recipe.seed).to(where)
    with training(target, settings.steps, progress, key_of(recipe, corpus_dir / "train.jsonl")) as run:
        train(model, settings, batches, next_token_loss(model), lambda: loss_summary(evaluate(model, heldout)), run)
        llama.save(model, run.folder, (eos,))
        save_tokenizer(tokenizer, run.folder, recipe.target.context)


def next_token_loss(model: Llama) -> Callable[[Tensor], Tensor]:
    """Cross-entropy of `[B, T + 1]` packed tokens, nats a token."""
    where = model.embedding.device

    def loss(batch: Tensor) -> Tensor:
        batch = moved(batch, where)
        with autocast(where):
            logits = model.logits(model(batch[:, :-1]))
        return cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    return loss
