"""Random streams and draws: streams go on without repeating, temperature reaches the distribution, draws are exact to
the last token.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specrig.decoding.sampling import BLOCK, Sampler, argmax, draw, softmax, top
from specrig.runtime import compiled


def test_a_stream_goes_on_as_its_seed_says_and_never_repeats() -> None:
    length = 4 * BLOCK + 7
    sampler = Sampler(1.0, [3, 4])
    drawn = torch.cat([sampler.uniforms([1, 1]) for _ in range(length)], 1)
    for row, seed in enumerate((3, 4)):
        stream = torch.Generator().manual_seed(seed)
        expected = torch.cat([torch.rand(BLOCK, generator=stream) for _ in range(5)])[:length]
        assert drawn[row].equal(expected)
        assert len(set(drawn[row].tolist())) == length
    assert drawn.min() >= 0 and drawn.max() < 1


def test_a_row_takes_as_many_as_it_counts_whatever_its_neighbours_take() -> None:
    """Rows that take different numbers at a time, across several refills, see their own stream without gap or overlap."""
    counts = [[round_ % 5, 3, 0, (7 * round_) % 11] for round_ in range(200)]
    together = Sampler(1.0, range(4))
    taken: list[list[float]] = [[], [], [], []]
    for row_counts in counts:
        found = together.uniforms(row_counts, 12)
        assert found.shape == (4, 12)
        for row, count in enumerate(row_counts):
            taken[row] += found[row, :count].tolist()
    for row in range(4):
        alone = Sampler(1.0, [row]).uniforms([1200])[0]
        assert taken[row] == alone[: len(taken[row])].tolist()


def test_a_refill_comes_before_the_last_block_is_overrun() -> None:
    sampler = Sampler(1.0, [0])
    for width in (BLOCK - 1, 1, 1, 2 * BLOCK, 3):
        assert sampler.uniforms([width]).shape == (1, width)


@pytest.mark.parametrize("temperature", [0.3, 0.6, 1.7])
def test_temperature_divides_the_logits(temperature: float) -> None:
    logits = torch.tensor([[2.0, -1.0, 0.5, 0.0]])
    weights = np.exp(logits.double().numpy() / temperature)
    expected = torch.from_numpy(weights / weights.sum()).float()
    sampler = Sampler(temperature, [0])
    torch.testing.assert_close(sampler.probs(logits), expected)
    assert not sampler.greedy
    _, probs = sampler.next(logits)
    assert probs is not None
    torch.testing.assert_close(probs, expected)
    _, drawn_from = sampler.candidates(logits.unsqueeze(1), 2, [1])
    assert drawn_from is not None
    torch.testing.assert_close(drawn_from[0], expected)


def test_half_precision_logits_are_drawn_from_in_single_precision() -> None:
    logits = torch.tensor([[8.0, 0.0, 0.0]], dtype=torch.bfloat16)
    assert Sampler(0.5, [0]).probs(logits).dtype == torch.float32
    assert Sampler(0.5, [0]).probs(logits)[0, 1].item() == pytest.approx(np.exp(-16) / (1 + 2 * np.exp(-16)), rel=1e-5)


def test_a_large_vocabulary_loses_no_token_at_its_far_end() -> None:
    """150 000 tokens behind one that is nearly certain: a running sum in single precision would not move at all from
    one to the next.
    """
    V = 150_000
    probs = np.full(V, 1e-9, dtype=np.float32)
    probs[0] = 1 - V * 1e-9
    exact = probs.astype(np.longdouble).cumsum()
    tokens = np.array([0, 1, 2, 777, 74_999, 149_000, V - 2, V - 1])
    before = np.concatenate(([0], exact))[tokens]
    middles = (before + probs[tokens] / 2) / exact[-1]
    found = draw(torch.from_numpy(probs).expand(len(tokens), V), torch.from_numpy(middles.astype(np.float64)))
    assert found.tolist() == tokens.tolist()


def test_what_is_drawn_need_not_sum_to_one() -> None:
    """A residual is drawn from as it is: no token's share may shrink or grow with the total."""
    probs = torch.tensor([[0.0, 3e-6, 1e-6, 0.0]]).expand(3, 4)
    assert draw(probs, torch.tensor([0.0, 0.7499, 0.7501])).tolist() == [1, 1, 2]


def test_siblings_are_different_tokens_drawn_one_after_another() -> None:
    """The pair's chance is q(a) q(b) / (1 - q(a)), in the order of drawing, at each of two positions with a q of its
    own.
    """
    rows, q = 10_000, torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4]])
    sampler = Sampler(1.0, range(rows))
    tokens, probs = sampler.candidates(q.log().expand(rows, 2, 4), 2, [2] * rows)
    assert probs is not None
    torch.testing.assert_close(probs[0], q)
    for place in range(2):
        first, second = tokens[:, place].unbind(-1)
        for a in range(4):
            for b in range(4):
                share = ((first == a) & (second == b)).float().mean().item()
                expected = 0.0 if a == b else float(q[place, a] * q[place, b] / (1 - q[place, a]))
                assert share == pytest.approx(expected, abs=4.5 * (expected * (1 - expected) / rows) ** 0.5)
    greedy, none = Sampler(0.0, [0]).candidates(q.log().unsqueeze(0), 3, [2])
    assert greedy.tolist() == [[[0, 1, 2], [3, 2, 1]]] and none is None


