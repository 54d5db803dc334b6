"""Verification: which draft tokens the target accepts, and the token it adds itself.

Lossless, `exact`: at temperature 0 a draft token is accepted when it is the target's argmax. Above, Leviathan et al.
(2211.17192, Algorithm 1) and Chen et al. (2302.01318, Algorithm 2): a token x drawn from q is accepted with probability
min(1, p(x)/q(x)). At the first rejection one token is drawn from norm(max(0, p - q)); when all are accepted, one bonus
token from p. Trees: SpecInfer (2305.09781, Algorithm 2) with siblings drawn without replacement: after a sibling is
rejected p becomes norm(max(0, p - q)) and q loses that sibling. A deterministic candidate is a draw from a one-hot q.

Lossless, `block`, for chains: Sun et al. (2403.10444, Algorithm 2). Where a token is likelier under p than under q, its
surplus helps the tokens behind it: the chain up to position i is accepted with the running product of p/q as its
probability, cut to 1 at each step. No valid rule accepts more tokens in expectation.

Lossless, `traversal`, for trees: Weng et al. (2505.12398). Paths are judged as wholes, from the leaves to the root: a
rejected leaf leaves its siblings and then its parent a chance. Of a chain it is block verification. The children of
different nodes must be drawn independently, and the shape must not depend on draws.

Lossy, `typical`: Medusa's typical acceptance (2401.10774), p(x) > min(threshold, alpha * exp(-H(p))).

Shapes: B rows, n draft tokens a row, V vocabulary. p and q are the distributions of target and draft.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specrig.decoding.sampling import Sampler, argmax, draw, to_full_vocabulary
from specrig.decoding.simulated import SimulatedAcceptance
from specrig.decoding.types import Criterion, Draft, Verdict
from specrig.decoding.verify_traversal import verify_traversal
from specrig.decoding.verify_tree import verify_tree, verify_tree_greedy
from specrig.runtime.device import on_device


def verify(
    draft: Draft,
    logits: Tensor,
    sampler: Sampler,
    *,
    active: Sequence[bool] | None = None,
    typical: Criterion | None = None,
    block: bool = False,
    simulated: SimulatedAcceptance | None = None,
    choices: Tensor | None = None,
) -> Verdict:
    """Judge `draft` by the target's `logits` `[B, n + 1, V]` (position 0 is the root, position i + 1 node i).

    Above temperature 0 `typical` replaces rejection sampling by that lossy rule, `block` by block verification of
    chains and traversal verification of trees. `simulated` replaces the outcome, after all the work of judging, by a
    declared acceptance. `choices` `[B, n + 1]` are the most likely tokens by these logits, where they are known. Rows that
    are not `active` use no random numbers. Returns a Verdict without logits and hidden states.
    """
    active = [True] * len(logits) if active is None else list(active)
    if sampler.greedy:
        choices = argmax(logits) if choices is None else choices
        verdict = _chain_greedy(draft, choices) if draft.parents is None else verify_tree_greedy(draft, choices)
    elif block and draft.parents is not None and typical is None:
        verdict = verify_traversal(draft, logits, sampler, active)
    elif draft.parents is not None or typical is not None:
        verdict = verify_tree(draft, logits, sampler, active, typical)
    else:
        verdict = _chain_sampled(draft, logits, sampler, active, block)
    return verdict if simulated is None else simulated(verdict, draft, active)


def _chain_greedy(draft: Draft, choices: Tensor) -> Verdict:
    """Temperature 0: the longest prefix of each row's chain that equals the target's own choices `[B, n + 1]`."""
    # One transfer to the host a round: everything else is list work on a few integers.
    if draft.rows is None:
        m = choices.shape[1]
        pairs = [(row[:m], row[m:]) for row in torch.cat((choices, draft.tokens), 1).tolist()]
    else:
        pairs = list(zip(choices.tolist(), draft.rows, strict=True))
    verdict = Verdict([], [], [], [])
    for (chosen, drafted), length in zip(pairs, draft.offered, strict=True):
        accepted = 0
        while accepted < length and drafted[accepted] == chosen[accepted]:
            accepted += 1
        # p and q are one-hot: Σ min(p, q) is 1 where they agree, else 0.
        _add(verdict, accepted, length, drafted, chosen[accepted], float(accepted))
        verdict.choices.append(chosen)
    return verdict


def _chain_sampled(draft: Draft, logits: Tensor, sampler: Sampler, active: list[bool], block: bool) -> Verdict:
    """Above temperature 0: rejection sampling token by token (2211.17192, Algorithm 1), or of the chain as a block.

    All rows are judged on the device; the host waits once, for the outcome.
    """
    B, n = draft.tokens.shape
    lengths = draft.offered
    p = sampler.probs(logits)
    # One uniform a token, to judge it by, and one more for the token that the target adds: [B, n + 1].
    uniforms = sampler.uniforms([length + 1 if on else 0 for length, on in zip(lengths, active, strict=True)], n + 1)
    if not n:
        only = draw(p[:, 0], uniforms[:, 0]).tolist()
        return Verdict([[token] for token in only], [[] for _ in only], [0.0] * B, [0] * B, [[] for _ in only])

    # p and q of each drafted token, and Σ_x min(p, q) at its position: [B, n] each.
    index = draft.tokens.unsqueeze(-1)
    p_token = p[:, :n].gather(-1, index).squeeze(-1)
    q = None if draft.probs is None else to_full_vocabulary(draft.probs, draft.vocabulary, p.shape[-1])
    if q is None:  # one-hot on the token
        q_token, shared = torch.ones_like(p_token), p_token
    else:
        q_token = q.gather(-1, index).squeeze(-1)
        shared = torch.minimum(p[:, :n], q).sum(-1)

    # Which tokens pass, and from them how many are accepted: `counts` [B, 1].
    positions = torch.arange(1, n + 1, device=p.device)
    if draft.lengths is None:
        offered = torch.full((B, 1), n, device=p.device)
    else:
        offered = on_device(lengths, p.device).unsqueeze(1)
    if block:
        weights, acceptance = _block(p, q, q_token, p_token, None if draft.lengths is None else offered)
        passed = uniforms[:, :n] < acceptance
    else:
        # u < min(1, p/q), written as u q < p: no division, and p = 0 is never accepted.
        passed = uniforms[:, :n] * q_token < p_token
    if draft.lengths is not None:
        passed = passed & (positions <= offered)
    # A block ends at the last position that passes, a chain of single tests at the first that does not.
    counts = (passed * positions).amax(-1, keepdim=True) if block else passed.long().cumprod(-1).sum(-1, keepdim=True)

    # The token that the target adds: from norm(max(0, p - q)) at the first position that was not accepted, [B, V].
    rejected = counts.clamp(max=n - 1)
    rest = p.gather(1, counts.unsqueeze(-1).expand(-1, -1, p.shape[-1])).squeeze(1)
    if block:  # with w p instead of p, w the weight of what was accepted (2403.10444, Algorithm 2)
        rest = rest * torch.where(counts > 0, weights.gather(1, (counts - 1).clamp(min=0)), 1.0)
    if q is None:
        left = rest.scatter(1, draft.tokens.gather(1, rejected), 0.0)
    else:
        left = (rest - q.gather(1, rejected.unsqueeze(-1).expand(-1, -1, p.shape[-1])).squeeze(1)).clamp_(min=0.0)
    # Where all were accepted the bonus token comes from p, as it does where rounding left nothing.
    left = torch.where((counts < offered) & (left.sum(-1, keepdim=True) > 0), left, rest)
    extra = draw(left, uniforms.gather(1, offered).squeeze(1))

    # α's numerator: Σ_x min(p, q), summed over the positions that were judged.
    seen = shared.cumsum(-1).gather(1, torch.minimum(counts, offered - 1).clamp(min=0))
    # One transfer to the host: doubles hold every token id.
    rows: list[list[float]] = torch.cat((counts, extra.unsqueeze(1), draft.tokens, seen.double()), 1).tolist()
    verdict = Verdict([], [], [], [])
    for row, length in zip(rows, lengths, strict=True):
        accepted, last, *drafted = map(int, row[:-1])
        _add(verdict, accepted, length, drafted, last, row[-1] if length else 0.0)
    return verdict


def _add(verdict: Verdict, accepted: int, length: int, drafted: list[int], extra: int, overlap: float) -> None:
    """Add one row's outcome: the first `accepted` of its `length` offered tokens, then the token `extra`."""
    verdict.drafted.append(drafted)
    verdict.tokens.append([*drafted[:accepted], extra])
    verdict.paths.append(list(range(accepted)))
    verdict.overlap.append(overlap)
    verdict.reached.append(min(accepted + 1, length))


