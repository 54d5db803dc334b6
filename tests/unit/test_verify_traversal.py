"""Traversal verification against exact distributions: every draft that can be drawn, and every path that can be taken."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product

import pytest
import torch
from torch import Tensor

from specrig.audit.distribution import g_test
from specrig.decoding.sampling import Sampler
from specrig.decoding.types import Draft
from specrig.decoding.verify import verify
from specrig.decoding.verify_traversal import traversal_weights

V, LENGTH, ROWS = 3, 4, 4_000
TREES = [[-1, -1, 0, 0, 1, 2], [-1, 0, 1], [-1, -1, -1], [-1, -1, 1, 1, 0, 3], [-1, 0, 0, 1, 2, 2]]


def world(seed: int) -> tuple[Tensor, Tensor]:
    """A target p and a draft q that know only the token before: `[V + 1, V]` float64, row V for the start."""
    generator = torch.Generator().manual_seed(seed)
    p = torch.softmax(1.2 * torch.randn(V + 1, V, generator=generator, dtype=torch.float64), -1)
    noise = torch.randn(V + 1, V, generator=generator, dtype=torch.float64)
    return p, torch.softmax(p.log() + 0.8 * noise, -1)


def before(tokens: Tensor) -> Tensor:
    """The token at each place, `[N, n + 1]`; V at the root."""
    return torch.cat((torch.full_like(tokens[:, :1], V), tokens), 1)


def drafts(parents: list[int], q: Tensor) -> tuple[Tensor, Tensor]:
    """All drafts of a tree whose siblings are drawn without replacement: tokens `[N, n]` and their probabilities `[N]`."""
    families = [[node for node, above in enumerate(parents) if above == parent] for parent in sorted(set(parents))]
    tokens, chances = [], []
    for choice in product(*(permutations(range(V), len(family)) for family in families)):
        row, chance = [0] * len(parents), 1.0
        for family, found in zip(families, choice, strict=True):
            left = 1.0
            for node, token in zip(family, found, strict=True):
                row[node] = token
            for node in family:
                share = float(q[V if parents[node] < 0 else row[parents[node]], row[node]])
                chance, left = chance * share / left, left - share
        tokens.append(row)
        chances.append(chance)
    return torch.tensor(tokens), torch.tensor(chances, dtype=torch.float64)


def leaves_first(parents: list[int], node: int = -1) -> Iterator[list[int]]:
    """The paths to all nodes, each behind those below it; the root's, which is empty, comes last."""
    for child in [child for child, parent in enumerate(parents) if parent == node]:
        for path in leaves_first(parents, child):
            yield [child, *path]
    yield []


def outcomes(draft: Draft, parents: list[int], p: Tensor, chances: Tensor) -> tuple[Tensor, float]:
    """The exact distribution of the first LENGTH tokens, `[V] * LENGTH`, and how many drafted tokens are accepted."""
    weights, rest = traversal_weights(draft, p[before(draft.tokens)])
    found, accepted = torch.zeros([V] * LENGTH, dtype=torch.float64), 0.0
    reached = chances.clone()
    for path in leaves_first(parents):
        place = path[-1] + 1 if path else 0
        ends = reached * weights[:, place]
        reached = reached - ends
        accepted += len(path) * float(ends.sum())
        # The path, the token behind it, and all that may follow: [N], [N, V], [V, V ** what is missing].
        powers = torch.tensor([V**at for at in reversed(range(len(path)))], dtype=torch.long)
        text = (draft.tokens[:, path] * powers).sum(1)
        more = torch.ones(V, 1, dtype=torch.float64)
        for _ in range(LENGTH - len(path) - 1):
            more = (p[:V].unsqueeze(-1) * more).flatten(1)
        chance = (ends.unsqueeze(1) * rest[:, place]).unsqueeze(-1) * more
        found.view(V ** len(path), V, -1).index_add_(0, text, chance)
    assert float(reached.abs().max()) < 1e-12, "the root accepts what nothing else has"
    return found, accepted


def texts(p: Tensor) -> Tensor:
    """The target's own distribution of LENGTH tokens."""
    return torch.einsum("a,ab,bc,cd->abcd", p[V], p[:V], p[:V], p[:V])


def sources(tokens: Tensor, parents: list[int], q: Tensor) -> Tensor:
    return q[before(tokens)[:, : max(parents) + 2]]


@pytest.mark.parametrize("parents", TREES)
@pytest.mark.parametrize("seed", [0, 1])
def test_it_is_lossless_for_drawn_trees(parents: list[int], seed: int) -> None:
    p, q = world(seed)
    tokens, chances = drafts(parents, q)
    assert float(chances.sum()) == pytest.approx(1.0)
    draft = Draft(tokens, [parents] * len(tokens), sources(tokens, parents, q))
    found, _ = outcomes(draft, parents, p, chances)
    torch.testing.assert_close(found, texts(p), atol=1e-12, rtol=0)


