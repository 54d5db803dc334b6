"""Verification of trees, and of chains under typical acceptance: see `verify` for the rules and their sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specrig.decoding.device import on_device
from specrig.decoding.sampling import Sampler, draw
from specrig.decoding.types import Criterion, Draft, Verdict

Children = dict[int, list[int]]
"""Node -> its children in the order of drafting; the root is -1."""
Test = Callable[[int, int], bool]
"""Of (node, child): whether the child is accepted, given that node was and its elder siblings were not."""


def verify_tree(draft: Draft, logits: Tensor, sampler: Sampler, active: Sequence[bool], typical: Criterion | None) -> Verdict:
    """Walk each row's tree from the root: accept a child where the rule says so, add the target's own token where the path ends.

    Above temperature 0 a row takes one uniform for each node it offers, to judge it by, and one for the token at the end.
    """
    if sampler.greedy:
        return _greedy(draft, logits)
    p = sampler.probs(logits)
    if not all(active):  # a finished row offers nothing, so that nobody walks its tree
        draft.lengths = [count if on else 0 for count, on in zip(draft.offered, active, strict=True)]
    counts = draft.offered
    n = draft.tokens.shape[1]
    uniforms = sampler.uniforms([count + 1 if on else 0 for count, on in zip(counts, active, strict=True)], n + 1)
    if typical is not None:
        return _typical(draft, p, uniforms, typical)
    # On a processor the walk computes what it meets, on a GPU all nodes are judged at once, to wait for it only once.
    return _judged(draft, p, uniforms) if p.device.type == "cuda" else _walked(draft, p, uniforms)


def _read(draft: Draft, *parts: Tensor) -> tuple[list[Children], list[list[int]], list[list[float]]]:
    """Per row the children of each node, the drafted tokens, and what `parts` `[B, any]` hold, joined: in one transfer."""
    n = draft.tokens.shape[1]
    known = [draft.parents] if isinstance(draft.parents, Tensor) else []
    # Doubles hold every token id.
    rows = torch.cat([part.double() for part in (draft.tokens, *known, *parts)] if parts else [draft.tokens, *known], 1).tolist()
    tokens = [[int(token) for token in row[:n]] for row in rows]
    if known:  # now that they are here, who asks next need not wait for the device again
        draft.parents = [[int(parent) for parent in row[n : 2 * n]] for row in rows]
    trees = [range(-1, n - 1)] * len(rows) if draft.parents is None else draft.parents
    children: list[Children] = []
    shared: dict[tuple[int, int], Children] = {}  # rows of a batch often have one tree
    for parents, count in zip(trees, draft.offered, strict=True):
        if (found := shared.get((id(parents), count))) is None:
            found = shared[id(parents), count] = {}
            for node, parent in enumerate(parents[:count]):
                found.setdefault(parent, []).append(node)
        children.append(found)
    return children, tokens, [row[n * (1 + len(known)) :] for row in rows]


def _add(
    verdict: Verdict, path: list[int], children: Children, tokens: list[int], extra: float, shares: Sequence[float] | None
) -> None:
    """One row's outcome; shares: Σ_x min(p, q) over the children of root and nodes, None where it is 1 if one is accepted, else 0."""
    visited = [-1, *path]
    visited = visited if visited[-1] in children else visited[:-1]
    verdict.drafted.append(tokens)
    verdict.tokens.append([*(tokens[node] for node in path), int(extra)])
    verdict.paths.append(path)
    verdict.reached.append(len(visited))
    verdict.overlap.append(float(len(path)) if shares is None else sum(shares[node + 1] for node in visited))


def _first(children: Children, accepted: Test) -> list[int]:
    """The path of the first child accepted at each node."""
    path: list[int] = []
    node: int | None = -1
    while (node := next((child for child in children.get(node, []) if accepted(node, child)), None)) is not None:  # type: ignore[arg-type]
        path.append(node)
    return path


def _greedy(draft: Draft, logits: Tensor) -> Verdict:
    verdict = Verdict([], [], [], [])
    for children, tokens, chosen in zip(*_read(draft, logits.argmax(-1)), strict=True):
        path = _first(children, lambda node, child, tokens=tokens, chosen=chosen: tokens[child] == chosen[node + 1])  # type: ignore[misc]
        _add(verdict, path, children, tokens, chosen[path[-1] + 1 if path else 0], None)
    return verdict


def _typical(draft: Draft, p: Tensor, uniforms: Tensor, typical: Criterion) -> Verdict:
    """The longest path whose every token passes; among equals the first offered."""
    B, n = draft.tokens.shape
    ends = on_device(draft.offered, p.device).unsqueeze(1)
    extra = draw(p, uniforms.gather(1, ends).expand(B, n + 1))
    above = _above(draft)
    passed = p[torch.arange(B, device=p.device).unsqueeze(1), above, draft.tokens] > typical(p).gather(1, above)
    verdict = Verdict([], [], [], [])
    for children, tokens, rest in zip(*_read(draft, passed.long(), extra), strict=True):
        best: list[int] = []
        stack: list[tuple[int, list[int]]] = [(-1, [])]
        while stack:
            node, path = stack.pop()
            best = path if len(path) > len(best) else best
            stack += [(child, [*path, child]) for child in reversed(children.get(node, [])) if rest[child]]
        _add(verdict, best, children, tokens, rest[n + (best[-1] + 1 if best else 0)], None)
    return verdict


