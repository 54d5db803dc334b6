"""What followed the last tokens in this sequence and in text that the target wrote before, blended into one tree.

`suffix` drafts from the sequence alone, `rest` from a datastore alone, and each knows continuations that the other has
not seen. Here both are queried for every node of one tree: the matches of up to `lengths` lengths in the sequence, and
the longest one in the datastore. A source that saw a token n times behind its match, which occurred N times and is m
tokens long, gives it the chance m / (m + 1) · n / (N + 1/2): short and rare matches are trusted less. The chance of a
node is that at least one source is right, taken as independent, 1 - Π (1 - chance). The tree with the largest sum of
chances is verified. Only candidates come from this, so any chances leave the output the target's own.

Static and growing text side by side, one of them a round: SAM Decoding (Hu et al., 2411.10666); the paper of suffix
decoding (2411.04975) keeps a tree of earlier outputs too. To blend both within one tree is this project's.

Example: the sequence went on with x both times after `a b`, the datastore 3 of 9 times with x and 6 times with y.
Chances: x from the sequence 2/3 · 2/2.5 = .53 and from the datastore 2/3 · 3/9.5 = .21, together 1 - .47 · .79 = .63; y
.42. Both are drafted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from pydantic import Field

from specrig.decoding.drafters.suffix import MOST, UNSEEN, Found, Node, Suffix, SuffixTree
from specrig.decoding.types import MethodOptions, Resources
from specrig.heads.likeliest import Child, likeliest

if TYPE_CHECKING:
    from specrig.heads.rest.module import Datastore, Span


class TreePosition(NamedTuple):
    """A node of the blended tree: where its text stands in each source, with the trust in that source, m / (m + 1)."""

    own: tuple[tuple[float, Node], ...]
    """In the sequence, once for each length of match."""
    stored: tuple[float, Span] | None
    """In the datastore."""


class SuffixBlend(Suffix):
    """Runs no model: some dictionary accesses and binary searches a node. k bounds the depth of the tree."""

    name = "suffix_blend"
    summary = (
        "one tree of what followed the last tokens in the sequence itself and in text that the target wrote before"
    )
    needs = ("rest",)

    class Options(MethodOptions):
        """nodes: size of the tree; min_token_prob: the lowest chance of a drafted token; lengths: how many match
        lengths in the sequence are queried; longest: tokens of the suffix that is looked up in the datastore;
        max_tree_depth: the longest match in the sequence.
        """

        nodes: int = Field(8, ge=1, le=MOST)
        min_token_prob: float = Field(0.1, ge=0, le=1)
        lengths: int = Field(3, ge=1, le=64)
        longest: int = Field(16, ge=1, le=32)
        max_tree_depth: int = Field(24, ge=2, le=64)

    def __init__(self, options: MethodOptions, resources: Resources) -> None:
        from specrig.heads.rest import module as rest

        super().__init__(options, resources)
        self.store: Datastore = rest.load(resources.head("rest"), resources.target)

    @property
    def branches(self) -> bool:
        """It always drafts trees."""
        return True

    def best(self, tree: SuffixTree, depth: int) -> Found:
        """The blended tree of a row, see `likeliest`."""
        options = self.options
        least = options.min_token_prob
        start = self.start(tree)
        return Found(*likeliest(start, lambda at: followers(at, tree, self.store, least), options.nodes, depth, least))

    def start(self, tree: SuffixTree) -> TreePosition:
        """Where the end of the sequence stands in each source."""
        own = [(trust(length), node) for length, node in tree.distinct(tree.matches, self.options.lengths)]
        span = self.store.longest_suffix(tree.text, self.options.longest, 1)
        return TreePosition(tuple(own), None if span is None else (trust(span.length), span))


def trust(length: int) -> float:
    """In a match of so many tokens."""
    return length / (length + 1)


def followers(
    position: TreePosition, tree: SuffixTree, store: Datastore, least: float
) -> Iterable[Child[TreePosition]]:
    """What may follow a node of the blended tree, with its chance there; among equals the lower token comes first.

    Tokens whose chance is below `least` may be missing: after a common token there are hundreds.
    """
    missed: dict[int, float] = {}  # the chance that no source is right
    own: dict[int, list[tuple[float, Node]]] = {}
    stored: dict[int, tuple[float, Span]] = {}
    for trusted, node in position.own:
        for token, chance, child in tree.shares(trusted, node):
            missed[token] = missed.get(token, 1.0) * (1 - chance)
            own.setdefault(token, []).append((trusted, child))
    if position.stored is not None:
        trusted, span = position.stored
        times = span.last - span.first
        enough = math.floor(least * (times + UNSEEN) / trusted)
        for share, _, token, longer in store.followers(span, enough, own):
            missed[token] = missed.get(token, 1.0) * (1 - trusted * share * times / (times + UNSEEN))
            stored[token] = trusted, longer
    for token, probability in missed.items():
        yield 1 - probability, token, token, TreePosition(tuple(own.get(token, ())), stored.get(token))
