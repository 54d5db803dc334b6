"""Verification: which draft tokens the target accepts, and the token it adds itself.

Lossless rules (`exact`): at temperature 0 a draft token is accepted when it is the target's argmax. Above, Leviathan et al.
(2211.17192, Algorithm 1) and Chen et al. (2302.01318, Algorithm 2): a token x drawn from q is accepted with probability
min(1, p(x)/q(x)); at the first rejection one token is drawn from norm(max(0, p - q)); when all are accepted one bonus token
is drawn from p. Trees: SpecInfer (2305.09781, Algorithm 2) with siblings drawn without replacement: after a sibling is
rejected p becomes norm(max(0, p - q)) and q loses that sibling. A deterministic candidate is a draw from a one-hot q.

Chains may be judged as a whole (`block`, lossless too): Sun et al. (2403.10444, Algorithm 2). A token that is likelier under p than
under q lends its surplus to those behind it, so a chain is accepted to position i with the chance of the running product of p/q,
cut to 1 at each step; no valid rule accepts more tokens in expectation.

Lossy rule (`typical`): Medusa (2401.10774, section 3.3.2), p(x) > min(threshold, alpha * exp(-H(p))).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specrig.decoding.sampling import Sampler, draw
from specrig.decoding.simulated import SimulatedAcceptance
from specrig.decoding.types import Draft, Verdict

Criterion = Callable[[Tensor, int], bool]
"""Typical acceptance as a test of (p `[V]`, token)."""


def verify(
    draft: Draft,
    logits: Tensor,
    sampler: Sampler,
    *,
    active: Sequence[bool] | None = None,
    typical: Criterion | None = None,
    block: bool = False,
    simulated: SimulatedAcceptance | None = None,
) -> Verdict:
    """Judge `draft` by the target's `logits` `[B, n + 1, V]` (position 0 is the root, position i + 1 node i).

    Above temperature 0 `typical` replaces rejection sampling by that lossy rule, `block` (chains only) by block verification.
    `simulated` replaces the outcome, after all the work of judging, by a declared acceptance. Rows that are not `active` consume no
    randomness. Returns a Verdict without logits and hidden states.
    """
    active = [True] * len(logits) if active is None else list(active)
    if draft.parents is not None or (typical is not None and not sampler.greedy):
        verdict = _tree(draft, logits, sampler, active, typical)
    else:
        verdict = _chain_greedy(draft, logits) if sampler.greedy else _chain_sampled(draft, logits, sampler, active, block)
    return verdict if simulated is None else simulated(verdict, draft, active)


def _offered(draft: Draft) -> list[int]:
    B, n = draft.tokens.shape
    return [n] * B if draft.lengths is None else draft.lengths


def _chain_greedy(draft: Draft, logits: Tensor) -> Verdict:
    choices = logits.argmax(-1)
    # One transfer to the host a round: everything else is list work on a few integers.
    chosen, drafted = choices.tolist(), draft.tokens.tolist()
    tokens, paths, overlap, reached = [], [], [], []
    for row, length in enumerate(_offered(draft)):
        accepted = 0
        while accepted < length and drafted[row][accepted] == chosen[row][accepted]:
            accepted += 1
        tokens.append(chosen[row][: accepted + 1])
        paths.append(list(range(accepted)))
        overlap.append(float(accepted))  # p and q are one-hot: Σ min(p, q) is 1 where they agree, else 0
        reached.append(min(accepted + 1, length))
    return Verdict(tokens, paths, overlap, reached)


def _chain_sampled(draft: Draft, logits: Tensor, sampler: Sampler, active: list[bool], block: bool) -> Verdict:
    B, n = draft.tokens.shape
    lengths = _offered(draft)
    p = sampler.probs(logits)
    uniforms = sampler.uniforms([length + 1 if on else 0 for length, on in zip(lengths, active, strict=True)])
    if n:
        index = draft.tokens.unsqueeze(-1)
        p_token = p[:, :n].gather(-1, index).squeeze(-1)
        if draft.probs is None:
            q_token, shared = torch.ones_like(p_token), p_token
        else:
            q_token = draft.probs.gather(-1, index).squeeze(-1)
            shared = torch.minimum(p[:, :n], draft.probs).sum(-1)
        offered = None
        if draft.lengths is not None:
            offered = torch.tensor(lengths, device=p.device).unsqueeze(-1)
        if block:
            lent, chance = _block(p, q_token, p_token, draft, offered)
            kept = uniforms[:, :n] < chance
        else:
            # u < p/q as u*q < p: no division, and p = 0 is never accepted.
            kept = uniforms[:, :n] * q_token < p_token
        places = torch.arange(1, n + 1, device=p.device)
        if offered is not None:
            kept &= places <= offered
        counts = (kept * places).amax(-1) if block else kept.long().cumprod(-1).sum(-1)
        accepted, shares = counts.tolist(), shared.tolist()
    else:
        accepted, shares = [0] * B, [[] for _ in range(B)]
    rows = torch.arange(B, device=p.device)
    residual = p[rows, torch.tensor(accepted, device=p.device)]
    for row, (count, length) in enumerate(zip(accepted, lengths, strict=True)):
        if count < length:
            q = None if draft.probs is None else draft.probs[row, count]
            scale = lent[row, count - 1] if block and count else 1.0
            residual[row] = _residual(scale * residual[row], q, draft.tokens[row, count])
    last = torch.tensor([[length] for length in lengths], device=p.device) if B > 1 else None
    final = uniforms[:, lengths[0]] if last is None else uniforms.gather(1, last).squeeze(1)
    extra = draw(residual, final).tolist()
    drafted = draft.tokens.tolist()
    reached = [min(count + 1, length) for count, length in zip(accepted, lengths, strict=True)]
    return Verdict(
        tokens=[[*drafted[row][: accepted[row]], extra[row]] for row in range(B)],
        paths=[list(range(count)) for count in accepted],
        overlap=[sum(shares[row][: reached[row]]) for row in range(B)],
        reached=reached,
    )


def _block(p: Tensor, q_token: Tensor, p_token: Tensor, draft: Draft, offered: Tensor | None) -> tuple[Tensor, Tensor]:
    """Of a chain (2403.10444, eq. 3 and 4), both `[B, n]`: the running product w of p/q, cut to 1 at each step, and the chance that the
    chain is accepted up to here, given that it was not up to any later position.

    That chance is S / (S + 1 - w), S = Σ_x max(0, w p - q) over the next position; for the last token offered it is w.
    """
    ratios = p_token / q_token  # a drawn token has q > 0
    weights = [torch.ones_like(ratios[:, 0])]
    for ratio in ratios.unbind(-1):
        weights.append((weights[-1] * ratio).clamp(max=1.0))
    w = torch.stack(weights[1:], -1)
    n = w.shape[1]
    if draft.probs is None:  # q is one-hot: all of w p but the drafted token's share is left
        left = (w[:, :-1] - w[:, :-1] * p_token[:, 1:]).clamp(min=0.0)
    else:
        left = (w[:, :-1].unsqueeze(-1) * p[:, 1:n] - draft.probs[:, 1:]).clamp_(min=0.0).sum(-1)
    rest = left + 1.0 - w[:, :-1]
    # Nothing left and w = 1: p and q agree on the next position, and what is drawn there afresh is drawn from p.
    chance = torch.cat((torch.where(rest > 0, left / rest, 1.0), w[:, -1:]), -1)
    if offered is not None:
        chance = torch.where(torch.arange(1, n + 1, device=w.device) == offered, w, chance)
    return w, chance


def _residual(p: Tensor, q: Tensor | None, token: Tensor | int) -> Tensor:
    """norm(max(0, p - q)) up to its norm; with q None a one-hot on `token`. Falls back to p where rounding left nothing."""
    if q is None:
        rest = p.clone()
        rest[token] = 0.0
    else:
        rest = (p - q).clamp_(min=0.0)
    total = rest.sum()
    return rest / total if total > 0 else p


def _tree(draft: Draft, logits: Tensor, sampler: Sampler, active: list[bool], typical: Criterion | None) -> Verdict:
    n = draft.tokens.shape[1]
    drafted = draft.tokens.tolist()
    choices = logits.argmax(-1).tolist() if sampler.greedy else None
    p = None if sampler.greedy else sampler.probs(logits)
    tokens, paths, overlaps, reacheds = [], [], [], []
    for row, length in enumerate(_offered(draft)):
        parents = list(range(-1, n - 1)) if draft.parents is None else draft.parents[row]
        children: dict[int, list[int]] = {}
        for node in range(min(length, n - draft.probes)):
            children.setdefault(parents[node], []).append(node)
        if choices is not None:
            path, extra, overlap, reached = _walk_greedy(children, drafted[row], choices[row])
        elif typical is not None:
            assert p is not None
            path, extra, overlap, reached = _walk_typical(children, drafted[row], p[row], typical, sampler, row, active[row])
        else:
            assert p is not None
            q = None if draft.probs is None else draft.probs[row]
            path, extra, overlap, reached = _walk_sampled(children, drafted[row], p[row], q, sampler, row, active[row])
        tokens.append([*(drafted[row][node] for node in path), extra])
        paths.append(path)
        overlaps.append(overlap)
        reacheds.append(reached)
    return Verdict(tokens, paths, overlaps, reacheds)


Walk = tuple[list[int], int, float, int]


def _walk_greedy(children: dict[int, list[int]], drafted: list[int], choices: list[int]) -> Walk:
    path: list[int] = []
    node, reached = -1, 0
    while node in children:
        reached += 1
        found = next((child for child in children[node] if drafted[child] == choices[node + 1]), None)
        if found is None:
            break
        path.append(found)
        node = found
    return path, choices[node + 1], float(len(path)), reached


def _uniform(sampler: Sampler, row: int, active: bool) -> Tensor:
    return (
        torch.rand((), generator=sampler.streams[row], device=sampler.device)
        if active
        else torch.zeros((), device=sampler.device)
    )


def _walk_sampled(
    children: dict[int, list[int]],
    drafted: list[int],
    p: Tensor,
    q: Tensor | None,
    sampler: Sampler,
    row: int,
    active: bool,
) -> Walk:
    path: list[int] = []
    node, reached, overlap = -1, 0, 0.0
    while True:
        rest = p[node + 1]
        siblings = children.get(node, [])
        left = None if q is None or not siblings else q[node + 1]
        if siblings:
            reached += 1
            overlap += float(rest[drafted[siblings[0]]] if left is None else torch.minimum(rest, left).sum())
        for child in siblings:
            token = drafted[child]
            if left is not None and left[token] <= 0:
                continue  # q had fewer tokens than siblings were asked of it: this one was never drawn
            chance = rest[token] if left is None else rest[token] / left[token]
            if _uniform(sampler, row, active) < chance:
                path.append(child)
                node = child
                break
            rest = _residual(rest, left, token)
            if left is not None:
                left = _residual(left, None, token)
        else:
            return path, int(draw(rest, _uniform(sampler, row, active))), overlap, reached


def _walk_typical(
    children: dict[int, list[int]],
    drafted: list[int],
    p: Tensor,
    typical: Criterion,
    sampler: Sampler,
    row: int,
    active: bool,
) -> Walk:
    """The longest path whose every token passes; among equals the first offered."""
    best: list[int] = []
    stack: list[tuple[int, list[int]]] = [(-1, [])]
    while stack:
        node, path = stack.pop()
        if len(path) > len(best):
            best = path
        for child in reversed(children.get(node, [])):
            if typical(p[node + 1], drafted[child]):
                stack.append((child, [*path, child]))
    last = best[-1] if best else -1
    reached = len(best) + (last in children)
    extra = int(draw(p[last + 1], _uniform(sampler, row, active)))
    return best, extra, float(len(best)), reached


def typical_acceptance(threshold: float, alpha: float) -> Criterion:
    """Medusa's rule: accept x where p(x) > min(threshold, alpha * exp(-H(p))), H the entropy in nats (2401.10774, eq. 3)."""

    def accepts(p: Tensor, token: int) -> bool:
        entropy = -(p * p.clamp(min=1e-20).log()).sum()
        return bool(p[token] > torch.minimum(torch.tensor(threshold), alpha * torch.exp(-entropy)))

    return accepts