def _above(draft: Draft) -> Tensor:
    """`[B, n]` the place of each node's parent among root and nodes."""
    B, n = draft.tokens.shape
    if isinstance(draft.parents, Tensor):
        return draft.parents + 1
    device = draft.tokens.device
    return torch.arange(n, device=device).expand(B, n) if draft.parents is None else on_device(draft.parents, device) + 1


def _width(draft: Draft) -> int:
    """Most children of a node, or no fewer."""
    if draft.width is not None or isinstance(draft.parents, Tensor):
        return draft.width or draft.tokens.shape[1]
    trees = {id(row): row for row in draft.parents or []}  # rows of a batch often share one
    return max((max(Counter(row).values()) for row in trees.values() if len(row)), default=1)


def _residual(p: Tensor, q: Tensor | None, token: Tensor) -> Tensor:
    """norm(max(0, p - q)) of `[..., V]`; with q None a one-hot on `token` `[...]`. Falls back to p where rounding left nothing."""
    rest = p.scatter(-1, token.unsqueeze(-1), 0.0) if q is None else (p - q).clamp_(min=0.0)
    total = rest.sum(-1, keepdim=True)
    return torch.where(total > 0, rest / total, p)


def _walked(draft: Draft, p: Tensor, uniforms: Tensor) -> Verdict:
    """Multi-candidate rejection sampling along the path that is taken."""
    verdict = Verdict([], [], [], [])
    judged, counts = uniforms.tolist(), draft.offered
    for row, (children, tokens, _) in enumerate(zip(*_read(draft), strict=True)):
        path: list[int] = []
        shares: dict[int, float] = {}
        node: int | None = -1
        while node is not None:
            here, rest = node, p[row, node + 1]
            siblings = children.get(node, [])
            left = None if draft.probs is None or not siblings else draft.probs[row, node + 1]
            if siblings:
                shares[node + 1] = float(rest[tokens[siblings[0]]] if left is None else torch.minimum(rest, left).sum())
            node = None
            for child in siblings:
                token = draft.tokens[row, child]
                q = 1.0 if left is None else float(left[token])
                if q <= 0:
                    continue  # q had fewer tokens than siblings were asked of it: this one was never drawn
                if judged[row][child] * q < float(rest[token]):
                    node = child
                    path.append(child)
                    break
                rest = _residual(rest, left, token)
                left = None if left is None else _residual(left, None, token)
        extra = int(draw(rest, uniforms[row, counts[row]]))
        _add(verdict, path, children, tokens, extra, [shares.get(place, 0.0) for place in range(here + 2)])
    return verdict


def _judged(draft: Draft, p: Tensor, uniforms: Tensor) -> Verdict:
    """The same for all nodes at once: at each, sibling after sibling as if none before it had been accepted."""
    B, n = draft.tokens.shape
    counts = on_device(draft.offered, p.device).unsqueeze(1)
    above = _above(draft)
    nodes = torch.arange(n, device=p.device)
    elder = (above.unsqueeze(1) == above.unsqueeze(2)) & (nodes < nodes.unsqueeze(1))
    rank = elder.sum(-1)
    width = _width(draft)
    m = n + 1 if draft.probs is None else draft.probs.shape[1]
    # Children by parent and rank; place n stands for none. What is padding or probe is nobody's child.
    table = torch.full((B, n + 1, width + 1), n, device=p.device)
    real = nodes < counts
    table.view(B, -1).scatter_(1, torch.where(real, above * (width + 1) + rank, width), torch.where(real, nodes, n))
    table = table[:, :m, :width]
    tokens = torch.cat((draft.tokens, draft.tokens.new_zeros(B, 1)), 1)
    chances = torch.cat((uniforms[:, :n], uniforms.new_ones(B, 1)), 1)
    rest, left = p[:, :m], draft.probs
    first = tokens.gather(1, table[:, :, 0])
    shares = rest.gather(-1, first.unsqueeze(-1)).squeeze(-1) if left is None else torch.minimum(rest, left).sum(-1)
    accepted = torch.zeros(B, n + 1, dtype=torch.bool, device=p.device)
    for place in range(width):
        child = table[:, :, place]
        token = tokens.gather(1, child)
        q = torch.ones_like(shares) if left is None else left.gather(-1, token.unsqueeze(-1)).squeeze(-1)
        offered = (child < n) & (q > 0)
        passed = (chances.gather(1, child) * q < rest.gather(-1, token.unsqueeze(-1)).squeeze(-1)) & offered
        accepted.scatter_(1, child, passed)
        rest = torch.where(offered.unsqueeze(-1), _residual(rest, left, token), rest)
        if left is not None and place + 1 < width:
            left = torch.where(offered.unsqueeze(-1), _residual(left, None, token), left)
    ends = torch.cat((rest, p[:, m:]), 1)
    extra = draw(ends, uniforms.gather(1, counts).expand(B, n + 1))
    verdict = Verdict([], [], [], [])
    for children, drafted, values in zip(*_read(draft, accepted[:, :n].long(), extra, shares), strict=True):
        path = _first(children, lambda _, child, values=values: bool(values[child]))  # type: ignore[misc]
        _add(verdict, path, children, drafted, values[n + (path[-1] + 1 if path else 0)], values[2 * n + 1 :])
    return verdict


def typical_acceptance(threshold: float, alpha: float) -> Criterion:
    """Medusa's rule: accept x where p(x) > min(threshold, alpha * exp(-H(p))), H the entropy in nats (2401.10774, eq. 3)."""

    def least(p: Tensor) -> Tensor:
        entropy = -(p * p.clamp(min=1e-20).log()).sum(-1)
        return (alpha * torch.exp(-entropy)).clamp(max=threshold)

    return least
