"""The verifier against exact distributions, and the flawed verifiers that circulate, which the same test must catch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from specrig.audit.distribution import ChiSquared, g_test
from specrig.decoding import verify_tree
from specrig.decoding.sampling import Sampler, draw
from specrig.decoding.types import Draft, Verdict
from specrig.decoding.verify import verify
from specrig.decoding.verify_tree import typical_acceptance

V, K, ROWS = 5, 3, 20_000
TREES = 5_000
"""Rows of trees: a processor walks them one by one."""


def world(seed: int = 0) -> tuple[Tensor, Tensor]:
    """A target p and a draft q that know only the previous token: `[V + 1, V]`, row V for the start."""
    torch.manual_seed(seed)
    p = torch.softmax(torch.randn(V + 1, V) * 1.2, -1)
    q = torch.softmax(torch.log(p) + torch.randn(V + 1, V) * 0.8, -1)
    return p, q


def drafted_chain(q: Tensor, sampler: Sampler) -> Draft:
    previous = torch.full((ROWS,), V)
    tokens, probs = [], []
    for _ in range(K):
        probs.append(q[previous])
        previous = draw(probs[-1], sampler.uniforms([1] * ROWS)[:, 0])
        tokens.append(previous)
    return Draft(torch.stack(tokens, 1), probs=torch.stack(probs, 1))


def target_logits(p: Tensor, tokens: Tensor) -> Tensor:
    root = torch.full((len(tokens), 1), V)
    return p[torch.cat((root, tokens), 1)].log()


def sampler_of(rows: int) -> Sampler:
    return Sampler.with_uniforms([1.0] * rows, torch.rand(rows, 16, generator=torch.Generator().manual_seed(7)))


def two_tokens_test(rows: list[list[int]], p: Tensor) -> ChiSquared:
    """The first two tokens of each row, the second drawn from p where a row has one, against p's own distribution."""
    first = torch.tensor([row[0] for row in rows])
    drawn = torch.multinomial(p[first], 1, generator=torch.Generator().manual_seed(99))[:, 0].tolist()
    samples = [(row[0], row[1] if len(row) > 1 else second) for row, second in zip(rows, drawn, strict=True)]
    return g_test(samples, {(a, b): float(p[V, a] * p[a, b]) for a in range(V) for b in range(V)})


def outcome_test(verifier: Callable[[Draft, Tensor, Tensor, Tensor, Sampler], list[list[int]]]) -> ChiSquared:
    """What `verifier` yields against p's own distribution."""
    p, q = world()
    sampler = sampler_of(ROWS)
    draft = drafted_chain(q, sampler)
    return two_tokens_test(verifier(draft, target_logits(p, draft.tokens), p, q, sampler), p)


def right(draft: Draft, logits: Tensor, p: Tensor, q: Tensor, sampler: Sampler) -> list[list[int]]:
    return verify(draft, logits, sampler).tokens


def without_draft_probability(draft: Draft, logits: Tensor, p: Tensor, q: Tensor, sampler: Sampler) -> list[list[int]]:
    """Accepts where p(x) > u, as if the draft's probability did not matter."""
    return _accept_then(draft, logits, sampler, lambda p_x, _q_x, u: u < p_x, resample="residual")


def without_resampling(draft: Draft, logits: Tensor, p: Tensor, q: Tensor, sampler: Sampler) -> list[list[int]]:
    """On rejection draws from p itself instead of norm(max(0, p - q))."""
    return _accept_then(draft, logits, sampler, lambda p_x, q_x, u: u * q_x < p_x, resample="target")


def random_greedy(draft: Draft, logits: Tensor, p: Tensor, q: Tensor, sampler: Sampler) -> list[list[int]]:
    """A `greedy` rule with a random u: accepts the draft by a coin, corrects with the argmax."""
    return _accept_then(draft, logits, sampler, lambda p_x, q_x, u: u * q_x < p_x, resample="argmax")


