"""Every row of a batch against the rules written out for one row: chains of different lengths, trees, what alpha is
made of.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specrig.audit.distribution import g_test
from specrig.decoding import verify_tree
from specrig.decoding.sampling import Sampler
from specrig.decoding.types import Draft, Verdict
from specrig.decoding.verify import verify

V, N, ROWS = 6, 4, 300
Judged = tuple[list[int], list[int], float, int]
"""Tokens, path, overlap and reached positions of one row."""


def case(drawn: bool, seed: int = 0) -> tuple[Tensor, Draft]:
    """Target logits `[ROWS, N + 1, V]` and chains of 0 to N tokens, drawn from a q that differs at every place, or
    fixed.
    """
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(ROWS, N + 1, V, generator=generator) * 1.2
    q = torch.softmax(logits[:, :N] + torch.randn(ROWS, N, V, generator=generator) * 0.7, -1)
    tokens = torch.multinomial(q.view(-1, V), 1, generator=generator).view(ROWS, N)
    return logits, Draft(tokens, probs=q if drawn else None, lengths=[row % (N + 1) for row in range(ROWS)])


def pick(weights: list[float], u: float) -> int:
    left = u * sum(weights)
    for token, weight in enumerate(weights):
        left -= weight
        if left < 0:
            return token
    raise AssertionError("nothing to draw from")


def by_token(p: list[list[float]], q: list[list[float]], tokens: list[int], u: list[float]) -> tuple[int, list[float]]:
    """Leviathan's rule: how many are accepted, and the weights that the next token is drawn from."""
    for place, token in enumerate(tokens):
        if u[place] * q[place][token] >= p[place][token]:
            return place, [max(0.0, a - b) for a, b in zip(p[place], q[place], strict=True)]
    return len(tokens), p[len(tokens)]


def as_a_block(
    p: list[list[float]], q: list[list[float]], tokens: list[int], u: list[float]
) -> tuple[int, list[float]]:
    """Sun et al., Algorithm 2, position by position."""
    weight, accepted, rest = 1.0, 0, [max(0.0, a - b) for a, b in zip(p[0], q[0], strict=True)] if tokens else p[0]
    for place, token in enumerate(tokens):
        weight = min(1.0, weight * p[place][token] / q[place][token])
        if place + 1 == len(tokens):
            left, chance = p[place + 1], weight
        else:
            left = [max(0.0, weight * a - b) for a, b in zip(p[place + 1], q[place + 1], strict=True)]
            chance = sum(left) / (sum(left) + 1 - weight)
        if u[place] < chance:
            accepted, rest = place + 1, left
    return accepted, rest


def one_row(logits: Tensor, draft: Draft, row: int, rule: Callable[..., tuple[int, list[float]]]) -> Judged:
    assert draft.lengths is not None
    length = draft.lengths[row]
    tokens = draft.tokens[row, :length].tolist()
    p = torch.softmax(logits[row].double(), -1).tolist()
    one_hot = torch.nn.functional.one_hot(draft.tokens[row], V).tolist()
    q = one_hot if draft.probs is None else draft.probs[row].tolist()
    u = Sampler(1.0, [row]).uniforms([length + 1])[0].tolist()
    accepted, rest = rule(p, q, tokens, u)
    reached = min(accepted + 1, length)
    overlap = sum(min(a, b) for place in range(reached) for a, b in zip(p[place], q[place], strict=True))
    return [*tokens[:accepted], pick(rest, u[length])], list(range(accepted)), overlap, reached


def rows_of(verdict: Verdict) -> list[Judged]:
    return list(zip(verdict.tokens, verdict.paths, verdict.overlap, verdict.reached, strict=True))


