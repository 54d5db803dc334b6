"""The datastore of REST (He et al., 2311.08252): the text that the target wrote, sorted. Nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformers import AutoConfig

from specrig.decoding.drafters.rest import Rest, tree
from specrig.heads import rest as checkpoint
from specrig.heads.rest import Datastore
from specrig.training.recipe import Recipe
from specrig.training.run import Run, training
from specrig.training.target_text import Texts, learnt_from, present, read_text

DEPTH = 8
"""Levels of the trees that the acceptance to expect is measured with."""


def make_datastore(
    recipe: Recipe, corpus_dir: Path, models: Path, target: Path, progress: bool, device: str = "cpu"
) -> None:
    """Sort the text of `models` and write the folder `models`/rest; prompts stay in it, since answers copy from them.

    Its `training.jsonl` says how many tokens there are, and the acceptance length to expect. Raises TrainingError when
    there is no target or no text of it.
    """
    text, config = read_text(models), AutoConfig.from_pretrained(present(target, "target"))
    with training(models / "rest", 1, progress, learnt_from(recipe, corpus_dir, models, target)) as run:
        vocabulary = config.get_text_config(decoder=True).vocab_size
        store = checkpoint.datastore(written(text.train, prompts=True), vocabulary)
        _finish(store, text.heldout, run)


def written(texts: Texts, *, prompts: bool = False) -> list[list[int]]:
    """What the target wrote, text by text, with its prompt or without; what fills the rows up behind it is left out."""
    found = []
    for tokens, own in zip(texts.tokens.tolist(), texts.written.tolist(), strict=True):
        places = [place for place, mine in enumerate(own) if mine]
        if places:
            found.append(tokens[0 if prompts else places[0] : places[-1] + 1])
    return found


def _finish(store: Datastore, heldout: Texts, run: Run) -> None:
    starts = [
        len(whole) - len(own) for whole, own in zip(written(heldout, prompts=True), written(heldout), strict=True)
    ]
    length = expected(store, written(heldout, prompts=True), starts)
    run.curve.write(1, tokens=len(store.tokens), tau_sim=round(length, 3))
    run.curve.say(f"{len(store.tokens)} tokens of the target's text; on held-out prompts tau_sim {length:.2f}")
    checkpoint.save(run.folder, store)


def expected(store: Datastore, texts: Sequence[Sequence[int]], starts: Sequence[int]) -> float:
    """Tokens a round of drafting `texts`, which the target wrote greedily from `starts` on: what it would emit a pass
    at temperature 0.
    """
    options, rounds, tokens = Rest.Options.model_validate({}), 0, 0
    for text, start in zip(texts, starts, strict=True):
        at = start + 1  # the first token comes before any draft
        while at < len(text):
            drafted, parents = tree(store, text[:at], options, DEPTH)
            node, accepted = -1, 0
            while at + accepted < len(text):
                children = [child for child, parent in enumerate(parents) if parent == node]
                node = next((child for child in children if drafted[child] == text[at + accepted]), -2)
                if node < 0:
                    break
                accepted += 1
            emitted = min(accepted + 1, len(text) - at)
            rounds, tokens, at = rounds + 1, tokens + emitted, at + emitted
    return tokens / max(1, rounds)
