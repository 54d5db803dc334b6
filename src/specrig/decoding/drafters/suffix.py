"""Suffix decoding: the draft is what most often followed the current suffix earlier in prompt and output.

Oliaro et al., 2411.04975. A suffix tree counts every substring of the sequence. The suffixes of the sequence that
occurred before are its match nodes; below each, continuations are tried by their empirical probability (the product of
a node's share among its siblings, section 4.2). The longer the match, the more is drafted: at most `max_spec_factor`
tokens for each matched one. Of the drafts for all match lengths the one with the largest sum of probabilities, which is
the expected number of accepted tokens, is verified.

Example: `a b c a b d a b`. The suffix `a b` occurred twice, followed once by c and once by d: each has probability 1/2;
with factor 1 two tokens may be drafted: d (the later one), then what followed it, a.

The paper also keeps a tree of earlier requests. A draft would then depend on what the process served before, and a
prompt would decode differently in a batch, or in a run that was resumed, than it does alone. So here each sequence has
only its own tree.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator

from specrig.decoding.draft_size import DraftSize
from specrig.decoding.types import Context, Draft, Drafter, MethodOptions, Verdict, tree_draft
from specrig.heads.base import Foreign
from specrig.heads.likeliest import Child, likeliest

if TYPE_CHECKING:
    from typing import Self

    from torch import Tensor


MOST = 64
"""The most nodes that a draft may hold, so that a tree fits the target's cache whatever the options are."""
UNSEEN = 0.5
"""Occurrences that are added to those of every match, for what was not seen behind it."""


class Found(NamedTuple):
    """A draft for a row: its tokens, each with its probability and its parent (-1: the last token of the text)."""

    probabilities: list[float]
    tokens: list[int]
    parents: list[int]

    @property
    def score(self) -> float:
        """How many of its tokens it expects to be accepted."""
        return sum(self.probabilities)


class Node:
    """A substring of the text: how often it occurred, and the index behind its last occurrence.

    children: by next token; None where they are not counted, because the substring occurred once or is as long as the
    tree is deep. What follows it then is read from the text itself.
    """

    __slots__ = ("after", "children", "count")

    def __init__(self, after: int) -> None:
        self.count = 1
        self.after = after
        self.children: dict[int, Node] | None = None


