"""Verification of trees, and of chains under typical acceptance: see `verify` for the rules and their sources.

Shapes: B rows, n nodes a row, V vocabulary. Tensors over slots have the root at slot 0 and node i at slot i + 1.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from specrig.decoding.sampling import Sampler, draw, to_full_vocabulary
from specrig.decoding.types import Criterion, Draft, Verdict
from specrig.runtime.device import on_device, on_host

Children = dict[int, list[int]]
"""Node -> its children in the order of drafting; the root is -1."""
Test = Callable[[int, int], bool]
"""Of (node, child): whether the child is accepted, given that the node was and the child's elder siblings were not."""


class Row(NamedTuple):
    """One row of a draft as the host knows it, and what the device computed about it."""

    tokens: list[int]
    """Of all n nodes, those that count for nothing included."""
    parents: Sequence[int]
    children: Children
    """Of the nodes that the row offers, and of the root."""
    values: list[float]


def verify_tree(
    draft: Draft,
    logits: Tensor,
    sampler: Sampler,
    active: Sequence[bool],
    typical: Criterion | None,
) -> Verdict:
    """Above temperature 0. Walk each row's tree from the root: accept a child where the rule says so, add a token of the
    target's own where the path ends.

    logits: `[B, n + 1, V]`, the target's at the root and every node. An active row takes one uniform for each node that
    it offers, to judge the node by, and one for the token at the end. The draft is only read; the Verdict holds its
    tokens and parents for the host.
    """
    draft, p, uniforms = prepared(draft, logits, sampler, active)
    if typical is not None:
        return _typical(draft, p, uniforms, typical)
    # A processor judges only the nodes that the walk meets. A GPU judges all nodes at once, so that the host waits for
    # it only once.
    return _judged(draft, p, uniforms) if p.device.type == "cuda" else _walked(draft, p, uniforms)


def prepared(draft: Draft, logits: Tensor, sampler: Sampler, active: Sequence[bool]) -> tuple[Draft, Tensor, Tensor]:
    """The draft without the trees of finished rows, the target's distributions `[B, n + 1, V]`, and the uniforms `[B, n
    + 1]` that rows judge with: one for each node that is offered, then one for the token at the end.
    """
    p = sampler.probs(logits)
    if not all(active):  # a finished row offers nothing, so that nobody walks its tree
        draft = replace(draft, lengths=[count if on else 0 for count, on in zip(draft.offered, active, strict=True)])
    counts, n = draft.offered, draft.tokens.shape[1]
    uniforms = sampler.uniforms([count + 1 if on else 0 for count, on in zip(counts, active, strict=True)], n + 1)
    return draft, p, uniforms


def read_rows(draft: Draft, *parts: Tensor) -> list[Row]:
    """Bring the draft and `parts` `[B, any]` to the host in one transfer; a row's `values` are its parts, joined."""
    n = draft.tokens.shape[1]
    grown = [draft.parents] if isinstance(draft.parents, Tensor) else []  # a tree that only the device knows so far
    sent = (draft.tokens, *grown, *parts)
    if on_host(draft.tokens.device):
        lists = [draft.tokens.tolist() if draft.rows is None else draft.rows, *(part.tolist() for part in sent[1:])]
        received = [[*itertools.chain(*row)] for row in zip(*lists, strict=True)]
    else:  # doubles hold every token id
        received = torch.cat([part.double() for part in sent] if parts else sent, 1).tolist()
    rows = []
    shared: dict[tuple[int, int], Children] = {}  # rows of a batch often have one tree
    for index, (numbers, count) in enumerate(zip(received, draft.offered, strict=True)):
        parents: Sequence[int]
        if grown:
            parents = [int(parent) for parent in numbers[n : 2 * n]]
        else:
            parents = range(-1, n - 1) if draft.parents is None else draft.parents[index]  # type: ignore[assignment]
        children = shared.get((id(parents), count))
        if children is None:
            children = shared[id(parents), count] = {}
            for node, parent in enumerate(parents[:count]):
                children.setdefault(parent, []).append(node)
        tokens = [int(token) for token in numbers[:n]]
        rows.append(Row(tokens, parents, children, numbers[n * (1 + len(grown)) :]))
    return rows


def empty_verdict(draft: Draft) -> Verdict:
    """A verdict to which no row has been added yet."""
    return Verdict([], [], [], [], parents=None if draft.parents is None else [])


def add_row(verdict: Verdict, row: Row, path: list[int], extra: float, shares: Sequence[float] | None) -> None:
    """Add one row's outcome: the accepted path, then the token `extra`.

    shares: by slot, Σ_x min(p, q) over the children of the root and of each node. None at temperature 0, where the sum
    is 1 if a child is accepted and else 0.
    """
    visited = [-1, *path]
    visited = visited if visited[-1] in row.children else visited[:-1]  # at a leaf nothing was judged
    verdict.drafted.append(row.tokens)
    if verdict.parents is not None:
        verdict.parents.append(row.parents)
    verdict.tokens.append([*(row.tokens[node] for node in path), int(extra)])
    verdict.paths.append(path)
    verdict.reached.append(len(visited))
    verdict.overlap.append(float(len(path)) if shares is None else sum(shares[node + 1] for node in visited))