def _block(
    p: Tensor, q: Tensor | None, q_token: Tensor, p_token: Tensor, offered: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Block verification: the weight and the acceptance probability of each position of a chain, both `[B, n]`.

    p: `[B, n + 1, V]`; q: `[B, n, V]`, None if one-hot; q_token, p_token: `[B, n]`; offered: `[B, 1]`, None where all n
    tokens are offered. The weight w of a position is the running product of p/q up to it, cut to 1 at each step. The
    chain up to a position, if no longer one was accepted, is accepted with probability S / (S + 1 - w), where S =
    Σ_x max(0, w p - q) at the next position; with probability w at the last (2403.10444, equations 3 and 4).
    """
    # w_i = min(1, w_(i-1) p_i / q_i), w_0 = 1. A drawn token has q > 0.
    ratios = p_token / q_token
    weights = [torch.ones_like(ratios[:, 0])]
    for ratio in ratios.unbind(-1):
        weights.append((weights[-1] * ratio).clamp(max=1.0))
    w = torch.stack(weights[1:], -1)
    n = w.shape[1]

    # S of every position but the last, [B, n - 1]: how much of w p the next q does not cover.
    if q is None:  # one-hot: all of w p but the drafted token's share is left
        left = (w[:, :-1] - w[:, :-1] * p_token[:, 1:]).clamp(min=0.0)
    else:
        left = (w[:, :-1].unsqueeze(-1) * p[:, 1:n] - q[:, 1:]).clamp_(min=0.0).sum(-1)

    rest = left + 1.0 - w[:, :-1]
    # Nothing left and w = 1: p and q agree on the next position, where a new draw is a draw from p.
    acceptance = torch.cat((torch.where(rest > 0, left / rest, 1.0), w[:, -1:]), -1)
    if offered is not None:  # rows that offer fewer tokens end earlier
        acceptance = torch.where(torch.arange(1, n + 1, device=w.device) == offered, w, acceptance)
    return w, acceptance
