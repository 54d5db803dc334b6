"""Token recycling: the static tree, what the matrix learns, how the tree is filled from it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from specrig.decoding.drafters.token_recycling import TokenRecycling, levels
from specrig.decoding.sampling import Sampler
from specrig.decoding.static_tree import Ranks, assumed_accuracy, sparse_tree
from specrig.decoding.types import Context, Verdict

V = 10


def started(*rows: list[int], **options: Any) -> tuple[TokenRecycling, Context]:
    resources: Any = SimpleNamespace(target=SimpleNamespace(vocab_size=V))
    drafter = TokenRecycling(TokenRecycling.Options(**options), resources)
    context = Context([list(row) for row in rows], [False] * len(rows), Sampler(0.0, range(len(rows))), [4] * len(rows))
    drafter.begin(context, torch.empty(0))
    return drafter, context


def logits_of(*favourites: list[int]) -> torch.Tensor:
    """`[n, V]` whose tokens, best first, are these."""
    logits = torch.zeros(len(favourites), V)
    for position, tokens in enumerate(favourites):
        logits[position, tokens] = torch.arange(len(tokens), 0, -1).float()
    return logits


def tree_of(top_k: int, nodes: int, depth: int) -> list[Ranks]:
    return sparse_tree(assumed_accuracy(top_k, depth), nodes, depth)


def test_the_tree_is_wide_at_first_choices() -> None:
    assert levels(tree_of(2, 3, 4)) == [([0, 0], [0, 1]), ([0], [0])]
    for nodes in (1, 16, 80):
        tree = levels(tree_of(8, nodes, 6))
        assert sum(len(ranks) for _, ranks in tree) == nodes and len(tree) <= 6
        for (above, ranks), (before, _) in zip(tree[1:], tree, strict=False):
            assert len(above) == len(ranks) and all(0 <= place < len(before) for place in above)
    assert all(ranks == [0] for _, ranks in levels(tree_of(1, 5, 3)))


def test_the_prompts_successions_come_first() -> None:
    drafter, context = started([1, 2, 1, 3, 1], nodes=3, top_k=2)
    draft = drafter.propose(context, 2)
    assert draft.parents == [[-1, -1, 0]]
    assert draft.tokens.tolist() == [[3, 2, 1]]  # 3 followed 1 later than 2 did; 1 followed 3


def test_an_unknown_token_drafts_nothing() -> None:
    drafter, context = started([1, 2], [3, 1, 4, 3], nodes=3, top_k=2)
    draft = drafter.propose(context, 2)
    assert draft.lengths == [0, 3]
    drafter, context = started([1, 2, 1], from_prompt=False)
    assert drafter.propose(context, 2).tokens.shape == (1, 0)


def test_every_scored_token_is_learned_and_the_accepted_path_counts_most() -> None:
    drafter, context = started([1, 2, 1, 3, 1], nodes=3, top_k=2)
    drafted = drafter.propose(context, 2).tokens.tolist()  # nodes 3, 2, and 1 below 3
    # 1 is scored as the last token and as a candidate, 2 is accepted, 3 and the candidate 1 are rejected.
    logits = logits_of([2, 5], [6, 7], [8, 9], [4, 4]).unsqueeze(0)
    drafter.observe(Verdict([[2, 8]], [[1]], [1.0], [2], drafted, logits=logits))
    assert drafter.matrix[0, [1, 2, 3]].tolist() == [[2, 5], [8, 9], [6, 7]]
    context.tokens[0] += [2, 8]
    assert drafter.propose(context, 2).lengths == [0]  # 8 was never scored
    context.tokens[0].append(1)
    assert drafter.propose(context, 2).tokens.tolist() == [[2, 5, 8]]