class SuffixTree:
    """The substrings of one growing sequence, up to `depth` tokens long, counted.

    A substring that occurred once has no nodes below it, so a new token costs time in proportion to its matches.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.text: list[int] = []
        self.root = Node(0)
        self.root.children = {}
        self.matches: list[Node] = []
        """The suffixes of the text that occurred before, by length: the first has one token. Each is shorter than
        `depth`.
        """

    def extend(self, tokens: list[int]) -> None:
        """Count what is new in `tokens`, the whole sequence so far."""
        for token in tokens[len(self.text) :]:
            self.text.append(token)
            end = len(self.text)
            longer: list[Node] = []
            # Every suffix that occurred before, the empty one included, grows by the token: its child is a longer
            # match, or new.
            for node in (self.root, *self.matches):
                assert node.children is not None
                child = node.children.get(token)
                if child is None:
                    node.children[token] = Node(end)
                    continue
                child.count += 1
                if len(longer) + 1 < self.depth:
                    if child.children is None:  # no longer alone: spell out what followed the first time
                        child.children = {self.text[child.after]: Node(child.after + 1)}
                    longer.append(child)
                child.after = end
            self.matches = longer

    def followers(self, node: Node) -> Collection[tuple[int, Node]]:
        """The tokens that followed a substring, each with the substring that it makes longer."""
        if node.children is not None:
            return node.children.items()
        # It occurred once: what followed stands in the text.
        return [(self.text[node.after], Node(node.after + 1))] if node.after < len(self.text) else []

    @staticmethod
    def distinct(matches: Sequence[Node], lengths: int) -> Iterable[tuple[int, Node]]:
        """Of `matches` by length the longest ones that occurred more often than a longer one, each with its length."""
        seen = 0
        for length in range(len(matches), 0, -1):
            node = matches[length - 1]
            if node.count > seen:  # else these are the occurrences of the longer match again
                seen, lengths = node.count, lengths - 1
                yield length, node
            if not lengths:
                return

    def shares(self, trusted: float, node: Node, least: float = 0.0) -> list[tuple[int, float, Node]]:
        """The tokens that followed a match, each with its chance there and the longer match: `trusted` · n / (N + 1/2)
        for a token that followed n of N times. Those with a lower chance than `least` are left out.
        """
        # The text may end with the match: nothing followed that occurrence yet.
        part = trusted / (node.count - (node.after == len(self.text)) + UNSEEN)
        if part * node.count < least:
            return []
        return [
            (token, part * child.count, child) for token, child in self.followers(node) if part * child.count >= least
        ]

    def behind(self, matches: Sequence[Node], token: int) -> list[Node]:
        """The `matches` of the text that goes on with a token, from those of the text."""
        longer: list[Node] = []
        for node in (self.root, *matches[: self.depth - 2]):
            if node.children is not None:
                child = node.children.get(token)
            else:  # it occurred once
                followed = node.after < len(self.text) and self.text[node.after] == token
                child = Node(node.after + 1) if followed else None
            if child is None:
                break  # where a substring did not occur, no longer one did
            longer.append(child)
        return longer

    def draft(
        self, start: Node, nodes: int, depth: int, least: float, *, branch: bool
    ) -> tuple[list[float], list[int], list[int]]:
        """The most probable continuations of `start`, see `likeliest`; among equals the later one. least: the lowest
        probability.

        Without `branch` each node gets only its most frequent child, so that the draft is a chain.
        """

        def children(node: Node) -> Iterable[Child[Node]]:
            found = self.followers(node)
            total = sum(child.count for _, child in found)
            if found and not branch:
                found = [max(found, key=lambda item: (item[1].count, item[1].after))]
            for token, child in found:
                yield child.count / total, -child.after, token, child

        return likeliest(start, children, nodes, depth, least)

    def best(self, factor: float, depth: int, least: float, *, branch: bool) -> Found:
        """The draft with the largest sum of probabilities, over all match lengths; empty without a match."""
        score, best = 0.0, Found([], [], [])
        for length, node in self.distinct(self.matches, len(self.matches)):  # a longer match may draft more tokens
            most = min(int(factor * length), MOST if branch else depth)
            if most <= score:
                break  # probabilities are at most 1: nothing shorter can promise more
            found = Found(*self.draft(node, most, depth, least, branch=branch))
            if found.score > score:
                score, best = found.score, found
        return best


class Suffix(Drafter):
    """Needs no model and no training, only some dictionary accesses a token. k bounds the draft's depth; the match
    decides its length.
    """

    name = "suffix"
    summary = (
        "continuations by how often they followed the current suffix, longer after longer matches (SuffixDecoding "
        "2411.04975)"
    )
    foreign: ClassVar[Mapping[str, Foreign]] = {
        # Without a cache of earlier requests: a prompt measured twice must not find its own answer.
        "vllm": Foreign(
            "suffix",
            keys={"suffix_decoding_max_cached_requests": 0},
            options={"tree": False},
            renamed={
                name: f"suffix_decoding_{name}" for name in ("max_tree_depth", "max_spec_factor", "min_token_prob")
            },
        ),
    }

    class Options(MethodOptions):
        """max_tree_depth: the longest substring that is counted, in tokens; max_spec_factor: how many tokens may be
        drafted for each matched one; min_token_prob: the lowest probability of a drafted token, given the match; tree:
        draft a tree instead of a chain; length: of a chain. fixed: by the match; auto: no further than a pass of that
        width pays here (`decoding.draft_size`).
        """

        max_tree_depth: int = Field(24, ge=2, le=64)
        max_spec_factor: float = Field(1.0, gt=0, le=16)
        min_token_prob: float = Field(0.1, ge=0, le=1)
        tree: bool = False
        length: Literal["fixed", "auto"] = "fixed"

        @model_validator(mode="after")
        def _auto_is_of_chains(self) -> Self:
            if self.tree and self.length == "auto":
                raise ValueError("length: auto cuts chains: leave length out with tree: true")
            return self

    @property
    def branches(self) -> bool:
        """Whether it drafts trees."""
        return bool(getattr(self.options, "tree", False))

    def begin(self, context: Context, hidden: Tensor, aux_hidden_states: Tensor | None = None) -> None:
        """Index the prompts."""
        self.trees = [SuffixTree(self.options.max_tree_depth) for _ in context.tokens]
        for tree, tokens in zip(self.trees, context.tokens, strict=True):
            tree.extend(tokens)
        auto = getattr(self.options, "length", "fixed") == "auto"
        self.size = DraftSize(self.resources.pass_costs()) if auto else None

    def propose(self, context: Context, k: int) -> Draft:
        """Draft from the best match of every unfinished row."""
        found = self.matches(context)
        draft = tree_draft([(row.tokens, row.parents) for row in found], context.sampler.device)
        return draft if self.branches else replace(draft, parents=None)

    def matches(self, context: Context) -> list[Found]:
        """Count what is new of every unfinished row; returns the `best` of each row, as far as it pays."""
        found: list[Found] = []
        for tree, tokens, depth in zip(self.trees, context.tokens, context.depths, strict=True):
            if depth:
                tree.extend(tokens)
                found.append(self.best(tree, depth))
            else:
                found.append(Found([], [], []))
        if self.size is not None:
            # A token's chance given those before it, from the products along the path.
            shares = [
                [whole / above for whole, above in zip(row.probabilities, [1.0, *row.probabilities], strict=False)]
                for row in found
            ]
            found = [
                Found(row.probabilities[:n], row.tokens[:n], row.parents[:n])
                for row, n in zip(found, self.size.fit_chains(shares, context.depths), strict=True)
            ]
        return found

    def observe(self, verdict: Verdict) -> None:
        """Learn how far drafts are accepted, where that decides their length."""
        if self.size is not None:
            self.size.learn_chains(verdict)

    def best(self, tree: SuffixTree, depth: int) -> Found:
        """The draft of a row of at most `depth` levels."""
        options = self.options
        return tree.best(options.max_spec_factor, depth, options.min_token_prob, branch=self.branches)
