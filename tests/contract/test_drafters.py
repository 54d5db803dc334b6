"""What every registered drafter owes, whatever it does inside."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from models import STORIES, Lab, shared_lab

from specrig.audit.distribution import exact_distribution, g_test
from specrig.decoding.drafters import registry
from specrig.decoding.loop import generate
from specrig.decoding.types import Generation
from specrig.heads import initialise
from specrig.models.pair import PairFiles

METHODS = sorted(registry())
PROMPTS = [
    *([5, 9, 11, 5, 9], [3], [7, 7, 2, 30, 12, 7, 7], [1, 2, 3, 4, 5, 6, 7, 8, 9]),
    *([39, 0], [8, 8, 8, 8], [21, 4, 21, 4, 21], [2, 35, 17]),
]
FALSE_ALARM = 1e-4
"""Chance that one correct method fails one distribution test; the seeds are fixed, so a pass stays a pass."""


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
LABS: dict[str, dict[str, Any]] = {
    "direct": {},
    "transformers": {"direct": False},
    "replayed": {"replayed": True},
    "cuda": {"device": "cuda"},
}


@pytest.fixture(scope="module", params=[pytest.param(name, marks=needs_gpu if name == "cuda" else ()) for name in LABS])
def lab(request: pytest.FixtureRequest) -> Lab:
    return shared_lab(vocab_size=40, **LABS[request.param])


@cache
def plain(lab: Lab, prompt: tuple[int, ...]) -> list[int]:
    """The 40 tokens that the target alone says at temperature 0."""
    drafter = lab.drafter("autoregressive")
    (found,) = generate(lab.target, drafter, [list(prompt)], k=0, max_new_tokens=40, temperature=0)
    return found.tokens


def check_accounting(found: Generation, tokens: int, temperature: float) -> None:
    """The accounting of one prompt's generation adds up to its `tokens`."""
    assert 1 + sum(entry.emitted for entry in found.rounds) == len(found.tokens) == tokens
    assert sum(calls for calls, _ in found.target_passes.values()) == len(found.rounds)
    for entry in found.rounds:
        assert 0 <= entry.accepted <= entry.depth <= entry.drafted
        assert entry.emitted == entry.accepted + (not entry.cut or entry.accepted < entry.emitted)
    assert not any(entry.cut for entry in found.rounds[:-1])
    assert 0 <= found.overlap <= found.reached + 1e-3
    if temperature == 0:
        assert found.overlap >= sum(entry.accepted for entry in found.rounds)


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=needs_gpu)])
def small(request: pytest.FixtureRequest) -> Lab:
    return Lab(vocab_size=8, noise=0.5, device=request.param)


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("method", METHODS)
def test_greedy_equals_autoregressive(lab: Lab, method: str, k: int) -> None:
    drafter = lab.drafter(method)
    for prompt in PROMPTS[:2]:
        (found,) = generate(lab.target, drafter, [prompt], k=k, max_new_tokens=40, temperature=0)
        assert found.tokens == plain(lab, tuple(prompt))
        check_accounting(found, 40, 0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", METHODS)
def test_a_batch_equals_its_rows_alone_and_their_accounting_adds_up(lab: Lab, method: str, temperature: float) -> None:
    """One drafter for all, as engines have it: nothing of a prompt may reach the next."""
    drafter, prompts, seeds = lab.drafter(method), PROMPTS[::2], range(11, 15)
    batch = generate(lab.target, drafter, prompts, k=4, max_new_tokens=17, temperature=temperature, seeds=seeds)
    for prompt, seed, together in zip(prompts, seeds, batch, strict=True):
        (alone,) = generate(
            lab.target, drafter, [prompt], k=4, max_new_tokens=17, temperature=temperature, seeds=[seed]
        )
        assert together.tokens == alone.tokens
        assert together.rounds == alone.rounds
        check_accounting(alone, 17, temperature)


@pytest.mark.parametrize("method", METHODS)
def test_sampled_distribution_is_the_targets(small: Lab, method: str) -> None:
    """At a temperature that is neither 0 nor 1, where nothing cancels out; `test_variants` samples at 1."""
    prompt, length, rows, batches, temperature = [3, 5, 3, 5], 3, 1000, 6, 0.6
    expected = exact_distribution(small.target, prompt, length, temperature=temperature)
    samples = []
    for batch in range(batches):
        seeds = range(batch * rows, (batch + 1) * rows)
        generations = generate(
            small.target,
            small.drafter(method),
            [prompt] * rows,
            k=3,
            max_new_tokens=length,
            temperature=temperature,
            seeds=seeds,
        )
        samples += [generation.tokens for generation in generations]
    test = g_test(samples, expected)
    assert test.p_value > FALSE_ALARM, test


@pytest.mark.parametrize("method", METHODS)
def test_stops_at_end_of_sequence(lab: Lab, method: str) -> None:
    free = plain(lab, tuple(PROMPTS[0]))
    eos = free[17]
    expected = free[: free.index(eos) + 1]
    (found,) = generate(lab.target, lab.drafter(method), [PROMPTS[0]], k=4, max_new_tokens=40, temperature=0, eos={eos})
    assert (found.tokens, found.stop) == (expected, "eos")


@pytest.mark.skipif(not STORIES.is_dir(), reason="needs ../shared/data/stories260K, which is not here")
@pytest.mark.parametrize("method", METHODS)
def test_stories_checkpoint_tells_its_authors_story(method: str, tmp_path: Path) -> None:
    from specrig.cell import Cell
    from specrig.engines.native import Native

    # Nobody trained heads for this checkpoint; random ones must tell the same story.
    heads = {name: tmp_path / name for name in registry()[method].needs if name != "draft"}
    with Native(PairFiles("stories", str(STORIES), str(STORIES), heads=heads)) as engine:
        for name, folder in heads.items():
            initialise(name, folder, engine.target.config, engine.target.config, seed=5)
        options = registry()[method].Options().model_dump()
        cell = Cell(engine="native", pair="stories", method=method, k=4, task="-", temperature=0, options=options)
        prompt = engine.encode("Once upon a time")
        (found,) = engine.generate(cell, [prompt], max_new_tokens=180, seeds=[0])
        text = engine.decode([*prompt, *found.tokens])
    expected = (STORIES / "expected_greedy.txt").read_text()
    assert text.strip().startswith(expected.strip()[: len(text.strip())])
    assert len(text) > 400