def same(found: list[Judged], expected: list[Judged]) -> bool:
    return all(
        (a[0], a[1], a[3]) == (b[0], b[1], b[3]) and a[2] == pytest.approx(b[2], abs=1e-5)
        for a, b in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize("drawn", [True, False])
@pytest.mark.parametrize("rule", [by_token, as_a_block])
def test_rows_of_different_lengths_are_judged_as_one_row_is(
    rule: Callable[..., tuple[int, list[float]]], drawn: bool
) -> None:
    logits, draft = case(drawn)
    expected = [one_row(logits, draft, row, rule) for row in range(ROWS)]
    found = verify(draft, logits, Sampler(1.0, range(ROWS)), block=rule is as_a_block)
    assert same(rows_of(found), expected)
    by_length = {(len(path), row % (N + 1)) for row, (_, path, _, _) in enumerate(expected)}
    assert len(by_length) >= 14, "of 15 outcomes"


@pytest.mark.parametrize("block", [False, True])
def test_a_shorter_row_is_judged_as_it_would_be_alone(block: bool) -> None:
    """What stands behind its last token, another row's width, changes nothing: cut off, the verdict is the same."""
    logits, draft = case(drawn=True, seed=1)
    assert draft.lengths is not None and draft.probs is not None
    together = rows_of(verify(draft, logits, Sampler(1.0, range(ROWS)), block=block))
    for row, length in enumerate(draft.lengths):
        alone = Draft(draft.tokens[row : row + 1, :length], probs=draft.probs[row : row + 1, :length])
        found = verify(alone, logits[row : row + 1, : length + 1], Sampler(1.0, [row]), block=block)
        assert same(rows_of(found), [together[row]])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_nothing_is_offered_the_target_says_its_own_token(temperature: float) -> None:
    logits = case(drawn=True)[0][:4, :1]
    sampler = Sampler(temperature, range(4))
    found = verify(Draft(torch.empty((4, 0), dtype=torch.long)), logits, sampler)
    expected = Sampler(temperature, range(4)).next(logits[:, 0])[0].tolist()
    tokens = [[token] for token in expected]
    choices = [] if temperature else tokens
    assert found == Verdict(tokens, [[]] * 4, [0.0] * 4, [0] * 4, [[]] * 4, choices=choices)


def test_finished_rows_draw_nothing() -> None:
    logits, draft = case(drawn=True)
    active = [row % 3 > 0 for row in range(ROWS)]
    sampler = Sampler(1.0, range(ROWS))
    found, every = verify(draft, logits, sampler, active=active), verify(draft, logits, Sampler(1.0, range(ROWS)))
    after = sampler.uniforms([1] * ROWS)[:, 0].tolist()
    for row, (on, length) in enumerate(zip(active, draft.offered, strict=True)):
        assert after[row] == Sampler(1.0, [row]).uniforms([length + 2])[0, length + 1 if on else 0].item()
        assert not on or found.tokens[row] == every.tokens[row]


@pytest.mark.parametrize("form", [verify_tree._walked, verify_tree._judged])
def test_a_sibling_that_was_never_drawn_is_never_accepted(form: Callable[..., Verdict]) -> None:
    """q knows one token, three siblings were asked of it: what fills the other places has q = 0, and p may like it a
    lot.
    """
    rows = 1500
    p = torch.tensor([0.3, 0.3, 0.4]).expand(rows, 4, 3)
    q = torch.tensor([1.0, 0.0, 0.0]).expand(rows, 1, 1, 3)
    sampler = Sampler(1.0, range(rows))
    tokens, probs = sampler.candidates(q[:, 0].log(), 3, [1] * rows)
    draft = Draft(tokens[:, 0], parents=[[-1, -1, -1]] * rows, probs=probs)
    uniforms = sampler.uniforms([4] * rows)
    assert set(tokens[0, 0].tolist()) == {0, 2}, "the places that are left over hold the last token"
    verdict = form(draft, p, uniforms)
    assert {tuple(path) for path in verdict.paths} == {(), (0,)}
    assert g_test([tuple(row[:1]) for row in verdict.tokens], {(0,): 0.3, (1,): 0.3, (2,): 0.4}).p_value > 1e-4
    # A uniform of exactly 0 accepts what q may draw and p may say, and nothing else.
    zeros = form(draft, p, torch.zeros_like(uniforms))
    assert all(path == [0] for path in zeros.paths)
    unlikely = torch.tensor([0.0, 0.5, 0.5]).expand(rows, 4, 3)
    assert all(path == [] for path in form(draft, unlikely, torch.zeros_like(uniforms)).paths)


@pytest.mark.parametrize("form", [verify_tree._walked, verify_tree._judged])
@pytest.mark.parametrize("drawn", [True, False])
def test_alpha_of_a_tree_counts_each_visited_node_once(form: Callable[..., Verdict], drawn: bool) -> None:
    """Two siblings with a child each: reached are the root and an accepted node that has a child, each with its own Σ
    min(p, q).
    """
    rows, parents = 200, [-1, -1, 0, 1]
    generator = torch.Generator().manual_seed(2)
    p = torch.softmax(torch.randn(rows, 5, V, generator=generator), -1)
    q = torch.softmax(p[:, :3].log() + torch.randn(rows, 3, V, generator=generator), -1)
    top = torch.multinomial(q[:, 0], 2, generator=generator)
    below = torch.cat([torch.multinomial(q[:, node], 1, generator=generator) for node in (1, 2)], 1)
    tokens = torch.cat((top, below), 1)
    verdict = form(Draft(tokens, [parents] * rows, q if drawn else None), p, torch.rand(rows, 5, generator=generator))
    for row, path in enumerate(verdict.paths):
        positions = [0, *(node + 1 for node in path if node < 2)]
        firsts = [tokens[row, {0: 0, 1: 2, 2: 3}[place]] for place in positions]
        shares = [
            float(torch.minimum(p[row, place], q[row, place]).sum()) if drawn else float(p[row, place, first])
            for place, first in zip(positions, firsts, strict=True)
        ]
        assert verdict.reached[row] == len(positions)
        assert verdict.overlap[row] == pytest.approx(sum(shares), abs=1e-5)
    assert {len(path) for path in verdict.paths} == {0, 1, 2}


def test_greedy_rows_of_different_lengths() -> None:
    """At temperature 0 p and q are one-hot: a position where they agree counts 1, the one where they part counts 0."""
    logits = torch.nn.functional.one_hot(torch.tensor([[4, 5, 1, 2]] * 4), V).float()
    draft = Draft(torch.tensor([[4, 5, 1], [4, 5, 1], [4, 0, 1], [3, 5, 1]]), lengths=[3, 2, 3, 0])
    found = verify(draft, logits, Sampler(0.0, range(4)))
    assert found.tokens == [[4, 5, 1, 2], [4, 5, 1], [4, 5], [4]]
    assert found.paths == [[0, 1, 2], [0, 1], [0], []]
    assert (found.overlap, found.reached) == ([3.0, 2.0, 1.0, 0.0], [3, 2, 2, 0])


def test_typical_acceptance_takes_the_longest_path_that_passes() -> None:
    """Root -> a, b; b -> c. All pass: the longer path wins though it comes later; with b below the threshold a alone is
    left.
    """
    p = torch.tensor([[0.4, 0.4, 0.1, 0.1]]).expand(4, 4).unsqueeze(0)
    draft = Draft(torch.tensor([[0, 1, 2]]), parents=[[-1, -1, 1]])

    def path(threshold: float, p: Tensor = p) -> list[int]:
        criterion = verify_tree.typical_acceptance(threshold, 1.0)
        return verify(draft, p.log(), Sampler(1.0, [0]), typical=criterion).paths[0]

    assert path(0.09) == [1, 2]
    assert path(0.2) == [0], "c fails, and of two equally long paths the first offered wins"
    unlikely = p.clone()
    unlikely[0, 0] = torch.tensor([0.7, 0.05, 0.1, 0.15])
    assert path(0.09, unlikely) == [0], "b fails, and what hangs on it falls with it"


def test_typical_acceptance_of_a_chain_ends_where_a_token_fails() -> None:
    """Each token is held against the distribution before it; the last two pass again, but behind one that failed."""
    p = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.5, 0.45, 0.05], [0.1, 0.1, 0.8], [0.3, 0.3, 0.4]])
    draft = Draft(torch.tensor([[0, 1, 2, 2], [1, 0, 1, 2]]), lengths=[4, 2])
    criterion = verify_tree.typical_acceptance(0.09, 1.0)
    verdict = verify(draft, p.expand(2, 5, 3).log(), Sampler(1.0, [0, 1]), typical=criterion)
    assert verdict.paths == [[0, 1], [0, 1]]
    assert (verdict.overlap, verdict.reached) == ([2.0, 2.0], [3, 2])