def one_position(draft: Draft, logits: Tensor, p: Tensor, q: Tensor, sampler: Sampler) -> list[list[int]]:
    """Draws all k tokens from the first position's q, but verifies as if each had been drawn after the one before."""
    first = q[torch.full((ROWS,), V)]
    tokens = torch.stack([draw(first, sampler.uniforms([1] * ROWS)[:, 0]) for _ in range(K)], 1)
    previous = torch.cat((torch.full((ROWS, 1), V), tokens[:, :-1]), 1)
    return verify(Draft(tokens, probs=q[previous]), target_logits(p, tokens), sampler).tokens


def _accept_then(
    draft: Draft, logits: Tensor, sampler: Sampler, accepts: Callable[..., Tensor], resample: str
) -> list[list[int]]:
    p = torch.softmax(logits, -1)
    index = draft.tokens.unsqueeze(-1)
    assert draft.probs is not None
    kept = accepts(
        p[:, :K].gather(-1, index)[..., 0], draft.probs.gather(-1, index)[..., 0], sampler.uniforms([K] * ROWS)
    )
    count = kept.long().cumprod(-1).sum(-1)
    rows = torch.arange(ROWS)
    at = p[rows, count]
    if resample == "residual":
        rest = (at - draft.probs[rows, count.clamp(max=K - 1)]).clamp(min=0)
        at = torch.where((count < K).unsqueeze(-1), rest, at)
    extra = at.argmax(-1) if resample == "argmax" else draw(at, sampler.uniforms([1] * ROWS)[:, 0])
    return [[*draft.tokens[row, : count[row]].tolist(), int(extra[row])] for row in range(ROWS)]


def test_rejection_sampling_keeps_the_targets_distribution() -> None:
    assert outcome_test(right).p_value > 1e-4


def as_a_block(draft: Draft, logits: Tensor, p: Tensor, q: Tensor, sampler: Sampler) -> list[list[int]]:
    return verify(draft, logits, sampler, block=True).tokens


def block_by_weight_alone(draft: Draft, logits: Tensor, p: Tensor, q: Tensor, sampler: Sampler) -> list[list[int]]:
    """Accepts up to the last position whose running product w exceeds a coin, as if the chance of every position were
    w.
    """
    target, index = torch.softmax(logits, -1), draft.tokens.unsqueeze(-1)
    assert draft.probs is not None
    ratios = (target[:, :K].gather(-1, index) / draft.probs.gather(-1, index))[..., 0]
    weights = [torch.ones(ROWS)]
    for ratio in ratios.unbind(-1):
        weights.append((weights[-1] * ratio).clamp(max=1.0))
    w = torch.stack(weights, -1)
    rows, count = torch.arange(ROWS), ((sampler.uniforms([K] * ROWS) < w[:, 1:]) * torch.arange(1, K + 1)).amax(-1)
    rest = (w[rows, count].unsqueeze(-1) * target[rows, count] - draft.probs[rows, count.clamp(max=K - 1)]).clamp(min=0)
    at = torch.where((count < K).unsqueeze(-1), rest, target[rows, count])
    extra = draw(at, sampler.uniforms([1] * ROWS)[:, 0]).clamp(max=V - 1)
    return [[*draft.tokens[row, : count[row]].tolist(), int(extra[row])] for row in range(ROWS)]


def test_block_verification_keeps_the_targets_distribution() -> None:
    assert outcome_test(as_a_block).p_value > 1e-4
    assert outcome_test(block_by_weight_alone).p_value < 1e-9


