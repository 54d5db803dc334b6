"""Lookahead decoding: Jacobi iteration over a window yields n-grams, a pool keeps them, the fitting ones are verified.

Fu et al., 2402.02057. One target pass runs both the guesses that are to be verified and the window. The window is a
matrix of W columns and N - 1 levels, N = k + 1. Column i of level 0 stands i + 1 positions behind the last token and
sees the columns before it; level l + 1 continues level l of its own column. So every window token has one parent (its
left neighbour on level 0, the level below elsewhere), the tree mask is the lookahead mask, and the window can be part
of the draft, as `Draft.probes`.

Each pass extends every column by the target's choice at its top level. The column with its new token is an n-gram for
the pool. Then level 0 is dropped and the other levels move down.
"""

from __future__ import annotations

import random
from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING

from pydantic import Field

from specrig.decoding.types import Context, Draft, Drafter, MethodOptions, PaperRound, Verdict

if TYPE_CHECKING:
    from torch import Tensor


class Pool:
    """N-grams by their first token, the latest last, at most `size` for each."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.grams: dict[int, OrderedDict[tuple[int, ...], None]] = defaultdict(OrderedDict)

    def add(self, gram: tuple[int, ...]) -> None:
        """Remember `gram[1:]` as a continuation of `gram[0]`."""
        found = self.grams[gram[0]]
        found.pop(gram[1:], None)
        found[gram[1:]] = None
        if len(found) > self.size:
            found.popitem(last=False)

    def after(self, token: int) -> list[tuple[int, ...]]:
        """Continuations of `token`, latest first."""
        return list(reversed(self.grams.get(token, ())))


class Lookahead(Drafter):
    """Needs no draft and no training. It pays where a target pass over a hundred tokens costs about as much as one over
    a single token.
    """

    name = "lookahead"
    summary = "Jacobi window and n-gram pool, both branches in one target pass (2402.02057)"
    paper = PaperRound(width=120, tree=True)  # 7B: (W + G)(N - 1) with W = G = 15, N = 5

    class Options(MethodOptions):
        """window: columns W; guesses: pool n-grams verified a round, G; from_prompt: fill the pool with the prompt's
        n-grams.
        """

        window: int = Field(15, ge=1, le=40)
        guesses: int = Field(5, ge=1, le=40)
        from_prompt: bool = True

    def begin(self, context: Context, hidden: Tensor, aux_hidden_states: Tensor | None = None) -> None:
        """Empty pools and windows. Random choices are seeded by the prompt, so that a rerun repeats them."""
        self.random = [random.Random(repr(tokens)) for tokens in context.tokens]
        self.pools = [Pool(self.options.guesses) for _ in context.tokens]
        self.windows: list[list[list[int]]] = [[] for _ in context.tokens]
        self.fed = False

    def _fill(self, context: Context, levels: int) -> None:
        """Before the first proposal of a batch: windows of `levels` levels of tokens picked from the prompts, pools of
        their n-grams.
        """
        for row, tokens in enumerate(context.tokens):
            self.windows[row] = [self.random[row].choices(tokens, k=self.options.window) for _ in range(levels)]
            if self.options.from_prompt:
                for start in range(len(tokens) - levels):
                    self.pools[row].add(tuple(tokens[start : start + levels + 1]))

    def propose(self, context: Context, k: int) -> Draft:
        """The pool's guesses for the last token, merged into a trie, then the window."""
        from specrig.runtime.device import on_device

        if not self.fed:
            self._fill(context, k)
            self.fed = True
        levels = len(self.windows[0])
        tries = []
        for row, tokens in enumerate(context.tokens):
            guesses = [] if context.done[row] else self.pools[row].after(tokens[-1])
            tries.append(_trie([guess[:k] for guess in guesses]))
        # Rows of a batch share one width; what a row with fewer guesses has behind them is padding.
        width = max(len(tokens) for tokens, _ in tries)
        all_tokens, all_parents = [], []
        for row, (tokens, parents) in enumerate(tries):
            missing = width - len(tokens)
            tokens, parents = tokens + [0] * missing, parents + [-1] * missing
            # The window follows: on level 0 a token hangs on its left neighbour, above on the level below in its own
            # column.
            for level, column_tokens in enumerate(self.windows[row]):
                base = width + (level - 1) * self.options.window
                for column in range(self.options.window):
                    left = width + column - 1 if column else -1
                    parents.append(base + column if level else left)
                tokens += column_tokens
            all_tokens.append(tokens)
            all_parents.append(parents)
        self.width, self.levels = width, levels
        counts = [len(tokens) for tokens, _ in tries]
        return Draft(
            on_device(all_tokens, context.sampler.device),
            parents=all_parents,
            lengths=counts,
            probes=levels * self.options.window,
        )

    def observe(self, verdict: Verdict) -> None:
        """Read the target's choices at the window's top level: they complete n-grams and become the window's new top
        level.
        """
        assert verdict.logits is not None
        top = 1 + self.width + (self.levels - 1) * self.options.window
        from specrig.decoding.sampling import argmax

        new = argmax(verdict.logits[:, top : top + self.options.window]).tolist()
        for window, pool, choices in zip(self.windows, self.pools, new, strict=True):
            for column, choice in enumerate(choices):
                pool.add((*(level[column] for level in window), choice))
            window.pop(0)
            window.append(choices)


def _trie(guesses: list[tuple[int, ...]]) -> tuple[list[int], list[int]]:
    """Guesses with common beginnings merged: tokens and parents in topological order.

    Example: (1, 2), (1, 3) -> tokens 1 2 3, parents -1 0 0.
    """
    nodes: dict[tuple[int, ...], int] = {}
    tokens: list[int] = []
    parents: list[int] = []
    for guess in guesses:
        for end in range(1, len(guess) + 1):
            prefix = guess[:end]
            if prefix not in nodes:
                nodes[prefix] = len(tokens)
                tokens.append(guess[end - 1])
                parents.append(nodes.get(prefix[:-1], -1))
    return tokens, parents
