"""The datastore of REST (He et al., 2311.08252): the text that the target wrote, sorted. Nothing is trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
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
    store = checkpoint.datastore(written(train), vocabulary)
    length = expected(store, answers(heldout))
    report.write(1, tokens=len(store.tokens), tau_sim=round(length, 3))
    report.log(f"{len(store.tokens)} tokens of the target's text; on held-out prompts tau_sim {length:.2f}")
    checkpoint.save(folder, store)


def written(texts: Texts) -> list[list[int]]:
    """Each text up to the last token that the target wrote; one in which it wrote nothing is left out."""
    found = []
    for tokens, own in zip(texts.tokens.tolist(), texts.written.tolist(), strict=True):
        positions = [position for position, mine in enumerate(own) if mine]
        if positions:
            found.append(tokens[: positions[-1] + 1])
    return found


def answers(texts: Texts) -> Iterator[tuple[list[int], int]]:
    """Yield each answer of the target, of which a conversation has several: the text up to its end, and where it begins."""
    for tokens, own in zip(texts.tokens.tolist(), texts.written.tolist(), strict=True):
        yield from ((tokens[:end], start) for start, end in _runs(own))


def _runs(own: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Yield from where to where the target wrote."""
    for mine, run in groupby(range(len(own)), own.__getitem__):
        positions = list(run)
        if mine:
            yield positions[0], positions[-1] + 1


def expected(store: Datastore, answers: Iterable[tuple[Sequence[int], int]]) -> float:
    """Tokens a round of drafting `answers`, which the target wrote greedily: what it would emit a pass at temperature 0."""
    rounds, tokens = 0, 0
    for text, start in answers:
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
