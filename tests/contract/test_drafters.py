"""What every registered drafter owes, whatever it does inside."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from models import STORIES, Lab, shared_lab
from sampled import FALSE_ALARM, outcome_test

from specrig.decoding.drafters import registry
from specrig.decoding.loop import generate
from specrig.decoding.types import Generation
from specrig.heads import initialise
from specrig.models.pair import PairFiles

METHODS = sorted(registry())
PROMPTS = [[5, 9, 11, 5, 9], [3], [7, 7, 2, 30, 12, 7, 7], [39, 0]]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


CUDA = pytest.param({"device": "cuda"}, marks=needs_gpu, id="cuda")


@pytest.fixture(scope="module", params=[pytest.param({}, id="cpu"), CUDA])
def lab(request: pytest.FixtureRequest) -> Lab:
    return shared_lab(vocab_size=40, **request.param)


@pytest.fixture(
    scope="module", params=[pytest.param({}, id="direct"), pytest.param({"direct": False}, id="transformers"), CUDA]
)
def any_lab(request: pytest.FixtureRequest) -> Lab:
    """One whose passes are ours, or those of transformers' model. `test_replay` has passes that were recorded."""
    return shared_lab(vocab_size=40, **request.param)


@cache
def plain(lab: Lab, prompt: tuple[int, ...]) -> list[int]:
    """The 24 tokens that the target alone says at temperature 0."""
    drafter = lab.drafter("autoregressive")
    (found,) = generate(lab.target, drafter, [list(prompt)], k=0, max_new_tokens=24, temperature=0)
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


@pytest.mark.parametrize("method", METHODS)
def test_greedy_equals_autoregressive(any_lab: Lab, method: str) -> None:
    """Wide drafts in a batch, and chains of one."""
    drafter = any_lab.drafter(method)
    for prompts, k in ((PROMPTS[1:3], 4), (PROMPTS[:1], 1)):
        found = generate(any_lab.target, drafter, prompts, k=k, max_new_tokens=24, temperature=0)
        for prompt, generation in zip(prompts, found, strict=True):
            assert generation.tokens == plain(any_lab, tuple(prompt))
            if len(prompts) == 1:
                check_accounting(generation, 24, 0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", METHODS)
def test_a_batch_equals_its_rows_alone_and_their_accounting_adds_up(lab: Lab, method: str, temperature: float) -> None:
    """One drafter for all, as engines have it: nothing of a prompt may reach the next."""
    drafter, prompts, seeds = lab.drafter(method), PROMPTS[1:], range(11, 14)
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
    test = outcome_test(small, small.drafter(method))
    assert test.p_value > FALSE_ALARM, test.worst


@pytest.mark.parametrize("method", METHODS)
def test_stops_at_end_of_sequence(lab: Lab, method: str) -> None:
    free = plain(lab, tuple(PROMPTS[0]))
    eos = free[17]
    expected = free[: free.index(eos) + 1]
    (found,) = generate(lab.target, lab.drafter(method), PROMPTS[:1], k=4, max_new_tokens=24, temperature=0, eos={eos})
    assert (found.tokens, found.stop) == (expected, "eos")


@pytest.mark.skipif(not STORIES.is_dir(), reason="needs ../shared/data/stories260K, which is not here")
def test_stories_checkpoint_tells_its_authors_story(tmp_path: Path) -> None:
    """Real weights, whatever drafts: nothing, a draft model's tree, an index, and a head that nobody trained for it."""
    from specrig.cell import Cell
    from specrig.engines.native import Native

    expected = (STORIES / "expected_greedy.txt").read_text().strip()
    with Native(PairFiles("stories", str(STORIES), str(STORIES), heads={"eagle3": tmp_path / "eagle3"})) as engine:
        initialise("eagle3", tmp_path / "eagle3", engine.target.config, engine.target.config, seed=5)
        prompt = engine.encode("Once upon a time")
        for method in ("autoregressive", "tree", "suffix", "eagle3"):
            options = registry()[method].Options().model_dump()
            cell = Cell(engine="native", pair="stories", method=method, k=4, task="-", temperature=0, options=options)
            (found,) = engine.generate(cell, [prompt], max_new_tokens=180, seeds=[0])
            text = engine.decode([*prompt, *found.tokens]).strip()
            assert len(text) > 400 and expected.startswith(text), method