def _first(children: Children, accepted: Test) -> list[int]:
    """The path that takes, at each node, the first child that is accepted."""
    path: list[int] = []
    node: int | None = -1
    while (node := next((child for child in children.get(node, []) if accepted(node, child)), None)) is not None:  # type: ignore[arg-type]
        path.append(node)
    return path


def verify_tree_greedy(draft: Draft, choices: Tensor) -> Verdict:
    """Temperature 0: a child is accepted where its token is the target's choice at its parent. choices: `[B, n + 1]`."""
    verdict = empty_verdict(draft)
    for row in read_rows(draft, choices):
        chosen = [int(token) for token in row.values]  # by slot
        path = _first(row.children, lambda node, child: row.tokens[child] == chosen[node + 1])  # noqa: B023 - used at once
        add_row(verdict, row, path, chosen[path[-1] + 1 if path else 0], None)
        verdict.choices.append(chosen)
    return verdict


def _typical(draft: Draft, p: Tensor, uniforms: Tensor, typical: Criterion) -> Verdict:
    """Medusa's lossy rule: the longest path whose every token passes; of equally long paths the one offered first."""
    B, n = draft.tokens.shape
    # A token of the target's own for every slot at which the path may end, all drawn by the row's last uniform: [B, n
    # + 1].
    ends = on_device(draft.offered, p.device).unsqueeze(1)
    extra = draw(p, uniforms.gather(1, ends).expand(B, n + 1))
    # Each node's token must exceed the threshold of the target's distribution at its parent: [B, n].
    above = parent_slots(draft)
    passed = p[torch.arange(B, device=p.device).unsqueeze(1), above, draft.tokens] > typical(p).gather(1, above)
    verdict = empty_verdict(draft)
    for row in read_rows(draft, passed.long(), extra):
        passes, extras = row.values[:n], row.values[n:]
        best: list[int] = []
        stack: list[tuple[int, list[int]]] = [(-1, [])]
        while stack:
            node, path = stack.pop()
            best = path if len(path) > len(best) else best
            stack += [(child, [*path, child]) for child in reversed(row.children.get(node, [])) if passes[child]]
        add_row(verdict, row, best, extras[best[-1] + 1 if best else 0], None)
    return verdict


def parent_slots(draft: Draft) -> Tensor:
    """`[B, n]`: the slot of each node's parent."""
    B, n = draft.tokens.shape
    if isinstance(draft.parents, Tensor):
        return draft.parents + 1
    device = draft.tokens.device
    return (
        torch.arange(n, device=device).expand(B, n) if draft.parents is None else on_device(draft.parents, device) + 1
    )


def _width(draft: Draft) -> int:
    """The largest number of children that any node has, or an upper bound of it, known without asking the device."""
    if draft.width is not None or isinstance(draft.parents, Tensor):
        return draft.width or draft.tokens.shape[1]
    trees = {id(row): row for row in draft.parents or []}  # rows of a batch often share one
    return max((max(Counter(row).values()) for row in trees.values() if len(row)), default=1)


def residual(p: Tensor, q: Tensor | None, token: Tensor) -> Tensor:
    """What is left of p after a draw from q was rejected: norm(max(0, p - q)), `[..., V]`.

    q None is one-hot on `token` `[...]`. Where rounding left nothing the result is p.
    """
    rest = p.scatter(-1, token.unsqueeze(-1), 0.0) if q is None else (p - q).clamp_(min=0.0)
    total = rest.sum(-1, keepdim=True)
    return torch.where(total > 0, rest / total, p)


def _walked(draft: Draft, p: Tensor, uniforms: Tensor) -> Verdict:
    """Multi-candidate rejection sampling (2305.09781, Algorithm 2), siblings without replacement, along the path that
    is taken.

    p: `[B, n + 1, V]`, the target's distributions by slot; uniforms: `[B, n + 1]`, one a node and behind them the last
    token's.
    """
    verdict = empty_verdict(draft)
    host_uniforms, counts = uniforms.tolist(), draft.offered
    for index, row in enumerate(read_rows(draft)):
        path: list[int] = []
        shares: dict[int, float] = {}
        node: int | None = -1
        while node is not None:
            # At this node: `rest` is what is left of p, `left` what is left of q (None: one-hot), both `[V]`.
            here, rest = node, p[index, node + 1]
            siblings = row.children.get(node, [])
            known = None if draft.probs is None or not siblings else draft.probs[index, node + 1]
            left = None if known is None else to_full_vocabulary(known, draft.vocabulary, len(rest))
            if siblings:
                shares[node + 1] = float(
                    rest[row.tokens[siblings[0]]] if left is None else torch.minimum(rest, left).sum()
                )
            node = None
            for child in siblings:
                token = draft.tokens[index, child]
                q = 1.0 if left is None else float(left[token])
                if q <= 0:
                    continue  # q had fewer tokens than siblings that were drawn from it: this one was never drawn
                # Accept with probability min(1, p / q): u q < p needs no division.
                if host_uniforms[index][child] * q < float(rest[token]):
                    node = child
                    path.append(child)
                    break
                # Rejected: p loses what q covered, and q loses the sibling, for it cannot be drawn again.
                rest = residual(rest, left, token)
                left = None if left is None else residual(left, None, token)
        # The path ends here: the target's own token comes from what its rejected children left of p.
        extra = int(draw(rest, uniforms[index, counts[index]]))
        add_row(verdict, row, path, extra, [shares.get(slot, 0.0) for slot in range(here + 2)])
    return verdict