def test_siblings_take_uniforms_for_the_positions_that_count() -> None:
    """The first row draws for one of two positions; the others' tokens mean nothing and cost its stream nothing."""
    logits = torch.zeros(2, 2, 30)
    sampler = Sampler(1.0, [0, 1])
    tokens, _ = sampler.candidates(logits, 3, [1, 2])
    after = sampler.uniforms([1, 1])[:, 0].tolist()
    assert after == [Sampler(1.0, [0]).uniforms([4])[0, 3].item(), Sampler(1.0, [1]).uniforms([7])[0, 6].item()]
    alone, _ = Sampler(1.0, [0]).candidates(logits[:1], 3, [1])
    assert alone.shape == (1, 2, 3) and alone[0, 0].tolist() == tokens[0, 0].tolist()


def test_rows_that_are_not_active_draw_nothing() -> None:
    logits = torch.zeros(2, 50)
    both, first = Sampler(1.0, [0, 1]), Sampler(1.0, [0, 1])
    for _ in range(3):
        first.next(logits, [True, False])
        both.next(logits, [True, True])
    first.next(logits, [False, False])
    assert first.uniforms([1, 0])[0, 0] == both.uniforms([1, 0])[0, 0]
    assert first.uniforms([0, 1])[1, 0] == Sampler(1.0, [1]).uniforms([1])[0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_first_of_the_highest_is_chosen(dtype: torch.dtype) -> None:
    # Each maximum many times.
    logits = torch.randint(-9, 3, (3, 4, 500), generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = [[row.tolist().index(max(row.tolist())) for row in rows] for rows in logits]
    assert argmax(logits).tolist() == expected and argmax(logits).dtype == torch.int64
    assert argmax(logits[0, 0]).item() == expected[0][0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("V", [3, 16, 37, 4096, 49_155])
def test_compiled_code_draws_as_torch_does(monkeypatch: pytest.MonkeyPatch, V: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(V)
    logits = torch.randn(5, 2, V, generator=generator).mul(4).to(dtype)
    logits[0, 0, 1:] = -torch.inf  # one token is certain
    logits[1, :, ::2] = -torch.inf  # half of the vocabulary is no choice
    uniforms = torch.rand(5, 2, generator=generator)
    uniforms[2] = torch.tensor([0.0, 1 - 2**-24])
    mine = softmax(logits, 0.7)
    drawn = draw(mine, uniforms)
    none = draw(torch.zeros(2, V), uniforms[:2, 0])
    many = softmax(logits[:, 0].repeat(500, 1), 0.7) if V < 100 else mine[:, 0]
    monkeypatch.setattr(compiled, "supports", lambda *_: False)
    torch.testing.assert_close(mine, softmax(logits, 0.7), atol=1e-7, rtol=2e-5)
    torch.testing.assert_close(many[:5], mine[:, 0], atol=0, rtol=0)
    torch.testing.assert_close(many[-5:], mine[:, 0], atol=0, rtol=0)
    assert drawn.tolist() == draw(mine, uniforms).tolist()
    assert none.tolist() == draw(torch.zeros(2, V), uniforms[:2, 0]).tolist() == [V, V]


def test_compiled_code_never_draws_what_has_no_probability() -> None:
    probs = torch.rand(2_000, 1_000, generator=torch.Generator().manual_seed(0)).relu_()
    probs[torch.rand(probs.shape, generator=torch.Generator().manual_seed(1)) < 0.9] = 0.0
    for uniforms in (torch.zeros(2_000), torch.full((2_000,), 1 - 2**-24), torch.rand(2_000)):
        drawn = draw(probs, uniforms)
        assert (probs.gather(1, drawn.unsqueeze(1)) > 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("V", "k"), [(3, 3), (16, 5), (37, 8), (49_155, 8)])
def test_the_highest_come_first_and_of_equals_the_earlier(V: int, k: int, dtype: torch.dtype) -> None:
    logits = torch.randn(6, 2, V, generator=torch.Generator().manual_seed(V)).to(dtype)
    logits[0] = 1.0  # all equal
    logits[1, 0] = torch.arange(V)  # the last ones, rising
    logits[1, 1, k - 1 :] = -torch.inf  # fewer than k are possible
    found = top(logits, k)
    expected = (-logits.float()).numpy().argsort(-1, kind="stable")[..., :k]
    assert found.shape == (6, 2, k) and found.tolist() == expected.tolist()
    assert torch.equal(top(logits, 1)[..., 0], argmax(logits))