def test_the_most_children_of_a_node_bound_the_work() -> None:
    """What is judged all at once takes as many steps as a node has children; only trees on the device need a bound that
    is not tight.
    """
    tokens = torch.zeros(2, 6, dtype=torch.long)
    tree, other = [-1, -1, 0, 0, 0, 1], [-1, -1, -1, -1, 0, 1]
    assert verify_tree._width(Draft(tokens, parents=[tree, tree])) == 3
    assert verify_tree._width(Draft(tokens, parents=[tree, other])) == 4
    assert verify_tree._width(Draft(tokens, parents=torch.tensor([tree, other]))) == 6
    assert verify_tree._width(Draft(tokens, parents=torch.tensor([tree, other]), width=5)) == 5


def test_typical_acceptance_at_temperature_0_is_greedy_acceptance() -> None:
    """No distribution is left to be typical of: the target's own choice is accepted, and nothing else however lax the
    threshold.
    """
    lax = verify_tree.typical_acceptance(1e-30, 1.0)
    logits = torch.tensor([[[0.0, 0.1, 0.0], [0.3, 0.2, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]])
    tree = Draft(torch.tensor([[0, 1, 0]]), parents=[[-1, -1, 1]])
    chain = Draft(torch.tensor([[1, 1, 0]]))
    for draft in (tree, chain):
        greedy, typical = (verify(draft, logits, Sampler(0.0, [0]), typical=criterion) for criterion in (None, lax))
        assert rows_of(typical) == rows_of(greedy)
    assert verify(tree, logits, Sampler(0.0, [0]), typical=lax).tokens == [[1, 2]]
