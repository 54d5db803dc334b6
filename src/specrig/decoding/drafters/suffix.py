"""Suffix decoding: how often each continuation followed the current suffix, in prompt and output, decides what is drafted.

Oliaro et al., 2411.04975. A suffix tree counts every substring of the sequence. The suffixes of the sequence that occurred before
are its match nodes; below each, continuations are tried by their empirical probability (the product of a node's share among its
siblings, section 4.2). The longer the match, the more is drafted: at most `max_spec_factor` tokens for each matched one. Of all match
lengths the one whose draft promises most accepted tokens, the sum of its probabilities, is verified.

Example: `a b c a b d a b`. The suffix `a b` occurred twice, followed once by c and once by d: each has probability 1/2; with factor
1 two tokens may be drafted: d (the later one), then what followed it, a.

The paper also keeps a tree of earlier requests. A draft would then depend on what the process served before, and a prompt in a
batch, or after a resumed run, would not decode as it does alone; so each sequence here has its own tree and no other.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from pydantic import Field

from specrig.decoding.types import Context, Draft, Drafter, MethodOptions

if TYPE_CHECKING:
    from torch import Tensor


MOST = 64
"""Nodes a draft may hold, so that a tree fits the target's cache whatever the options."""


class Node:
    """A substring: how often it occurred, and the index behind its last occurrence.

    Without `children` nothing below it is counted (it occurred once, or is as long as the tree is deep): the text goes on.
    """

    __slots__ = ("after", "children", "count")

    def __init__(self, after: int) -> None:
        self.count = 1
        self.after = after
        self.children: dict[int, Node] | None = None


class SuffixTree:
    """Of one growing sequence, to `depth` tokens; what occurs once is not spelled out, so a token costs as much as its matches."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.text: list[int] = []
        self.root = Node(0)
        self.root.children = {}
        self.matches: list[Node] = []
        """The suffixes of the text that occurred before, by length: the first has one token. Each is shorter than `depth`."""

    def extend(self, tokens: list[int]) -> None:
        """Take in `tokens` (the whole sequence; only what is new is read)."""
        for token in tokens[len(self.text) :]:
            self.text.append(token)
            end = len(self.text)
            longer: list[Node] = []
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

    def draft(self, start: Node, nodes: int, depth: int, least: float, *, branch: bool) -> tuple[float, list[int], list[int]]:
        """Continuations of `start`, the most probable first: (sum of probabilities, tokens, parents).

        At most `nodes` of at most `depth` tokens, each of probability `least` or more; without `branch` only the most frequent
        token goes on from each, so that they are a chain.
        """
        score, tokens, parents = 0.0, list[int](), list[int]()
        # Probability (negative), how long ago (negative index), parent, depth, token, node; the first three tell all apart.
        heap: list[tuple[float, int, int, int, int, Node]] = []

        def offer(node: Node, parent: int, level: int, probability: float) -> None:
            if node.children is None:
                if node.after < len(self.text):
                    heapq.heappush(heap, (-probability, -node.after, parent, level, self.text[node.after], Node(node.after + 1)))
                return
            found = list(node.children.items())
            total = sum(child.count for _, child in found)
            if not branch:
                found = [max(found, key=lambda item: (item[1].count, item[1].after))]
            for token, child in found:
                share = probability * child.count / total
                if share >= least:
                    heapq.heappush(heap, (-share, -child.after, parent, level, token, child))

        offer(start, -1, 1, 1.0)
        while heap and len(tokens) < nodes:
            negative, _, parent, level, token, node = heapq.heappop(heap)
            score -= negative
            tokens.append(token)
            parents.append(parent)
            if level < depth:
                offer(node, len(tokens) - 1, level + 1, -negative)
        return score, tokens, parents

    def best(self, factor: float, depth: int, least: float, *, branch: bool) -> tuple[list[int], list[int]]:
        """The draft of highest score over all match lengths: (tokens, parents), empty without a match."""
        score, tokens, parents, count = 0.0, list[int](), list[int](), 0
        for length in range(len(self.matches), 0, -1):
            node = self.matches[length - 1]
            most = min(int(factor * length), MOST if branch else depth)
            if most <= score:
                break  # probabilities are at most 1: nothing shorter can promise more
            if node.count == count:
                continue  # the same occurrences as the longer match, and fewer tokens allowed
            count = node.count
            found = self.draft(node, most, depth, least, branch=branch)
            if found[0] > score:
                score, tokens, parents = found
        return tokens, parents


class Suffix(Drafter):
    """No model, no training: some dictionary accesses a token. k bounds the draft's depth, the match decides on its length."""

    name = "suffix"
    summary = (
        "continuations by how often they followed the current suffix, longer after longer matches (SuffixDecoding 2411.04975)"
    )

    class Options(MethodOptions):
        """max_tree_depth: tokens of a counted substring; max_spec_factor: draft tokens a matched token allows;
        min_token_prob: least probability of a drafted token, given the match; tree: verify a tree instead of a chain.
        """

        max_tree_depth: int = Field(24, ge=2, le=64)
        max_spec_factor: float = Field(1.0, gt=0, le=16)
        min_token_prob: float = Field(0.1, ge=0, le=1)
        tree: bool = False

    def begin(self, context: Context, hidden: Tensor, features: Tensor | None = None) -> None:
        """Index the prompts."""
        self.trees = [SuffixTree(self.options.max_tree_depth) for _ in context.tokens]
        for tree, tokens in zip(self.trees, context.tokens, strict=True):
            tree.extend(tokens)

    def propose(self, context: Context, k: int) -> Draft:
        """Count what is new of every unfinished row, and draft from the best match."""
        from specrig.decoding.device import padded

        options = self.options
        found: list[tuple[list[int], list[int]]] = []
        for tree, tokens, depth in zip(self.trees, context.tokens, context.depths, strict=True):
            if depth:
                tree.extend(tokens)
            factor = options.max_spec_factor
            found.append(tree.best(factor, depth, options.min_token_prob, branch=options.tree) if depth else ([], []))
        lengths = [len(tokens) for tokens, _ in found]
        width = max(lengths)
        nodes = padded([tokens for tokens, _ in found], width, context.sampler.device)
        parents = [row + [-1] * (width - len(row)) for _, row in found] if options.tree and width else None
        return Draft(nodes, parents, lengths=lengths)
