"""The cost model against a simulation of the accept/reject process, and the roofline against arithmetic by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specrig.analysis import cost_model
from specrig.analysis.cost_model import (
    best_k,
    expected_tokens,
    papers,
    required_alpha,
    round_cost,
    walltime_improvement,
)
from specrig.analysis.statistics import prompts_needed
from specrig.models.facts.devices import devices, find_device

ALPHA = st.floats(0, 1, allow_nan=False)
RARE = 1e-3
"""What 20,000 rounds may miss near α = 0 and 1, where their own spread says nothing."""
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def simulated(alpha: float, k: int, rounds: int, seed: int = 0) -> np.ndarray:
    """Tokens emitted a round: a draft is accepted while a coin falls below α, then the target adds one token."""
    accepted = np.random.default_rng(seed).random((rounds, k)) < alpha
    return 1 + np.cumprod(accepted, axis=1).sum(axis=1)


@settings(max_examples=40)
@given(ALPHA, st.integers(0, 8))
def test_simulation_agrees_with_the_expected_tokens(alpha: float, k: int) -> None:
    tokens = simulated(alpha, k, 20_000)
    error = 5 * tokens.std() / np.sqrt(tokens.size) + RARE
    assert abs(tokens.mean() - expected_tokens(alpha, k)) <= error


@settings(max_examples=40)
@given(ALPHA, st.integers(1, 8), st.floats(0, 0.5), st.floats(1, 3))
def test_simulation_agrees_with_theorem_3_8(alpha: float, k: int, c: float, v: float) -> None:
    tokens = simulated(alpha, k, 20_000)
    speed = tokens.mean() / (k * c + v)  # tokens a target pass of time; autoregressive decoding makes 1
    error = (5 * tokens.std() / np.sqrt(tokens.size) + RARE) / (k * c + v)
    assert abs(speed - walltime_improvement(alpha, k, c, v)) <= error


@given(st.integers(1, 8), st.floats(0.01, 1))
def test_limits(k: int, c: float) -> None:
    assert expected_tokens(0.0, k) == 1 and expected_tokens(1.0, k) == k + 1
    assert walltime_improvement(0.0, k, c) == pytest.approx(1 / (k * c + 1))
    assert walltime_improvement(1.0, k, 1.0) == pytest.approx(1.0)  # a draft that is the target gains nothing
    assert walltime_improvement(1.0, k, 0.0) == k + 1


def test_closed_form_of_equation_1() -> None:
    assert expected_tokens(0.72, 5) == pytest.approx((1 - 0.72**6) / (1 - 0.72))


@given(ALPHA, st.integers(1, 8), st.floats(0, 0.5))
def test_required_alpha_inverts_the_theorem(alpha: float, k: int, c: float) -> None:
    found = required_alpha(walltime_improvement(alpha, k, c), k, c)
    assert found is not None
    assert walltime_improvement(found, k, c) == pytest.approx(walltime_improvement(alpha, k, c), abs=1e-6)
    assert required_alpha((k + 1) / (k * c + 1) + 0.01, k, c) is None


@given(st.floats(0.05, 0.95), st.floats(0.01, 0.5))
def test_best_k_is_best(alpha: float, c: float) -> None:
    best = best_k(alpha, c, range(1, 17))
    assert all(walltime_improvement(alpha, best, c) >= walltime_improvement(alpha, k, c) for k in range(1, 17))


def test_passes_read_the_weights_until_arithmetic_takes_longer() -> None:
    size, device = cost_model.size_of(LLAMA), find_device("NVIDIA GeForce RTX 4090")
    assert size is not None and device is not None
    read = (8_030_261_248 - 128_256 * 4096) * 2  # the input table is looked up, not read
    assert cost_model.pass_seconds(size, device) == pytest.approx(read / 1008e9)
    assert cost_model.verify_cost(size, device, tokens=6) == 1
    assert cost_model.verify_cost(size, device, tokens=2000) == pytest.approx(
        2000 * 2 * (read / 2) / 165.2e12 / (read / 1008e9)
    )
    assert cost_model.pass_seconds(size, device, context=10_000) > cost_model.pass_seconds(size, device)
    assert cost_model.pass_seconds(size, device, "awq") < 0.4 * cost_model.pass_seconds(size, device)


def test_a_cache_is_as_wide_as_the_activations() -> None:
    size = cost_model.size_of(LLAMA)
    assert size is not None
    caches = {
        precision: cost_model.pass_bytes(size, precision, context=4096) - cost_model.pass_bytes(size, precision)
        for precision in ("float32", "bfloat16", "awq")
    }
    assert caches["bfloat16"] == pytest.approx(32 * 2 * 8 * 128 * 2 * 4096)
    assert caches["float32"] == pytest.approx(2 * caches["bfloat16"]) and caches["awq"] == pytest.approx(
        caches["bfloat16"]
    )


def test_more_tokens_read_more_experts() -> None:
    size = cost_model.size_of("mistralai/Mixtral-8x7B-Instruct-v0.1")
    assert size is not None
    assert size.read(1) == pytest.approx(size.active - size.embedding)
    assert size.read(1) < size.read(5) < size.read(1000) <= size.parameters - size.embedding + 1
    assert cost_model.verify_cost(size, None, tokens=5) > 1.5


def test_every_device_has_a_source_and_is_found_by_its_own_name() -> None:
    for name, device in devices().items():
        assert device.source and find_device(name) == device
    assert find_device("A100-80G").device == "A100 80GB" and find_device("NVIDIA A100-SXM4-40GB").device == "A100 40GB"
    assert find_device("16x TPU v4").memory_gb == 16 * devices()["TPU v4"].memory_gb
    assert find_device("NVIDIA L40S").device == "L40S" and find_device("NVIDIA L4").device == "L4"
    assert find_device("abacus") is None


def test_round_costs() -> None:
    target, draft = cost_model.size_of(LLAMA), cost_model.size_of("meta-llama/Llama-3.2-1B-Instruct")
    low, high = round_cost("draft_model", 5, target, [draft], None, "float16", 1)
    assert low == high == pytest.approx(1 + 5 * 1.2358 / 8.0303, rel=1e-3)
    assert round_cost("ngram", 4, target, [], None, "float16", 1) == (1.0, 1.0)
    assert round_cost("draft_model", 5, target, [], None, "float16", 1) is None
    # One decoder layer and the output head, five times.
    layer = (8_030_261_248 - 2 * 128_256 * 4096) / 32
    eagle = 5 * (layer + 2 * 4096**2 + 128_256 * 4096) / 8_030_261_248 + 1
    assert round_cost("eagle", None, target, [], None, "float16", 1)[0] == pytest.approx(eagle)
    assert set(papers()) >= {"ngram", "medusa", "eagle", "eagle2", "lookahead"}


def test_prompts_needed_keeps_its_promise() -> None:
    random = np.random.default_rng(0)
    spread = 0.12
    n = int(prompts_needed(random.normal(0, spread, 5000)))
    assert n == pytest.approx((2.8016 * spread / np.log(1.05)) ** 2, rel=0.06)
    trials = random.normal(np.log(1.05), spread, (4000, n))
    found = np.abs(trials.mean(axis=1)) > 1.96 * spread / np.sqrt(n)
    assert found.mean() == pytest.approx(0.8, abs=0.03)
    assert np.isnan(prompts_needed([0.3])) and prompts_needed([0.1, 0.1]) == 2
