"""Options that change how a draft is drawn or judged keep the target's distribution; shortcuts that do not are caught.

Trees whose candidates are drawn must not take their shape from the draws: small ones on purpose, so that the shape
matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from models import Lab
from sampled import FALSE_ALARM, PROMPT, K, outcome_test

from specrig.decoding import sampling, verify, verify_tree
from specrig.decoding.drafters import registry
from specrig.decoding.drafters.eagle2 import Eagle2
from specrig.decoding.drafters.p_eagle import Tree
from specrig.decoding.drafters.suffix import Found, SuffixTree
from specrig.decoding.drafters.suffix_p_eagle import REJECTED
from specrig.decoding.loop import generate
from specrig.decoding.static_tree import Layout
from specrig.decoding.types import Context, Draft, Verdict
from specrig.heads.medusa.module import MedusaHeads
from specrig.heads.p_eagle import module as p_eagle
from specrig.runtime import compiled
from specrig.runtime.types import DecodingError

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("eagle2", {"nodes": 3, "top_k": 2}),
    ("medusa", {"nodes": 5}),
    ("medusa_draft", {"tree": (3, 1)}),
    ("draft_model", {"acceptance": "block"}),
    ("remote_draft", {"precision": "float16"}),
    ("ngram", {"acceptance": "block"}),
    ("suffix", {"tree": True, "max_spec_factor": 4.0}),
    ("suffix", {"length": "auto", "max_spec_factor": 4.0}),
    ("suffix_hybrid", {"least": 0.5, "draft_k": 3}),
    ("suffix_p_eagle", {"least": 0.5, "draft_k": 3, "length": "auto"}),
    ("suffix_p_eagle", {"least": 0.5, "draft_k": 3, "draft_nodes": 4}),
    ("suffix_p_eagle", {"least": 0.5, "draft_k": 3, "draft_nodes": "auto", "blend": True}),
    ("p_eagle", {"length": "auto"}),
    ("p_eagle", {"nodes": 3, "top_k": 2}),
    ("p_eagle", {"nodes": "auto", "top_k": 3}),
    ("p_eagle", {"passes": 3, "length": "auto"}),
    ("p_eagle", {"passes": 2, "nodes": 6, "top_k": 3}),
    ("suffix_p_eagle", {"least": 0.5, "draft_k": 3, "draft_passes": 2}),
    ("dflash", {"nodes": "auto", "top_k": 3}),
    ("dspark", {"nodes": 6, "top_k": 4}),
    ("dspark", {"length": "auto"}),
    ("dspark", {"confidence_threshold": 0.5, "acceptance": "block"}),
    ("pard", {"length": "auto"}),
    ("token_recycling", {"nodes": "auto", "top_k": 3}),
    ("rest", {"nodes": 4, "shortest": 1}),
    ("suffix_blend", {"nodes": 4, "lengths": 1, "min_token_prob": 0.0}),
    ("medusa", {"nodes": "auto"}),
    ("hydra", {"nodes": "auto"}),
    ("hydra", {"tree": (1,)}),
    ("layer_skip", {"skip": (0, 2), "acceptance": "block"}),
    ("tree", {"branching": (2, 2), "acceptance": "traversal"}),
    ("hydra", {"nodes": 5, "acceptance": "traversal"}),
]


@pytest.fixture(scope="module")
def lab() -> Lab:
    return Lab(vocab_size=8, noise=0.5)


@pytest.fixture(scope="module")
def cut() -> Lab:
    """A head that knows five of the eight tokens, in no order."""
    lab = Lab(vocab_size=8, noise=0.5)
    lab.cut_vocabulary([6, 1, 3, 0, 5])
    return lab


def known_tokens(drafter: Any) -> Any:
    """The same drafter; it is checked that it drafts what it knows, from distributions over what it knows."""
    propose = drafter.propose

    def checked(context: Context, k: int) -> Draft:
        draft = propose(context, k)
        assert set(draft.tokens.unique().tolist()) <= {0, 1, 3, 5, 6}
        assert draft.probs is None or draft.probs.shape[-1] == 5
        return draft

    drafter.propose = checked
    return drafter


BIASED: list[tuple[str, dict[str, Any]]] = [
    ("medusa", {"nodes": 5}),
    ("medusa", {"tree": (1,)}),
    ("medusa_draft", {"tree": (3, 1)}),
    ("hydra", {"nodes": 5}),
    ("p_eagle", {}),
    ("p_eagle", {"nodes": 6, "top_k": 3}),
    ("p_eagle", {"passes": 2, "acceptance": "block"}),
    ("p_eagle", {"passes": 2, "nodes": 6, "top_k": 3}),
    ("suffix_p_eagle", {"draft_k": 3, "draft_nodes": "auto"}),
]


@pytest.fixture(scope="module")
def biased() -> Lab:
    lab = Lab(vocab_size=8, noise=0.5)
    for head in ("medusa", "draft_medusa", "hydra", "p_eagle"):
        lab.add_bias(head)
    return lab


def assert_keeps_the_greedy_output(lab: Lab, drafter: Any) -> None:
    prompts = [PROMPT, [1, 2], [7, 7, 7], [6, 0, 4, 2, 1]]
    plain = generate(lab.target, lab.drafter("autoregressive"), prompts, k=0, max_new_tokens=30, temperature=0)
    found = generate(lab.target, drafter, prompts, k=K, max_new_tokens=30, temperature=0)
    assert [row.tokens for row in found] == [row.tokens for row in plain]


@pytest.mark.parametrize(("method", "options"), BIASED)
def test_a_bias_of_the_token_before_keeps_the_output(biased: Lab, method: str, options: dict[str, Any]) -> None:
    drafter: Any = biased.drafter(method, **options)
    with_head = getattr(drafter, "draft", drafter)  # of a hybrid, the drafter that has the head
    assert (with_head.heads if hasattr(with_head, "heads") else with_head.head).markov is not None
    assert_keeps_the_greedy_output(biased, drafter)
    if method in ("medusa", "hydra") and "nodes" in options:
        drafter = lopsided(biased.drafter(method, **options))
    test = outcome_test(biased, drafter)
    assert test.p_value > FALSE_ALARM, test.worst


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("nodes", [5, "auto"])
def test_a_blended_tree_keeps_the_greedy_output(nodes: int | str, passes: int) -> None:
    lab = Lab(vocab_size=32, noise=0.5)
    if not compiled.supports(lab.target.device, lab.target.dtype):
        pytest.skip("the head's trees are drafted in torch here")
    prompts = [PROMPT, [1, 2, 20, 1, 2], [7, 7, 7]]
    plain = generate(lab.target, lab.drafter("autoregressive"), prompts, k=0, max_new_tokens=30, temperature=0)
    options = {"draft_k": 2, "draft_passes": passes, "draft_nodes": nodes, "blend": True, "least": 9.0}
    drafter: Any = lab.drafter("suffix_p_eagle", **options)
    joined, copies, deepest = drafter.draft.blend, 0, 0

    def noted(row: int, tree: Tree, least: Sequence[float]) -> Tree:
        nonlocal copies, deepest
        tokens, parents, values = joined(row, tree, least)
        assert len(tokens) <= len(least) and values == sorted(values, reverse=True)
        assert all(-1 <= parent < node for node, parent in enumerate(parents))
        assert len(set(zip(parents, tokens, strict=True))) == len(tokens), "no node twice"
        depths: list[int] = []
        for parent in parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        copies += len(set(tokens) - set(tree[0]))
        deepest = max(deepest, *depths, 0)
        return tokens, parents, values

    drafter.draft.blend = noted
    found = generate(lab.target, drafter, prompts, k=4, max_new_tokens=30, temperature=0)
    assert [row.tokens for row in found] == [row.tokens for row in plain]
    assert copies and 2 < deepest <= 4, "copies were drafted, below the head's last level too"


def test_states_that_waited_while_copies_were_drafted_fit_behind_a_longer_row() -> None:
    lab = Lab(vocab_size=32)
    lab.target.start(2, 128)
    head: Any = lab.drafter("p_eagle").head
    width = 3 * lab.target.hidden_size
    rows = [[3] * 100, [1, 2, 20]]
    head.begin(rows, torch.randn(2, 100, width))
    for _ in range(12):  # rounds of copies: the head does not run
        head.accept(torch.randn(2, 9, width), [list(range(8))] * 2)
        rows = [[*row, *range(9)] for row in rows]
    assert head.draft(rows, [True, False], 4).shape[:2] == (2, 4)


def test_a_p_eagle_head_that_never_read_its_own_output_does_not_draft_token_by_token() -> None:
    lab = Lab(vocab_size=32)
    config = p_eagle.head_config(lab.target.config)
    for name in ("p_eagle", "eagle3"):
        p_eagle.save(lab.head(name), config, p_eagle.random_tensors(config, 5, 0.15))
    drafters: list[tuple[str, dict[str, Any]]] = [
        ("eagle3", {}),
        ("p_eagle", {"passes": 2}),
        ("suffix_p_eagle", {"draft_passes": 2}),
    ]
    for rollout in (None, 2, 1):
        if rollout:
            config.specrig = {"rollout": rollout}
            for name in ("p_eagle", "eagle3"):
                p_eagle.save(lab.head(name), config, p_eagle.random_tensors(config, 5, 0.15))
        lab.drafter("p_eagle")
        lab.drafter("suffix_p_eagle")
        for name, options in drafters:
            if rollout == 1:
                with pytest.raises(DecodingError, match="never learnt to read its own output"):
                    lab.drafter(name, **options)
            else:
                lab.drafter(name, **options)


def test_what_followed_a_drafted_token_is_blended_with_what_the_head_says() -> None:
    """The text holds 7 8 9 once. The head drafts 7 (.6) and behind it 8 (.5) or 3 (.25)."""
    drafter: Any = registry()["suffix_p_eagle"].__new__(registry()["suffix_p_eagle"])
    tree = SuffixTree(24)
    tree.extend([7, 8, 9, 5])
    drafter.trees, drafter.depths, drafter.named = [tree], [3], [{}]
    head: Tree = [7, 8, 3], [-1, 0, 0], [log(0.6), log(0.3), log(0.15)]
    tokens, parents, values = drafter.blended(0, head, [0.0] * 5)
    # Behind 7 a match of one token, that occurred once: 8 has 1/4 · 1/1.5. One of both is right with 1 - 1/2 · 5/6.
    eight = 0.6 * (1 - 0.5 * (1 - 1 / 6))
    # Behind 7 8 the longer match of two tokens and the shorter one are one occurrence: 9 has 4/7 · 1/1.5.
    assert (tokens, parents) == ([7, 8, 3, 9], [-1, 0, 0, 1])
    assert values == pytest.approx([log(each) for each in (0.6, eight, 0.15, eight * 8 / 21)])
    assert drafter.blended(0, head, [0.2] * 5)[0] == [7, 8], "the others are not worth it"
    impossible: Tree = [7, 8, 3], [-1, 0, 0], [log(0.6), log(0.3), -60.0]
    assert drafter.blended(0, impossible, [0.0] * 5)[0] == [7, 8, 9], "a chance of 1e-26 is none"


@pytest.mark.parametrize("blend", [False, True])
def test_copies_that_promise_three_tokens_leave_the_head_out_but_where_its_tree_holds_them_too(blend: bool) -> None:
    method: Any = registry()["suffix_p_eagle"]
    drafter: Any = method.__new__(method)
    drafter.options, drafter.size = method.Options(blend=blend, draft_nodes=4), None
    drafter.matches = lambda context: [Found([1.0, 0.9, 0.8, 0.7], [1, 2, 3, 4], [-1, 0, 1, 2])]
    drafter.draft = SimpleNamespace(propose=lambda context, k: Draft(torch.tensor([[9]]), [[-1]]))
    sampler: Any = SimpleNamespace(device=torch.device("cpu"))
    found = drafter.propose(Context([[5]], [False], sampler, [8]), 8)
    assert drafter.draft_used == blend and found.tokens.tolist() == ([[9]] if blend else [[1, 2, 3, 4]])


def test_what_the_target_named_behind_a_rejected_token_is_drafted_when_that_token_comes() -> None:
    """The text is 7 8 9 5, and the target named 4 behind a 6 that it rejected, and 8 behind its own 7."""
    method: Any = registry()["suffix_p_eagle"]
    drafter: Any = method.__new__(method)
    tree = SuffixTree(24)
    tree.extend([7, 8, 9, 5])
    drafter.options = method.Options(blend=True, draft_nodes=4)
    drafter.trees, drafter.depths, drafter.named, drafter.size = [tree], [3], [{}], None
    drafter.draft = SimpleNamespace(observe=lambda verdict: None)
    # Two nodes behind 5, 6 and 7, of a row that offers these alone; the target says 1 behind 5 and accepts neither.
    drafter.drafted = Draft(torch.tensor([[6, 7, 2]]), [[-1, -1, -1]], lengths=[2])
    drafter.observe(Verdict([[1]], [[]], [0.0], [1], [[6, 7, 2]], [[-1, -1, -1]], choices=[[1, 4, 8, 9]]))
    assert drafter.named == [{5: 1, 6: 4, 7: 8}], "what is not offered says nothing"
    tree.extend([7, 8, 9, 5, 1])
    head: Tree = [6, 7], [-1, -1], [log(0.5), log(0.4)]
    tokens, parents, values = drafter.blended(0, head, [0.0] * 4)
    # Behind 6 is what was named there. Behind 7 the text itself holds 8: one of 4 such matches is right, 1 / 1.5 of them.
    assert (tokens, parents) == ([6, 7, 4, 8], [-1, -1, 0, 1])
    assert values == pytest.approx([log(each) for each in (0.5, 0.4, 0.5 * REJECTED, 0.4 / 6)])
    assert drafter.blended(0, head, [REJECTED + 0.01] * 4)[0] == [6, 7], "where no such token pays, none is named"


@pytest.mark.parametrize(("method", "options"), [("medusa", {"tree": (2, 1)}), ("p_eagle", {})])
def test_a_q_that_does_not_know_the_token_before_is_caught(biased: Lab, method: str, options: dict[str, Any]) -> None:
    """As if the bias were in the draws alone: the mean of the rows, which had different tokens before."""
    drafter: Any = biased.drafter(method, **options)
    propose = drafter.propose

    def without(context: Context, k: int) -> Draft:
        draft = propose(context, k)
        assert draft.probs is not None
        draft.probs = draft.probs.mean(0, keepdim=True).expand_as(draft.probs)
        return draft

    drafter.propose = without
    assert outcome_test(biased, drafter).p_value < 1e-9


CUT: list[tuple[str, dict[str, Any]]] = [
    ("eagle3", {"nodes": 0}),
    ("eagle3", {"nodes": 12, "top_k": 5}),
    ("p_eagle", {"acceptance": "block"}),
    ("p_eagle", {"nodes": 6, "top_k": 3}),
    ("p_eagle", {"passes": 2}),
]


@pytest.mark.parametrize(("method", "options"), CUT)
def test_a_cut_vocabulary_keeps_the_output(cut: Lab, method: str, options: dict[str, Any]) -> None:
    assert_keeps_the_greedy_output(cut, known_tokens(cut.drafter(method, **options)))
    test = outcome_test(cut, known_tokens(cut.drafter(method, **options)))
    assert test.p_value > FALSE_ALARM, test.worst


def test_a_cut_vocabulary_whose_places_pass_for_tokens_is_caught(cut: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draft probabilities put at the wrong tokens of the target's vocabulary."""
    right = sampling.to_full_vocabulary

    def shifted(probs: torch.Tensor, vocabulary: torch.Tensor | None, V: int) -> torch.Tensor:
        assert vocabulary is not None
        return right(probs, vocabulary.flip(0), V)

    for module in (verify, verify_tree):
        monkeypatch.setattr(module, "to_full_vocabulary", shifted)
    drafter = cut.drafter("eagle3")
    # The random head is nearly flat, where one token's probability is as good as another's.
    head, flat = drafter.head, drafter.head._logits
    monkeypatch.setattr(head, "_logits", lambda hidden: 4 * flat(hidden))
    assert outcome_test(cut, drafter).p_value < 1e-9


