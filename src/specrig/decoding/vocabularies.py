"""Drafts of another vocabulary: a drafter works in its draft model's ids, and what it proposes is put in the target's.

Timor et al., 2502.05202. By intersection (token-level intersection, Algorithm 4): the draft model samples among the
tokens that both vocabularies have, its probabilities scaled to sum 1 over these, so that verification is that of any
draft. By strings (string-level exact match, Algorithm 2): the draft model writes text, which is spelled in the target's
tokens; a token of it is accepted where it is the one that the target chooses. The text is the draft's most likely one at
every temperature: a certain candidate x is accepted with probability p(x), and after a rejection a token is drawn from
the others, which is the same as exact match with a token drawn from p.

Text in between is a map made once from the two tokenizers (`Tokens`, `models.vocabularies`): every token of the target
stands for one or more of the draft's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specrig.decoding.types import (
    Context,
    Draft,
    Drafter,
    MethodOptions,
    Resources,
    Tokens,
    Verdict,
    empty_draft,
    tree_draft,
)

if TYPE_CHECKING:
    from torch import Tensor

STRETCH = 2.0
"""Positions that the draft's cache holds for each token of the target's output. Behind them it drafts nothing."""
SPARE = 256
"""Positions of these that a round's nodes may take."""


def drafter_of(method: type[Drafter], options: Any, resources: Resources) -> Drafter:
    """A drafter of a method; one that speaks the target's ids, where its draft model has a vocabulary of its own."""
    if not method.translates:
        return method(options, resources)
    tokens = resources.tokens(options.vocabularies)
    return method(options, resources) if tokens is None else Translated(method, options, resources, tokens)


class Translated(Drafter):
    """Gives a drafter contexts in its draft's tokens, and makes of its drafts drafts in the target's."""

    name = "translated"
    summary = "a drafter whose draft has a vocabulary of its own"

    def __init__(self, method: type[Drafter], options: MethodOptions, resources: Resources, tokens: Tokens) -> None:
        import torch

        super().__init__(options, resources)
        self.common = torch.tensor(tokens.common, device=resources.target.device)
        self.tokens, self.by_strings = tokens, not tokens.common
        lent: Any = _DraftsResources(resources, tokens)
        self.inner = method(options, lent)
        self.aux_layers = self.inner.aux_layers

    def begin(self, context: Context, hidden: Tensor, aux_hidden_states: Tensor | None = None) -> None:
        """Read the prompts as the draft does."""
        from specrig.decoding.sampling import Sampler

        self.proposed = False
        self.read = [0] * context.batch_size
        self.rows: list[list[int]] = [[] for _ in self.read]
        self._follow(context)
        target = self.resources.target
        room = target.cache.slots - max(target.lengths)
        self.most = max(map(len, self.rows)) + int(STRETCH * room) - SPARE
        # By strings the draft's most likely text is proposed.
        self.sampler = Sampler(0.0, [0] * context.batch_size, context.sampler.device) if self.by_strings else None
        self.inner.begin(self._translated(context), hidden, aux_hidden_states)

    def propose(self, context: Context, k: int) -> Draft:
        """What the drafter proposes, in the target's tokens."""
        self._follow(context)
        self.context = context
        inner = self._translated(context)
        self.base = [len(row) for row in self.rows]
        self.drafted: list[list[int]] = [[] for _ in self.rows]
        if not any(inner.depths):
            return empty_draft(context)
        draft, self.proposed = self.inner.propose(inner, max(inner.depths)), True
        # A tree is cut by levels, by the drafter itself.
        depths = (
            inner.depths if draft.parents is None else [draft.tokens.shape[1] * (depth > 0) for depth in inner.depths]
        )
        lengths = [min(own, depth) for own, depth in zip(draft.offered, depths, strict=True)]
        if self.by_strings:
            return self._spelled(draft, lengths, context)
        common = self.common
        return replace(draft, tokens=common[draft.tokens], rows=None, lengths=lengths, vocabulary=common)

    def observe(self, verdict: Verdict) -> None:
        """Tell the drafter how much of what it drafted stands in the context now."""
        if not self.proposed:
            return
        self.proposed = False
        if self.by_strings:
            self._follow(self.context)
            agreed = []
            for row, base, drafted in zip(self.rows, self.base, self.drafted, strict=True):
                after = row[base : base + len(drafted)]
                same = (index for index, token in enumerate(after) if token != drafted[index])
                agreed.append(list(range(next(same, len(after)))))
            verdict = replace(verdict, paths=agreed)
        self.inner.observe(verdict)

    def passes(self) -> dict[int, tuple[int, float]]:
        """The drafter's."""
        return self.inner.passes()

    def _follow(self, context: Context) -> None:
        """Read what is new of every row."""
        for number, tokens in enumerate(context.tokens):
            self.rows[number] += self.tokens.read(tokens[self.read[number] :])
            self.read[number] = len(tokens)

    def _translated(self, context: Context) -> Context:
        """The context as the drafter sees it. A row that is too long for the draft's cache is over to it."""
        done = [over or len(row) > self.most for over, row in zip(context.done, self.rows, strict=True)]
        depths = [0 if over else depth for over, depth in zip(done, context.depths, strict=True)]
        rows = [list(row) for row in self.rows]
        return Context(rows, done, self.sampler or context.sampler, depths)

    def _spelled(self, draft: Draft, lengths: list[int], context: Context) -> Draft:
        """The text of each drafted path in the target's tokens; paths that begin alike share nodes."""
        self.drafted = [tokens[:length] for tokens, length in zip(draft.tokens.tolist(), lengths, strict=True)]
        trees: list[tuple[list[int], list[int]]] = []
        for row, drafted in enumerate(self.drafted):
            nodes: dict[tuple[int, int], int] = {}  # parent and token -> node
            parents = None if draft.parents is None else [int(parent) for parent in draft.parents[row]]
            for path in _paths(parents, len(drafted)):
                node = -1
                for token in self.tokens.spelled(drafted[at] for at in path)[: context.depths[row]]:
                    node = nodes.setdefault((node, token), len(nodes))
            trees.append(([token for _, token in nodes], [parent for parent, _ in nodes]))
        if not any(tokens for tokens, _ in trees):
            return empty_draft(context)
        spelled = tree_draft(trees, context.sampler.device)
        return replace(spelled, parents=None) if draft.parents is None else spelled


def _paths(parents: list[int] | None, n: int) -> list[list[int]]:
    """The nodes of each path from the root to a leaf, of n nodes with these parents; None: a chain."""
    if parents is None:
        return [list(range(n))]
    ways: list[list[int]] = []
    for node in range(n):
        ways.append([*(ways[parents[node]] if parents[node] >= 0 else ()), node])
    inner = set(parents[:n])
    return [way for node, way in enumerate(ways) if node not in inner]


class _DraftsResources:
    """What an engine offers, to a drafter that works in its draft's tokens."""

    def __init__(self, resources: Resources, tokens: Tokens) -> None:
        self._resources, self._tokens = resources, tokens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._resources, name)

    def model(self, name: str) -> Any:
        """The draft model, whose tokens are numbered as in the map."""
        return self._resources.numbered(name, self._tokens, STRETCH)

    def remote(self, name: str, rows: int, *, latency_s: float, half: bool) -> Any:
        """The same in a service."""
        return self._resources.remote(
            name, rows, latency_s=latency_s, half=half, tokens=self._tokens, slots_per_token=STRETCH
        )
