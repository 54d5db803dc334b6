"""Token recycling: after a token it drafts what the target found likely when it last scored that token.

Luo et al., 2408.08696. An adjacency matrix holds, for every token of the vocabulary, the `top_k` tokens that the target
found most likely behind it when it last scored it, as an accepted token or as a rejected candidate. A static tree is
filled from it breadth first: the children of the last token come from its row, their children from theirs, and so on
(section 3.2). Each verification writes the rows of all tokens that it scored anew (3.3).

Candidates are deterministic at every temperature. The paper carries the matrix over from prompt to prompt. Here each
sequence has its own, so that a prompt decodes the same alone, in a batch, and in a run that was resumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from specrig.decoding.draft_size import DEARER, DraftSize
from specrig.decoding.static_tree import FittedTree, FixedTree, Ranks, assumed_accuracy, sparse_tree
from specrig.decoding.types import Context, Draft, Drafter, MethodOptions, PaperRound, Verdict

if TYPE_CHECKING:
    from torch import Tensor

TALLEST = 128
"""Levels of the tallest tree."""


def levels(paths: Sequence[Ranks]) -> list[tuple[list[int], list[int]]]:
    """A static tree, level by level: (each node's parent within the level above, each node's rank in its parent's row).

    Example: (0,) (1,) (0, 0) -> ([0, 0], [0, 1]), ([0], [0]).
    """
    result: list[tuple[list[int], list[int]]] = []
    above: dict[Ranks, int] = {(): 0}
    for level in range(1, max(map(len, paths)) + 1):
        members = [path for path in paths if len(path) == level]
        result.append(([above[path[:-1]] for path in members], [path[-1] for path in members]))
        above = {path: position for position, path in enumerate(members)}
    return result


class TokenRecycling(Drafter):
    """Needs no model and no training: a few look-ups a level, and one top-k over the logits that verification computes
    anyway.
    """

    name = "token_recycling"
    summary = "a tree of what the target last thought likely after each token (Token Recycling 2408.08696)"
    paper = PaperRound(width=81, tree=True)

    class Options(MethodOptions):
        """top_k: how many successors of each token are kept; nodes: size of the tree (the paper's 80 is for GPUs), or
        auto: by what a pass of that width pays here; from_prompt: start with what followed each token in the prompt.
        """

        top_k: int = Field(8, ge=1, le=32)
        nodes: Annotated[int, Field(ge=1, le=128)] | Literal["auto"] = 80
        from_prompt: bool = True

    def begin(self, context: Context, hidden: Tensor, aux_hidden_states: Tensor | None = None) -> None:
        """Empty matrices `[B, V, top_k]`, or what followed each token in the prompt, the latest first."""
        import torch

        from specrig.runtime.device import on_device

        vocabulary = self.resources.target.vocab_size
        self.width = min(self.options.top_k, vocabulary)
        self.device = context.sampler.device
        self.matrix = torch.zeros(context.batch_size, vocabulary, self.width, dtype=torch.int32, device=self.device)
        self.known: list[set[int]] = [set() for _ in context.tokens]
        self.trees: dict[tuple[Ranks, ...], list[tuple[Tensor, Tensor]]] = {}
        self.parents: dict[tuple[Ranks, ...], list[int]] = {(): []}
        accuracy = assumed_accuracy(self.width, TALLEST)
        self.shape: FixedTree | FittedTree
        if self.options.nodes == "auto":
            self.shape = FittedTree(DraftSize(self.resources.pass_costs(), DEARER), accuracy)
        else:
            # Wide below first choices and narrow below late ones; 80 nodes reach five or six levels deep, as the
            # paper's do.
            self.shape = FixedTree(partial(sparse_tree, accuracy, self.options.nodes))
        if self.options.from_prompt:
            for row, tokens in enumerate(context.tokens):
                followers: dict[int, list[int]] = {}
                for token, after in zip(tokens[-2::-1], tokens[:0:-1], strict=True):
                    found = followers.setdefault(token, [])
                    if len(found) < self.width and after not in found:
                        found.append(after)
                padded = [found + [0] * (self.width - len(found)) for found in followers.values()]
                self.matrix[row, on_device(list(followers), self.device)] = on_device(padded, self.device, torch.int32)
                self.known[row].update(followers)

    def propose(self, context: Context, k: int) -> Draft:
        """Fill the tree below the last token. A row whose last token was never scored drafts nothing."""
        import torch

        from specrig.runtime.device import on_device

        paths = self.shape.tree(k)
        if paths and paths not in self.trees:
            self._grow(paths)
        n = len(paths)
        roots = [tokens[-1] for tokens in context.tokens]
        lengths = [
            n if depth and root in known else 0
            for root, depth, known in zip(roots, context.depths, self.known, strict=True)
        ]
        level = on_device(roots, self.device).unsqueeze(1)
        rows = torch.arange(len(roots), device=self.device).unsqueeze(1)
        filled = [level[:, :0]]
        # Level by level [B, w]: each node is the `ranks`-th successor of its parent in the row's matrix.
        for above, ranks in self.trees[paths] if any(lengths) else []:
            level = self.matrix[rows, level[:, above], ranks].long()
            filled.append(level)
        # What this round scores: the last token, then the nodes that count; nothing of a finished row.
        self.scored = [
            ([root] if depth else [], length)
            for root, length, depth in zip(roots, lengths, context.depths, strict=True)
        ]
        parents = [self.parents[paths]] * len(roots) if any(lengths) else None
        return Draft(torch.cat(filled, 1), parents, lengths=lengths)

    def observe(self, verdict: Verdict) -> None:
        """Write the successors of every token that was scored. Of a token scored twice the one on the accepted path
        counts, else the later.
        """
        from specrig.decoding.sampling import top
        from specrig.runtime.device import on_device

        assert verdict.logits is not None
        self.shape.learn(verdict)
        rows: list[int] = []
        tokens: list[int] = []
        nodes: list[int] = []
        for row, ((root, length), drafted, path) in enumerate(
            zip(self.scored, verdict.drafted, verdict.paths, strict=True)
        ):
            if not root:
                continue
            scored = [*root, *drafted[:length]]
            # Token -> the position whose logits count for it, 0 being the last token's: later positions win, then those
            # of the path.
            last = {token: node for node, token in enumerate(scored)}
            last |= {scored[node]: node for node in (0, *(node + 1 for node in path))}
            rows += [row] * len(last)
            tokens += last.keys()
            nodes += last.values()
            self.known[row].update(last)
        # One top-k over the logits [scored, V] of all rows' scored tokens.
        at, token_ids, node = on_device([rows, tokens, nodes], self.device)
        self.matrix[at, token_ids] = top(verdict.logits[at, node], self.width).int()

    def _grow(self, paths: tuple[Ranks, ...]) -> None:
        """Prepare a tree: for each level the index tensors that fill it, and the parents of all nodes."""
        from specrig.runtime.device import on_device

        index = {path: node for node, path in enumerate(paths)}
        self.parents[paths] = [index.get(path[:-1], -1) for path in paths]
        self.trees[paths] = [
            (on_device(above, self.device), on_device(ranks, self.device)) for above, ranks in levels(paths)
        ]