def lopsided(drafter: Any) -> Any:
    """Measured accuracies that make the layout skip a rank: second and third choice, never the first."""
    drafter.heads.accuracy = [[0.1, 0.6, 0.5], [0.0, 0.4, 0.3], [0.0, 0.3]]
    return drafter


@pytest.mark.parametrize(("method", "options"), VARIANTS)
def test_variants_keep_the_targets_distribution(lab: Lab, method: str, options: dict[str, Any]) -> None:
    drafter = lab.drafter(method, **options)
    test = outcome_test(lab, lopsided(drafter) if method in ("medusa", "hydra") else drafter)
    assert test.p_value > FALSE_ALARM, test.worst


@pytest.mark.parametrize("method", ["eagle2", "p_eagle"])
def test_a_tree_that_keeps_what_turned_out_likely_is_caught(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """EAGLE-2's own rule, applied to drawn children: worth by the drawn token's probability."""

    def by_confidence(self: Eagle2, context: Context, logits: torch.Tensor, width: int) -> Any:
        tokens, q = context.sampler.candidates(logits, width, [logits.shape[1]] * len(logits))
        assert q is not None
        return tokens, q.gather(-1, tokens).log(), q

    monkeypatch.setattr(Eagle2, "_children", by_confidence)
    assert outcome_test(lab, lab.drafter(method, nodes=3, top_k=4)).p_value < 1e-9


def test_a_layout_that_leaves_a_draw_out_is_caught(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Layout.of

    def by_rank(paths: Any, vocabulary: int) -> Layout:
        layout = right(paths, vocabulary)
        return Layout(layout.depth, layout.width, layout.parents, layout.slots, layout.slots, layout.sources)

    monkeypatch.setattr(Layout, "of", by_rank)
    # The random heads are nearly flat, where one draw is as good as another; sharper ones have a choice to leave out.
    flat = MedusaHeads.__call__
    monkeypatch.setattr(MedusaHeads, "__call__", lambda self, hidden, count: 4 * flat(self, hidden, count))
    sharp = lab.drafter("medusa", tree=(2, 1))  # a layout without gaps, by rank or by birth the same
    assert outcome_test(lab, sharp).p_value > FALSE_ALARM
    assert outcome_test(lab, lopsided(lab.drafter("medusa", nodes=5))).p_value < 1e-9
