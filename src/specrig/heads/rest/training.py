"""The datastore of REST (He et al., 2311.08252): the text that the target wrote, sorted. Nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoConfig

from specrig.heads.learner import Report, Texts
from specrig.heads.rest import LONGEST, NODES, SHORTEST, Rest
from specrig.heads.rest import module as checkpoint
from specrig.heads.rest.module import Datastore

DEPTH = 8
"""Levels of the trees that the acceptance to expect is measured with."""


def make(
    settings: Rest, target: Path, train: Texts, heldout: Texts, where: torch.device, folder: Path, report: Report
) -> None:
    """Sort the texts `train` and write the datastore to `folder`; prompts stay in it, since answers copy from them."""
    vocabulary = AutoConfig.from_pretrained(target).get_text_config(decoder=True).vocab_size
    store = checkpoint.datastore(written(train, prompts=True), vocabulary)
    whole, own = written(heldout, prompts=True), written(heldout)
    length = expected(store, whole, [len(one) - len(answer) for one, answer in zip(whole, own, strict=True)])
    report.write(1, tokens=len(store.tokens), tau_sim=round(length, 3))
    report.log(f"{len(store.tokens)} tokens of the target's text; on held-out prompts tau_sim {length:.2f}")
    checkpoint.save(folder, store)


def written(texts: Texts, *, prompts: bool = False) -> list[list[int]]:
    """What the target wrote, text by text, with its prompt or without; what fills the rows up behind it is left out."""
    found = []
    for tokens, own in zip(texts.tokens.tolist(), texts.written.tolist(), strict=True):
        positions = [position for position, mine in enumerate(own) if mine]
        if positions:
            found.append(tokens[0 if prompts else positions[0] : positions[-1] + 1])
    return found


def expected(store: Datastore, texts: Sequence[Sequence[int]], starts: Sequence[int]) -> float:
    """Tokens a round of drafting `texts`, which the target wrote greedily from `starts` on: what it would emit a pass
    at temperature 0.
    """
    rounds, tokens = 0, 0
    for text, start in zip(texts, starts, strict=True):
        at = start + 1  # the first token comes before any draft
        while at < len(text):
            drafted, parents = store.tree(text[:at], LONGEST, SHORTEST, NODES, DEPTH)
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