@pytest.mark.parametrize("parents", TREES)
def test_it_is_lossless_for_candidates_that_nobody_drew(parents: list[int]) -> None:
    p, _ = world(2)
    births = [parents[:node].count(parent) for node, parent in enumerate(parents)]
    tokens = torch.tensor([[(birth + shift) % V for birth in births] for shift in range(V)])
    for row in tokens:
        found, _ = outcomes(Draft(row[None], [parents]), parents, p, torch.ones(1, dtype=torch.float64))
        torch.testing.assert_close(found, texts(p), atol=1e-12, rtol=0)


def test_draws_that_two_nodes_share_would_not_be_lossless() -> None:
    """As Medusa's are: what is judged below the first child tells what the second one's child is."""
    p, q = world(1)
    parents, level = [-1, -1, 0, 1], q[V].flip(0)
    errors = []
    for shared in (True, False):
        rows = [
            (a, b, c, d)
            for a, b in permutations(range(V), 2)
            for c, d in product(range(V), repeat=2)
            if c == d or not shared
        ]
        chances = [
            float(q[V, a] * q[V, b] / (1 - q[V, a]) * level[c] * (1.0 if shared else level[d])) for a, b, c, d in rows
        ]
        probs = torch.stack((q[V], level, level)).expand(len(rows), 3, V)
        draft = Draft(torch.tensor(rows), [parents] * len(rows), probs)
        found, _ = outcomes(draft, parents, p, torch.tensor(chances, dtype=torch.float64))
        errors.append(float((found - texts(p)).abs().sum()))
    assert errors[0] > 1e-3 and errors[1] < 1e-12


def sampled(parents: list[int], p: Tensor, q: Tensor) -> tuple[Draft, Tensor]:
    tokens, chances = drafts(parents, q)
    rows = torch.multinomial(chances, ROWS, replacement=True, generator=torch.Generator().manual_seed(0))
    drawn = tokens[rows]
    logits = p[before(drawn)].log().float()
    return Draft(drawn, [parents] * ROWS, sources(drawn, parents, q).float()), logits


@pytest.mark.parametrize("seed", [0, 1])
def test_verify_accepts_what_the_weights_say_and_more_than_token_by_token(seed: int) -> None:
    """Of 4,000 rows: 0.03 tokens more or fewer a row are seen, and a bias of 0.05 in total variation in the first two tokens."""
    p, q = world(seed)
    parents = TREES[0]
    draft, logits = sampled(parents, p, q)
    whole = verify(draft, logits, Sampler(1.0, range(ROWS)), block=True)
    alone = verify(draft, logits, Sampler(1.0, range(ROWS)))
    tokens, chances = drafts(parents, q)
    every = Draft(tokens, [parents] * len(tokens), sources(tokens, parents, q))
    found, expected = outcomes(every, parents, p, chances)
    means = [sum(map(len, verdict.paths)) / ROWS for verdict in (whole, alone)]
    assert means[0] == pytest.approx(expected, abs=0.03) and means[0] > means[1] - 0.01
    pairs = found.sum((2, 3))
    firsts = []
    more = torch.Generator().manual_seed(9)
    for row in whole.tokens:
        second = row[1] if len(row) > 1 else int(torch.multinomial(p[row[0]], 1, generator=more))
        firsts.append((row[0], second))
    assert g_test(firsts, {(a, b): float(pairs[a, b]) for a in range(V) for b in range(V)}).p_value > 1e-4
    # α counts Σ min(p, q) at the places that were met, by the draft's own q.
    for row, verdict in enumerate(whole.paths[:50]):
        positions = [0, *(node + 1 for node in verdict)]
        met = [place for place in positions if place - 1 in parents]
        shares = [
            float(
                torch.minimum(
                    p[V if not place else draft.tokens[row, place - 1]],
                    q[V if not place else draft.tokens[row, place - 1]],
                ).sum()
            )
            for place in met
        ]
        assert whole.reached[row] == len(met) and whole.overlap[row] == pytest.approx(sum(shares), abs=1e-5)


@pytest.mark.parametrize("drawn", [True, False])
def test_of_a_chain_it_is_block_verification(drawn: bool) -> None:
    p, q = world(3)
    draft, logits = sampled([-1, 0, 1], p, q)
    draft.probs = draft.probs if drawn else None
    draft.lengths = [row % 4 for row in range(ROWS)]
    chain = Draft(draft.tokens, probs=draft.probs, lengths=draft.lengths)
    by_tree, by_chain = (verify(each, logits, Sampler(1.0, range(ROWS)), block=True) for each in (draft, chain))
    assert by_tree.paths == by_chain.paths and by_tree.tokens == by_chain.tokens
    assert by_tree.reached == by_chain.reached
    assert by_tree.overlap == pytest.approx(by_chain.overlap, abs=1e-5)