def _judged(draft: Draft, p: Tensor, uniforms: Tensor) -> Verdict:
    """`_walked` for all nodes at once: sibling after sibling at every node, as if none before it had been accepted.

    Only the host then walks, along the first accepted children. Everything stays on the device until one transfer at
    the end.
    """
    B, n = draft.tokens.shape
    counts = on_device(draft.offered, p.device).unsqueeze(1)
    above = parent_slots(draft)
    nodes = torch.arange(n, device=p.device)

    # A node's rank is the number of its elder siblings: [B, n] of [B, n (younger), n (elder)].
    elder = (above.unsqueeze(1) == above.unsqueeze(2)) & (nodes < nodes.unsqueeze(1))
    rank = elder.sum(-1)
    width = _width(draft)
    m = n + 1 if draft.probs is None else draft.probs.shape[1]  # slots that can have children

    # table[b, slot, rank]: the child of that rank, n where there is none. Padding and probes are nobody's children:
    # they are all written to the spare column `width` of the root, which is cut off.
    table = torch.full((B, n + 1, width + 1), n, device=p.device)
    real = nodes < counts
    table.view(B, -1).scatter_(1, torch.where(real, above * (width + 1) + rank, width), torch.where(real, nodes, n))
    table = table[:, :m, :width]

    # Node n, which is none, has token 0 and a uniform of 1, so that gathers by `table` are always in range.
    tokens = torch.cat((draft.tokens, draft.tokens.new_zeros(B, 1)), 1)
    node_uniforms = torch.cat((uniforms[:, :n], uniforms.new_ones(B, 1)), 1)

    # At every slot: what is left of p and of q, [B, m, V]; q None is one-hot. Σ_x min(p, q) before anything is
    # rejected: [B, m].
    rest, left = (
        p[:, :m],
        None if draft.probs is None else to_full_vocabulary(draft.probs, draft.vocabulary, p.shape[-1]),
    )
    first = tokens.gather(1, table[:, :, 0])
    shares = rest.gather(-1, first.unsqueeze(-1)).squeeze(-1) if left is None else torch.minimum(rest, left).sum(-1)

    accepted = torch.zeros(B, n + 1, dtype=torch.bool, device=p.device)
    for slot in range(width):
        # The next sibling at every slot: [B, m].
        child = table[:, :, slot]
        token = tokens.gather(1, child)
        q = torch.ones_like(shares) if left is None else left.gather(-1, token.unsqueeze(-1)).squeeze(-1)
        offered = (child < n) & (q > 0)  # q = 0: it was never drawn
        # Accept with probability min(1, p / q).
        passed = (node_uniforms.gather(1, child) * q < rest.gather(-1, token.unsqueeze(-1)).squeeze(-1)) & offered
        accepted.scatter_(1, child, passed)
        # As if rejected, for the younger siblings: p loses what q covered, q loses the sibling.
        rest = torch.where(offered.unsqueeze(-1), residual(rest, left, token), rest)
        if left is not None and slot + 1 < width:
            left = torch.where(offered.unsqueeze(-1), residual(left, None, token), left)

    # The target's own token for every slot at which the path may end, all by the row's last uniform: [B, n + 1]. A
    # path ends at a slot only if all children there were rejected, and `rest` is what they left.
    ends = torch.cat((rest, p[:, m:]), 1)
    extra = draw(ends, uniforms.gather(1, counts).expand(B, n + 1))

    verdict = empty_verdict(draft)
    for row in read_rows(draft, accepted[:, :n].long(), extra, shares):
        passes, extras, overlaps = row.values[:n], row.values[n : 2 * n + 1], row.values[2 * n + 1 :]
        path = _first(row.children, lambda _, child, passes=passes: bool(passes[child]))  # type: ignore[misc]
        add_row(verdict, row, path, extras[path[-1] + 1 if path else 0], overlaps)
    return verdict


def typical_acceptance(threshold: float, alpha: float) -> Criterion:
    """Medusa's rule: accept x where p(x) > min(threshold, alpha * exp(-H(p))), H the entropy in nats (2401.10774)."""

    def least(p: Tensor) -> Tensor:
        entropy = -(p * p.clamp(min=1e-20).log()).sum(-1)
        return (alpha * torch.exp(-entropy)).clamp(max=threshold)

    return least
