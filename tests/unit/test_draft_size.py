"""Drafts as large as a pass pays for: prices of tokens, what evidence changes, and what a real pass costs."""

from __future__ import annotations

from math import log

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specrig.decoding.draft_size import DEARER, MEMORY, PRIOR, DraftSize, slopes
from specrig.decoding.static_tree import FittedTree
from specrig.decoding.types import Verdict
from specrig.runtime.pass_costs import WIDTHS, pass_costs
from specrig.runtime.transformers_model import cached_model


def verdict(paths: list[list[int]], drafted: int) -> Verdict:
    """A round in which each row verified `drafted` tokens and accepted a path."""
    tokens = [[0] * (len(path) + 1) for path in paths]
    judged = [min(len(path) + 1, drafted) for path in paths]
    return Verdict(tokens, paths, [0.0] * len(paths), judged, [[0] * drafted for _ in paths])


def test_a_tile_costs_its_tokens_alike() -> None:
    assert slopes([1, 1.2, 1.2, 1.6]) == pytest.approx([0.1, 0.1, 0.4])
    assert slopes([1, 1.3, 1.4, 1.5]) == pytest.approx([0.5 / 3] * 3)
    assert slopes([1.0]) == []


def test_a_token_pays_above_its_price() -> None:
    size = DraftSize([1, 1.04, 1.3])
    size.rate = 1.5
    assert [size.fit([chance]) for chance in (0.05, 0.07)] == [0, 1]
    assert [size.fit([0.9, chance]) for chance in (0.38, 0.40)] == [1, 2]
    assert size.fit([0.9] * 9) == 2, "beyond what was timed nothing is known"


def test_the_same_draft_is_long_where_wide_passes_are_cheap_and_short_where_they_are_dear() -> None:
    shares = [0.6] * 8
    sizes = [DraftSize([1 + step * n for n in range(64)]) for step in (0.01, 0.3, 1.0)]
    assert [size.fit_chains([shares, shares], [9, 1]) for size in sizes] == [[8, 1], [2, 1], [0, 0]]


def test_a_drafter_that_promises_too_much_is_trusted_less_and_again_after_a_while() -> None:
    size = DraftSize([1 + 0.2 * n for n in range(8)])
    chosen = []
    for _ in range(120):  # nothing is ever accepted
        chosen += size.fit_chains([[0.9] * 4], [4])
        size.learn_chains(verdict([[]], chosen[-1]))
    assert chosen[0] == 4 and set(chosen[60:]) == {0, 1}, "it tries again now and then"


def test_of_a_chain_what_lies_behind_the_first_rejection_was_not_judged() -> None:
    size = DraftSize([1.0] * 8)
    size.fit_chains([[0.5, 0.25, 0.125]], [3])
    size.learn_chains(verdict([[0]], 3))
    once = DraftSize([1.0] * 8)
    once.learn(0.75, 1, verdict([[0]], 3))
    assert size.trust == once.trust


def test_of_a_tree_the_children_of_what_was_accepted_were_judged() -> None:
    size = DraftSize([1 + 0.1 * n for n in range(9)])
    # Nodes 0 and 1 below the root, 2 below 0, 3 below 1. Node 0 is accepted: 0, 1 and 2 were judged, 3 was not.
    values = [log(each) for each in (0.5, 0.3, 0.4, 0.1)]
    found = verdict([[0], []], 4)
    found.parents, found.tokens[1] = [[-1, -1, 0, 1], [-1, -1, 0, 1]], []  # the second row is over
    size.learn_trees([values, []], found)
    assert size._expected == pytest.approx(PRIOR + 0.5 + 0.3 + 0.4 / 0.5) and size._accepted == pytest.approx(PRIOR + 1)
    trust = size.trust
    size.learn_trees([[log(trust * 0.5)]], verdict([[]], 1))  # values are by the trust of their round
    assert size._expected == pytest.approx(MEMORY * (PRIOR + 1.6) + (1 - MEMORY) * PRIOR + 0.5)


def test_rounds_make_a_token_dearer_than_passes_say() -> None:
    costs = [1, 1.1, 1.2]
    assert DraftSize(costs, DEARER).least(2) == pytest.approx([DEARER * least for least in DraftSize(costs).least(2)])


def test_a_fitted_tree_follows_price_and_acceptance() -> None:
    accuracy = [[0.5, 0.25, 0.125]] * 4
    dear, cheap = (FittedTree(DraftSize([1 + step * n for n in range(64)]), accuracy) for step in (0.3, 0.01))
    assert dear.tree(4) == ((0,),)
    assert len(cheap.tree(4)) > 20 and max(map(len, cheap.tree(4))) == 4
    assert max(map(len, cheap.tree(2))) == 2
    for _ in range(60):  # no child of the root is ever right
        cheap.tree(4)
        cheap.learn(verdict([[]], 30))
    assert len(cheap.tree(4)) < 10
    trust = cheap.size.trust
    cheap.learn(verdict([[]], 0))
    assert cheap.size.trust > trust, "a row without a tree says nothing against its chances"


@torch.inference_mode()
def test_real_passes_cost_no_less_when_wider_and_leave_the_context_alone() -> None:
    config = LlamaConfig(
        vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    model = cached_model(LlamaForCausalLM(config))
    model.start(2, 300)
    model.forward(torch.zeros((2, 5), dtype=torch.long))
    model.keep([range(5), range(3)])
    costs = pass_costs(model)
    assert costs[0] == 1.0 and costs == sorted(costs) and len(costs) == WIDTHS[-1]
    assert model.lengths == [5, 3] and not model.pass_totals()
