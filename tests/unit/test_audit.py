"""The audit passes right methods and catches wrong ones: flawed verifiers planted into the real loop, edited records."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import specrig.decoding.loop as loop
from specrig.audit.distribution import g_test
from specrig.audit.exact import exact_test
from specrig.audit.identity import first_divergence
from specrig.audit.positions import transform, uniformity
from specrig.audit.run import FALSE_ALARM, errors_seen
from specrig.cell import Cell
from specrig.decoding.sampling import Sampler, draw
from specrig.decoding.types import Draft, Verdict
from specrig.decoding.verify import verify
from specrig.measurement.records import Record, Rounds, Run

SAMPLES = 6144


def cell(method: str, temperature: float = 1.0, **options: object) -> Cell:
    return Cell(
        engine="native", pair="laboratory", method=method, k=2, task="exact", temperature=temperature, options=dict(options)
    )


@pytest.fixture(scope="session")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("laboratory")


@pytest.mark.parametrize("method", ["autoregressive", "draft_model", "ngram"])
def test_right_methods_pass(laboratory: Path, method: str) -> None:
    assert exact_test("native", cell(method), laboratory, SAMPLES).p_value > FALSE_ALARM


def test_a_finding_says_what_a_test_of_its_size_would_have_seen_and_no_distance_that_is_mere_chance() -> None:
    exact = {(token,): 0.1 for token in range(10)}
    right = g_test([(number % 10,) for number in range(5000)], exact)
    shown = float(re.search(r"one (0\.\d+) off in total variation would fail in 99 %", errors_seen(right))[1])
    # What it promises holds: a sampler that far off fails, whichever way the difference is spread.
    tilted = np.array([0.1 + shown / 5] * 5 + [0.1 - shown / 5] * 5)
    drawn = np.random.default_rng(0).choice(10, size=(200, 5000), p=tilted)
    failed = sum(g_test([(int(token),) for token in sample], exact).p_value <= FALSE_ALARM for sample in drawn)
    assert failed >= 190
    wrong = g_test([(0,)] * 5000, exact)
    assert "differ from the exact ones by 0.900 in total variation" in errors_seen(wrong)


def _ignoring_q(draft: Draft, logits: torch.Tensor, sampler: Sampler, **_: object) -> Verdict:
    """Accepts where p(x) > u (the draft's probability left out)."""
    ones = None if draft.probs is None else torch.ones_like(draft.probs)
    return _flawed(draft, logits, sampler, q_for_acceptance=ones, resample=True)


def _no_residual(draft: Draft, logits: torch.Tensor, sampler: Sampler, **_: object) -> Verdict:
    """Rejects rightly, then draws from p instead of norm(max(0, p - q))."""
    return _flawed(draft, logits, sampler, q_for_acceptance=draft.probs, resample=False)


def _argmax_correction(draft: Draft, logits: torch.Tensor, sampler: Sampler, **_: object) -> Verdict:
    """A `greedy` that still compares with a random u."""
    verdict = _flawed(draft, logits, sampler, q_for_acceptance=draft.probs, resample=False)
    for row, tokens in enumerate(verdict.tokens):
        tokens[-1] = int(logits[row, len(tokens) - 1].argmax())
    return verdict


def _flawed(
    draft: Draft, logits: torch.Tensor, sampler: Sampler, q_for_acceptance: torch.Tensor | None, resample: bool
) -> Verdict:
    B, n = draft.tokens.shape
    p = sampler.probs(logits)
    if n == 0 or draft.probs is None or q_for_acceptance is None:
        return verify(draft, logits, sampler)
    index = draft.tokens.unsqueeze(-1)
    uniforms = sampler.uniforms([n + 1] * B)
    kept = uniforms[:, :n] * q_for_acceptance.gather(-1, index)[..., 0] < p[:, :n].gather(-1, index)[..., 0]
    count = kept.long().cumprod(-1).sum(-1)
    rows = torch.arange(B)
    at = p[rows, count]
    if resample:
        rest = (at - draft.probs[rows, count.clamp(max=n - 1)]).clamp(min=0)
        at = torch.where((count < n).unsqueeze(-1), rest, at)
    extra = draw(at, uniforms[:, n])
    tokens = [[*draft.tokens[row, : count[row]].tolist(), int(extra[row])] for row in range(B)]
    return Verdict(tokens, [list(range(int(c))) for c in count], [0.0] * B, [1] * B)


@pytest.mark.parametrize("flaw", [_ignoring_q, _no_residual, _argmax_correction])
def test_flawed_verifiers_in_the_loop_are_caught(laboratory: Path, monkeypatch: pytest.MonkeyPatch, flaw: object) -> None:
    monkeypatch.setattr(loop, "verify", flaw)
    test = exact_test("native", cell("draft_model"), laboratory, SAMPLES)
    assert test.p_value < FALSE_ALARM
    assert test.total_variation > 0.05


def test_transformed_draws_are_uniform_and_shifted_ones_are_not() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(50, 0.3), 4000)
    q = p**1.2 / (p**1.2).sum(1, keepdims=True)  # a sampler at temperature 0.83 that claims 1

    def draws(weights: np.ndarray) -> list[int]:
        return [int(rng.choice(50, p=row)) for row in weights]

    assert uniformity(transform(p, draws(p), rng))[0] > FALSE_ALARM
    assert uniformity(transform(p, draws(q), rng))[0] < FALSE_ALARM


def test_an_impossible_token_fails_at_once() -> None:
    p = np.array([[0.5, 0.5, 0.0]] * 30)
    assert uniformity(transform(p, [0] * 29 + [2], np.random.default_rng(0)))[0] == 0


def test_equal_probabilities_share_their_stretch() -> None:
    p = np.full((4000, 8), 1 / 8)
    values = transform(p, [3] * 4000, np.random.default_rng(0))  # whatever the id, the whole line is one tie
    assert uniformity(values)[0] > FALSE_ALARM


def run(tokens: list[int]) -> Run:
    return Run(tokens=tokens, stop="length", rounds=Rounds(), ttft_s=0.1, prefill_s=0.1, decode_s=1.0)


def record(found: list[int], expected: list[int]) -> Record:
    return Record(
        cell=cell("ngram", 0.0), digest="-", prompt_id="p", group=0, seed=0, prompt_tokens=2, text="", baseline_text="",
        run=run(found), baseline=run(expected),
    )  # fmt: skip


def test_the_first_divergence_is_found_with_both_logits() -> None:
    asked: list[list[int]] = []

    def logits(tokens: object) -> list[float]:
        asked.append(list(tokens))  # type: ignore[call-overload]
        return [0.0, 1.0, 2.5, 2.4999]

    divergence = first_divergence(record([5, 3, 9], [5, 2, 9]), [7, 8], logits)
    assert divergence is not None
    assert asked == [[7, 8, 5]]
    assert (divergence.position, divergence.expected, divergence.found) == (1, 2, 3)
    assert divergence.gap == pytest.approx(1e-4)


def test_a_truncated_output_is_no_match() -> None:
    """A comparison that zips two outputs, and so ends with the shorter one, would pass this one."""
    divergence = first_divergence(record([5, 3], [5, 3, 9]), [7], lambda _: [0.0] * 10)
    assert divergence is not None
    assert divergence.gap == float("inf")
    assert first_divergence(record([5, 3], [5, 3]), [7], lambda _: [0.0] * 10) is None
