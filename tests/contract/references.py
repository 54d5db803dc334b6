"""What each method would offer, written out plainly: no caches, no incremental state, every step computed from the
whole text.

A proposal is the set of its paths, token by token from the first token after the text. Slow and short on purpose.
`watched` and `paths_of` tell what a drafter does offer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from specrig.decoding.types import Context, Draft, Drafter, Generation

Paths = set[tuple[int, ...]]


class Plain:
    """A transformers model, run over the whole text each time."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.known: dict[tuple[int, ...], Tensor] = {}

    def logits(self, text: Sequence[int]) -> Tensor:
        """`[V]` of the token that follows the text."""
        key = tuple(text)
        if key not in self.known:
            with torch.no_grad():
                self.known[key] = self.model(input_ids=torch.tensor([key]), use_cache=False).logits[0, -1]
        return self.known[key]

    def best(self, text: Sequence[int], count: int = 1) -> list[int]:
        """The most likely tokens, best first."""
        found: list[int] = self.logits(text).topk(count).indices.tolist()
        return found

    def probs(self, text: Sequence[int], temperature: float) -> Tensor:
        return torch.softmax(self.logits(text).double() / temperature, -1)


def accepted(paths: Paths, truth: Sequence[int]) -> int:
    """Tokens of the longest path that the target's own text agrees with."""
    return max((len(path) for path in paths if path == tuple(truth[: len(path)])), default=0)


def prefixes(path: Sequence[int]) -> Paths:
    return {tuple(path[:end]) for end in range(1, len(path) + 1)}


def tree(draft: Plain, text: list[int], branching: Sequence[int], k: int) -> Paths:
    """The draft's most likely children of every node; a chain where `branching` is empty."""
    paths: Paths = set()
    level: list[tuple[int, ...]] = [()]
    for depth in range(k):
        width = branching[depth] if depth < len(branching) else 1
        level = [(*path, token) for path in level for token in draft.best([*text, *path], width)]
        paths |= set(level)
    return paths


def ngram(text: list[int], k: int, longest: int = 3, shortest: int = 1) -> Paths:
    for size in range(longest, shortest - 1, -1):
        for end in range(len(text) - 1, size - 1, -1):
            if text[end - size : end] == text[-size:]:
                return prefixes(text[end : end + k])
    return set()


def suffix(text: list[int], k: int, *, depth: int = 24, factor: float = 1.0, least: float = 0.1) -> Paths:
    """Over all lengths at which the text's end occurred before: go on by the most frequent continuation, the latest
    among equals.
    """

    def ends(part: tuple[int, ...]) -> list[int]:
        return [end for end in range(len(part), len(text) + 1) if tuple(text[end - len(part) : end]) == part]

    best, score, occurrences = list[int](), 0.0, 0
    for length in range(min(depth - 1, len(text)), 0, -1):
        here = tuple(text[-length:])
        if len(ends(here)) < 2 or len(ends(here)) == occurrences:
            continue  # new, or the places of the longer match
        occurrences = len(ends(here))
        drafted, promise, chance, part, at = list[int](), 0.0, 1.0, here, 0
        while len(drafted) < min(int(factor * length), k):
            if len(part) < depth and not at:
                follows = [(text[end], end + 1) for end in ends(part) if end < len(text)]
                tokens = [token for token, _ in follows]
                token, at_next = max(follows, key=lambda found: (tokens.count(found[0]), found[1]))
                share = tokens.count(token) / len(tokens)
            elif at < len(text):
                token, at_next, share = text[at], at + 1, 1.0  # beyond what is counted the text goes on
            else:
                break
            if chance * share < least:
                break
            chance *= share
            promise += chance
            drafted.append(token)
            part = (*part, token)
            if at or len(ends(part)) == 1 or len(part) >= depth:
                at = at_next
        if promise > score:
            best, score = drafted, promise
    return prefixes(best)