def test_block_verification_accepts_what_theory_says_and_never_less() -> None:
    """Exact expectations over all chains: Σ_i Σ_x q(x_1..x_i) w_i(x), with w_i the product of min(1, p/q) token by
    token, and of p/q cut to 1 as a whole (2403.10444, lemma 3); `verify` must accept as many on average."""
    gains = []
    for seed in range(2):
        p, q = world(seed)
        token = block = 0.0
        for end in range(1, K + 1):
            for chain in product(range(V), repeat=end):
                chance = alone = together = 1.0
                for before, x in zip((V, *chain), chain, strict=False):
                    ratio = float(p[before, x] / q[before, x])
                    chance, alone, together = (
                        chance * float(q[before, x]),
                        alone * min(1.0, ratio),
                        min(1.0, together * ratio),
                    )
                token, block = token + chance * alone, block + chance * together
        assert block >= token
        gains.append(block - token)
        sampler = sampler_of(ROWS)
        draft = drafted_chain(q, sampler)
        for expected, as_block in ((token, False), (block, True)):
            found = verify(draft, target_logits(p, draft.tokens), sampler, block=as_block)
            lengths = torch.tensor([float(len(path)) for path in found.paths])
            assert lengths.mean().item() == pytest.approx(expected, abs=4.5 * lengths.std().item() / ROWS**0.5)
    assert min(gains) >= 0 and max(gains) > 0.05


def test_block_verification_of_fixed_candidates_and_shorter_rows() -> None:
    """One-hot drafts, half of the rows offering two tokens of three: the first two tokens still follow p."""
    p, _ = world(3)
    tokens = torch.tensor([[0, 1, 2]]).expand(ROWS, -1)
    lengths = [3 if row % 2 else 2 for row in range(ROWS)]
    verdict = verify(Draft(tokens, lengths=lengths), target_logits(p, tokens), sampler_of(ROWS), block=True)
    assert all(len(path) <= length for path, length in zip(verdict.paths, lengths, strict=True))
    assert two_tokens_test(verdict.tokens, p).p_value > 1e-4


@pytest.mark.parametrize("flawed", [without_draft_probability, without_resampling, random_greedy, one_position])
def test_flawed_verifiers_are_caught(flawed: Callable[..., list[list[int]]]) -> None:
    assert outcome_test(flawed).p_value < 1e-9


@pytest.mark.parametrize("probs", [True, False])
def test_tree_verification_keeps_the_targets_distribution(probs: bool) -> None:
    """Three siblings at the root (drawn without replacement, or fixed), two children below each."""
    p, q = world(3)
    draws = torch.Generator().manual_seed(5)

    def children(distribution: Tensor, count: int) -> Tensor:
        if probs:
            return torch.multinomial(distribution, count, replacement=False, generator=draws)
        return distribution.topk(count, -1).indices

    top = children(q[torch.full((TREES,), V)], 3)
    below = [children(q[top[:, node]], 2) for node in range(3)]
    tokens = torch.cat((top, *below), 1)
    at = torch.cat((torch.full((TREES, 1), V), tokens), 1)
    parents = [-1, -1, -1, 0, 0, 1, 1, 2, 2]
    draft = Draft(tokens, parents=[parents] * TREES, probs=q[at[:, :4]] if probs else None)
    verdict = verify(draft, target_logits(p, tokens), sampler_of(TREES))
    assert two_tokens_test(verdict.tokens, p).p_value > 1e-4
    assert 0.3 < sum(map(len, verdict.paths)) / TREES < 2


@pytest.mark.parametrize("shape", ["chain", "block", "walked", "judged"])
def test_a_draft_of_a_cut_vocabulary_is_judged_as_if_it_were_of_the_whole(shape: str) -> None:
    """q over 3 of 5 tokens with its map, against the same q written over all 5: the same verdict, path by path."""
    p, _ = world(4)
    known = torch.tensor([0, 2, 4])
    rows, parents = 500, None if shape in ("chain", "block") else [[-1, -1, 0]] * 500
    generator = torch.Generator().manual_seed(1)
    q = torch.rand(rows, 3, 3, generator=generator).softmax(-1)
    cases = (
        [torch.multinomial(q[:, 0], 2, generator=generator)]
        if parents
        else [draw(q[:, :2], torch.rand(rows, 2, generator=generator))]
    )
    cases.append(draw(q[:, 1 if parents else 2], torch.rand(rows, generator=generator)).unsqueeze(1))
    tokens = known[torch.cat(cases, 1)]
    whole = torch.zeros(rows, 3, V)
    whole[..., known] = q
    output = []
    for draft in (Draft(tokens, parents, q, vocabulary=known), Draft(tokens, parents, whole)):
        logits = target_logits(p, tokens)
        if shape == "judged":
            uniforms = torch.rand(rows, 4, generator=torch.Generator().manual_seed(2))
            verdict = verify_tree._judged(draft, torch.softmax(logits, -1), uniforms)
        else:
            verdict = verify(draft, logits, Sampler(1.0, range(rows)), block=shape == "block")
        output.append((verdict.tokens, verdict.paths, verdict.reached, verdict.overlap))
    assert output[0] == output[1]
    assert {len(path) for path in output[0][1]} == ({0, 1, 2} if parents else {0, 1, 2, 3})
    assert {token for row in output[0][0] for token in row} == set(range(V))


