"""A drafter cannot make the output wrong, only lose what it was made for: what it offers and how much is accepted, held
against references that compute everything anew (`references`), against fresh drafters, and against a draft that is the
target."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from models import Lab, perturbed, random_llama
from references import (
    Lookahead,
    Paths,
    Plain,
    TokenRecycling,
    ngram,
    of_rounds,
    paths_of,
    rounds,
    suffix,
    tree,
    watched,
)

from specrig.decoding.drafters import registry
from specrig.decoding.loop import generate
from specrig.decoding.sampling import Sampler
from specrig.decoding.types import Context, Draft, Drafter, Generation
from specrig.runtime.device import padded
from specrig.runtime.transformers_model import cached_model

V, NOISE, K, LENGTH = 40, 0.05, 4, 32
PROMPTS = [[5, 9, 11, 5, 9], [3, 7], [7, 7, 2, 30, 12, 7, 7]]


@pytest.fixture(scope="module")
def lab() -> Lab:
    return Lab(vocab_size=V, noise=NOISE)


@pytest.fixture(scope="module")
def twins() -> Lab:
    return Lab(vocab_size=V, noise=0.0)


@pytest.fixture(scope="module")
def plain() -> tuple[Plain, Plain]:
    """Target and draft of `lab`, as transformers runs them."""
    source = random_llama(V, layers=3)
    return Plain(source), Plain(perturbed(source, NOISE))


def run(
    lab: Any, drafter: Drafter, prompts: list[list[int]] = PROMPTS, temperature: float = 0.0, k: int = K
) -> list[Generation]:
    return generate(lab.target, drafter, prompts, k=k, max_new_tokens=LENGTH, temperature=temperature)


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
@pytest.mark.parametrize(
    ("method", "options", "k"),
    [
        ("draft_model", {}, 4),
        ("draft_model", {"acceptance": "block"}, 4),
        ("adaptive_k", {}, 8),
        ("tree", {}, 4),
        ("tree", {"branching": (2, 2)}, 3),
        ("medusa_draft", {}, 1),
    ],
)
def test_a_draft_that_is_the_target_is_always_accepted(
    twins: Lab, method: str, options: dict[str, Any], k: int, temperature: float
) -> None:
    """Above temperature 0 as well: both are cooled alike, and p/q is 1."""
    for found in run(twins, twins.drafter(method, **options), temperature=temperature, k=k):
        whole = [entry for entry in found.rounds if not entry.cut]
        assert [entry.accepted for entry in whole] == [entry.depth for entry in whole]
        expected = [min(4 + round_, k) for round_ in range(len(whole))] if method == "adaptive_k" else [k] * len(whole)
        assert [entry.depth for entry in whole] == expected
        assert found.overlap == pytest.approx(found.reached, rel=1e-4)


@pytest.mark.parametrize("branching", [None, (2, 2, 1, 1), (3,)])
def test_a_noisy_drafts_rounds_are_those_of_a_plain_loop(
    lab: Lab, plain: tuple[Plain, Plain], branching: tuple[int, ...] | None
) -> None:
    """Chain and tree at temperature 0: the very tokens offered, and the acceptance they reach."""
    target, draft = plain
    drafter = lab.drafter("tree", branching=branching) if branching else lab.drafter("draft_model")
    seen = watched(drafter)
    counts: list[int] = []
    for prompt in PROMPTS:
        seen.clear()
        (found,) = run(lab, drafter, [prompt])
        expected = rounds(target, prompt, LENGTH, lambda text: tree(draft, text, branching or (), K))
        assert [paths_of(offered, 0) for _, offered in seen] == [paths for paths, _ in expected]
        assert of_rounds(found) == [count for _, count in expected][: len(of_rounds(found))]
        counts += of_rounds(found)
    assert 0.5 < sum(counts) / len(counts) < 3.5, "a draft that is right now and then"


def test_adaptive_k_offers_the_drafts_chain_as_long_as_its_rule_says(lab: Lab, plain: tuple[Plain, Plain]) -> None:
    target, draft = plain
    history: list[tuple[int, int]] = []
    own = 4

    def propose(text: list[int]) -> Paths:
        return tree(draft, text, (), own)

    def observe(_: list[int], taken: list[int]) -> None:
        nonlocal own
        history.append((own, len(taken)))
        offered, accepted = (sum(part) for part in zip(*history[-10:], strict=True))
        own = min(own + 1, 6) if accepted / offered > 0.8 else max(own - 1, 2) if accepted / offered < 0.5 else own

    for prompt in PROMPTS:
        history.clear()
        own = 4
        (found,) = run(lab, lab.drafter("adaptive_k"), [prompt], k=6)
        expected = rounds(target, prompt, LENGTH, propose, observe)
        assert of_rounds(found) == [count for _, count in expected][: len(of_rounds(found))]
        assert [entry.drafted for entry in found.rounds] == [len(paths) for paths, _ in expected]


@pytest.mark.parametrize("acceptance", ["exact", "block"])
def test_alpha_is_the_overlap_of_the_distributions_where_rounds_went(
    lab: Lab, plain: tuple[Plain, Plain], acceptance: str
) -> None:
    """At temperature 0.6 Σ min(p, q) over the reached positions, computed anew from the text and the rounds alone."""
    target, draft = plain
    for found, prompt in zip(
        run(lab, lab.drafter("draft_model", acceptance=acceptance), temperature=0.6), PROMPTS, strict=True
    ):
        *whole, last = found.rounds
        at, overlap, reached = len(prompt) + 1, 0.0, 0
        text = prompt + found.tokens
        for entry in whole:
            for place in range(at, at + min(entry.accepted + 1, K)):
                p, q = (model.probs(text[:place], 0.6) for model in (target, draft))
                overlap += float(torch.minimum(p, q).sum())
                reached += 1
            at += entry.emitted
        # The last round may have gone further than the text that was kept.
        assert last.accepted <= found.reached - reached <= K
        assert overlap <= found.overlap + 1e-3 <= overlap + found.reached - reached + 2e-3
        if found.reached - reached == 1:
            p, q = (model.probs(text[:at], 0.6) for model in (target, draft))
            overlap += float(torch.minimum(p, q).sum())
            assert found.overlap == pytest.approx(overlap, abs=1e-3)


BY_TEXT: list[tuple[str, dict[str, Any]]] = [
    ("draft_model", {}),
    ("tree", {}),
    ("eagle", {}),
    ("eagle2", {"nodes": 8, "top_k": 3}),
    ("eagle3", {}),
    ("eagle3", {"nodes": 8, "top_k": 3}),
    ("p_eagle", {}),
    ("dflash", {}),
    ("dspark", {"confidence_threshold": 0.4}),
    ("medusa", {}),
    ("medusa_draft", {"tree": (2, 1)}),
    ("ngram", {}),
    ("suffix", {}),
    ("suffix", {"tree": True, "max_spec_factor": 2.0}),
    ("suffix_hybrid", {"least": 1.0}),
    ("suffix_p_eagle", {"least": 1.0}),
    ("rest", {"nodes": 8}),
    ("suffix_blend", {}),
    ("hydra", {"tree": (3, 2)}),
    ("layer_skip", {"skip": (1,)}),
    ("pard", {}),
]


@pytest.mark.parametrize("temperature", [0.0, 0.6])
@pytest.mark.parametrize(("method", "options"), BY_TEXT)
def test_what_a_drafter_offers_depends_on_the_text_alone(
    lab: Lab, method: str, options: dict[str, Any], temperature: float
) -> None:
    """Caches, features and indexes that were carried through many rounds offer what a fresh drafter does that is given
    the text. What was carried wrong stays wrong, so that every fourth round and the last show it.
    """
    drafter = lab.drafter(method, **options)
    seen = watched(drafter)
    run(lab, drafter, temperature=temperature)
    assert len(seen) > 5
    for text, draft in [*seen[1:-1:4], seen[-1]]:
        fresh = anew(lab, lab.drafter(method, **options), text)
        for row, done in enumerate(text.done):
            if done:
                continue
            if draft.probs is None:
                assert paths_of(draft, row) == paths_of(fresh, row)
            else:  # what comes below the root depends on what was drawn
                assert fresh.probs is not None
                torch.testing.assert_close(draft.probs[row, 0], fresh.probs[row, 0], atol=1e-4, rtol=1e-3)


def anew(lab: Lab, drafter: Drafter, text: Context) -> Draft:
    rows, target = text.tokens, lab.target
    target.start(len(rows), 200)
    target.aux_layers, target.aux_hidden_states = drafter.aux_layers, None
    _, hidden = target.forward(padded([row[:-1] for row in rows], max(map(len, rows)) - 1, target.device))
    context = Context(rows, text.done, Sampler(text.sampler.temperature, range(len(rows))), text.depths.copy())
    drafter.begin(context, hidden, target.aux_hidden_states)
    return drafter.propose(context, K)


@pytest.fixture(scope="module", params=[8, 12])
def repetitive(request: pytest.FixtureRequest) -> Any:
    """A model whose layers say little beside the last token, so that its text comes back to where it was, though not
    for ever.
    """
    model = random_llama(request.param, layers=3, seed=1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight *= 0.4 if "o_proj" in name or "down_proj" in name else 1.0
    return model


@pytest.mark.parametrize("method", ["ngram", "suffix", "lookahead", "token_recycling"])
def test_drafts_without_a_model_are_those_of_a_naive_implementation(repetitive: Any, method: str) -> None:
    """Round by round on what the target says: what is offered, and what of it is accepted."""
    k, target = 3, Plain(repetitive)
    options = {"lookahead": {"window": 4, "guesses": 3}, "token_recycling": {"top_k": 3, "nodes": 9}}.get(method, {})
    resources: Any = SimpleNamespace(target=cached_model(repetitive))
    drafter = registry()[method](registry()[method].Options.model_validate(options), resources)
    seen = watched(drafter)
    counts: list[int] = []
    for prompt in ([5, 3, 1, 5, 3, 6, 5, 3], [2, 7]):
        seen.clear()
        (found,) = run(resources, drafter, [prompt], k=k)
        naive = naively(method, target, [*prompt, *target.best(prompt)], k)
        expected = rounds(target, prompt, LENGTH, *naive)
        assert [paths_of(offered, 0) for _, offered in seen] == [paths for paths, _ in expected]
        assert [entry.depth for entry in found.rounds] == [max(map(len, paths), default=0) for paths, _ in expected]
        assert of_rounds(found) == [count for _, count in expected][: len(of_rounds(found))]
        counts += of_rounds(found)
    assert sum(counts) / len(counts) > 0.4, "the text repeats itself enough to be drafted"


def naively(method: str, target: Plain, text: list[int], k: int) -> tuple[Any, ...]:
    """How the reference proposes and learns."""
    if method == "lookahead":
        window = Lookahead(target, text, k, 4, 3)
        return window.propose, window.observe
    if method == "token_recycling":
        matrix = TokenRecycling(target, text, k, 3, 9)
        return matrix.propose, matrix.observe
    return (lambda text: (ngram if method == "ngram" else suffix)(text, k),)


@pytest.mark.parametrize("options", [{}, {"tree": (1,)}, {"tree": (4, 2)}])
def test_typical_acceptance_at_temperature_0_is_greedy_acceptance(lab: Lab, options: dict[str, Any]) -> None:
    """However lax: the output is plain decoding's and the rounds are those of exact acceptance."""
    lax = lab.drafter("medusa", acceptance="typical", posterior_threshold=1e-9, posterior_alpha=1e-9, **options)
    plain, exact, typical = (
        run(lab, drafter) for drafter in (lab.drafter("autoregressive"), lab.drafter("medusa", **options), lax)
    )
    assert [row.tokens for row in typical] == [row.tokens for row in plain]
    assert [row.rounds for row in typical] == [row.rounds for row in exact]