class Lookahead:
    """Window and pool of one sequence (2402.02057); the window's tokens are scored one by one."""

    def __init__(self, target: Plain, text: list[int], k: int, window: int, guesses: int) -> None:
        self.target, self.guesses = target, guesses
        first = random.Random(repr(text))
        self.levels = [first.choices(text, k=window) for _ in range(k)]
        self.grams = [tuple(text[start : start + k + 1]) for start in range(len(text) - k)]

    def propose(self, text: list[int]) -> Paths:
        """The latest n-grams that begin with the text's last token."""
        latest: list[tuple[int, ...]] = []
        for gram in reversed(self.grams):
            if gram[0] == text[-1] and gram[1:] not in latest:
                latest.append(gram[1:])
        return {path for guess in latest[: self.guesses] for path in prefixes(guess)}

    def observe(self, text: list[int], _: list[int]) -> None:
        """`text`: what the round's pass had before it."""
        new = []
        for column in range(len(self.levels[0])):
            above = [level[column] for level in self.levels[1:]]
            new.append(self.target.best([*text, *self.levels[0][: column + 1], *above])[0])
            self.grams.append((*(level[column] for level in self.levels), new[-1]))
        self.levels = [*self.levels[1:], new]


class TokenRecycling:
    """The matrix of one sequence (2408.08696); every node that was offered is scored by itself."""

    def __init__(self, target: Plain, text: list[int], k: int, top_k: int, nodes: int) -> None:
        self.target, self.k, self.top_k, self.nodes = target, k, top_k, nodes
        self.rows: dict[int, list[int]] = {}
        for token in set(text[:-1]):
            after = [text[place + 1] for place in range(len(text) - 1) if text[place] == token]
            distinct = list(dict.fromkeys(reversed(after)))[:top_k]
            self.rows[token] = distinct + [0] * (top_k - len(distinct))
        self.offered: list[tuple[int, ...]] = []

    def propose(self, text: list[int]) -> Paths:
        """The most promising places if rank r were right with chance 1 / (2r + 2)."""
        positions = [ranks for depth in range(1, self.k + 1) for ranks in product(range(self.top_k), repeat=depth)]

        def promise(ranks: tuple[int, ...]) -> float:
            chance = 1.0
            for rank in ranks:
                chance *= 0.5 / (rank + 1)
            return chance

        chosen = sorted(positions, key=lambda ranks: (-promise(ranks), len(ranks), ranks))[: self.nodes]
        self.offered = []
        for ranks in sorted(chosen, key=lambda ranks: (len(ranks), ranks)) if text[-1] in self.rows else []:
            path: tuple[int, ...] = ()
            for rank in ranks:
                path = (*path, self.rows.get((text[-1], *path)[-1], [0] * self.top_k)[rank])
            self.offered.append(path)
        return set(self.offered)

    def observe(self, text: list[int], taken: list[int]) -> None:
        """`text`: what the round's pass had before it; `taken`: the path that was accepted."""
        scored = [(), *self.offered, *(tuple(taken[:end]) for end in range(len(taken) + 1))]
        for path in scored:  # what comes later counts, the accepted path last
            self.rows[(text[-1], *path)[-1]] = self.target.best([*text, *path], self.top_k)


def rounds(
    target: Plain,
    prompt: list[int],
    length: int,
    propose: Callable[[list[int]], Paths],
    observe: Callable[[list[int], list[int]], None] = lambda text, taken: None,
) -> list[tuple[Paths, int]]:
    """(What is offered, how much of it is accepted) round by round at temperature 0, until `length` tokens are there."""
    truth = list(prompt)
    for _ in range(length + 8):
        truth += target.best(truth)
    at, found = len(prompt) + 1, []
    while at < len(prompt) + length:
        paths = propose(truth[:at])
        count = accepted(paths, truth[at:])
        observe(truth[:at], truth[at : at + count])
        found.append((paths, count))
        at += count + 1
    return found


def watched(drafter: Drafter) -> list[tuple[Context, Draft]]:
    """What the drafter is going to propose, and to which text."""
    seen: list[tuple[Context, Draft]] = []
    propose = drafter.propose

    def watching(context: Context, k: int) -> Draft:
        text = Context([list(row) for row in context.tokens], list(context.done), context.sampler, list(context.depths))
        draft = propose(context, k)
        seen.append((text, draft))
        return draft

    drafter.propose = watching  # type: ignore[method-assign]
    return seen


def paths_of(draft: Draft, row: int) -> Paths:
    tokens, count = draft.tokens[row].tolist(), draft.offered[row]
    parents = range(-1, count - 1) if draft.parents is None else [int(parent) for parent in draft.parents[row]]
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tokens[:count], parents[:count], strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return set(paths)


def of_rounds(found: Generation) -> list[int]:
    return [entry.accepted for entry in found.rounds if not entry.cut]