def greedy_logits(*argmaxes: int) -> Tensor:
    logits = torch.zeros(1, len(argmaxes), 10)
    for position, token in enumerate(argmaxes):
        logits[0, position, token] = 1
    return logits


def greedy(draft: Draft, logits: Tensor) -> Verdict:
    return verify(draft, logits, Sampler(0.0, [0]))


def test_greedy_chain_by_hand() -> None:
    draft = Draft(torch.tensor([[4, 5, 6]]))
    verdict = greedy(draft, greedy_logits(4, 5, 9, 1))
    assert (verdict.tokens, verdict.paths, verdict.overlap, verdict.reached) == ([[4, 5, 9]], [[0, 1]], [2.0], [3])
    assert greedy(draft, greedy_logits(4, 5, 6, 1)).tokens == [[4, 5, 6, 1]]  # all accepted: the bonus token
    assert greedy(draft, greedy_logits(7, 5, 6, 1)).tokens == [[7]]


def test_greedy_tree_by_hand() -> None:
    """Root -> (4, 5); 4 -> 6; 5 -> 7 -> 8. The target says 5, then 7, then 9."""
    draft = Draft(torch.tensor([[4, 5, 6, 7, 8]]), parents=[[-1, -1, 0, 1, 3]])
    verdict = greedy(draft, greedy_logits(5, 0, 7, 0, 9, 0))
    assert (verdict.tokens, verdict.paths, verdict.reached) == ([[5, 7, 9]], [[1, 3]], [3])


def test_probes_are_never_accepted() -> None:
    draft = Draft(torch.tensor([[4, 5]]), parents=[[-1, 0]], probes=1)
    assert greedy(draft, greedy_logits(4, 5, 9)).tokens == [[4, 5]]


def test_padding_of_a_shorter_row_is_never_accepted() -> None:
    draft = Draft(torch.tensor([[4, 0]]), lengths=[1])
    assert greedy(draft, greedy_logits(4, 0, 9)).tokens == [[4, 0]]
    assert greedy(draft, greedy_logits(4, 0, 9)).paths == [[0]]


def test_alpha_is_the_mean_overlap() -> None:
    """With context-free p and q every reached position contributes Σ min(p, q) exactly."""
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.3, 0.5])
    sampler = Sampler(1.0, [0])
    draft = Draft(torch.tensor([[0, 1]]), probs=q.expand(1, 2, 3))
    verdict = verify(draft, p.log().expand(1, 3, 3), sampler)
    assert verdict.overlap[0] / verdict.reached[0] == pytest.approx(0.7)


def test_typical_acceptance_by_hand() -> None:
    """Medusa's rule on a flat and on a peaked distribution."""
    least = typical_acceptance(threshold=0.09, alpha=0.3)
    flat, peaked = torch.full((100,), 0.01), torch.tensor([0.95] + [0.05 / 9] * 9)
    assert least(flat) == pytest.approx(0.003)  # exp(-H) = 0.01, times 0.3: below 0.01, every token is accepted
    assert least(peaked) == pytest.approx(0.09)
    assert peaked[4] < 0.09 < peaked[0]


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    probs = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]).expand(4, 5)
    assert draw(probs, torch.tensor([0.0, 0.49999, 0.5, 1 - 2**-24])).tolist() == [1, 1, 3, 3]
