"""Traversal verification of trees (Weng et al., 2505.12398): paths are judged as wholes, from the leaves to the root.

Lossless where the tree's shape is fixed before anything is drawn and the children of different nodes are drawn
independently: a node is judged after the nodes below its elder siblings, so these must not depend on the node's own
draw. EAGLE-2's trees and Medusa's shared draws do not meet this condition; deterministic candidates do.

Why it is lossless, by induction over the siblings that are left: a node of weight w and distribution p is to give the
text behind it with measure w p. Its next child x, drawn from q, gives min(w p(x), q(x)), since its own weight is min(1,
w p(x) / q(x)). Left to give is max(0, w p - q), of sum S; the child was rejected with probability 1 - Σ min(w p, q) =
S + 1 - w. So what is left is the same problem with w' = S / (S + 1 - w), p' = max(0, w p - q) / S, and q without the
child, whichever it was. Without children the node accepts with probability w and draws from p. The root has weight 1,
and keeps it.

Shapes: B rows, n nodes a row, V vocabulary. Tensors over slots have the root at slot 0 and node i at slot i + 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specrig.decoding.sampling import Sampler, draw, to_full_vocabulary
from specrig.decoding.types import Draft, Verdict
from specrig.decoding.verify_tree import Children, add_row, empty_verdict, parent_slots, prepared, read_rows, residual
from specrig.runtime.device import on_device


def verify_traversal(draft: Draft, logits: Tensor, sampler: Sampler, active: Sequence[bool]) -> Verdict:
    """Judge each row's tree above temperature 0. Each node is visited after the nodes below it. The first node whose
    uniform is below its weight ends the accepted path; the root is always accepted.

    logits: `[B, n + 1, V]`. Uniforms are used as in `verify_tree`.
    """
    draft, p, uniforms = prepared(draft, logits, sampler, active)
    B, n = draft.tokens.shape
    weights, rest = traversal_weights(draft, p)
    passed = uniforms[:, :n] < weights[:, 1:]
    # Σ_x min(p, q) by slot; of one-hot q by node, p of its token: the first child's is its slot's.
    if draft.probs is None:
        shares = p[torch.arange(B, device=p.device).unsqueeze(1), parent_slots(draft), draft.tokens]
    else:
        q = to_full_vocabulary(draft.probs, draft.vocabulary, p.shape[-1])
        shares = torch.minimum(p[:, : q.shape[1]], q).sum(-1)
    ends = on_device(draft.offered, p.device).unsqueeze(1)
    # A GPU draws for every slot at which the path may end, so that the host waits for it only once.
    at_once = p.device.type == "cuda"
    every = draw(rest, uniforms.gather(1, ends).expand(B, n + 1)) if at_once else passed[:, :0]

    verdict, counts = empty_verdict(draft), draft.offered
    for index, row in enumerate(read_rows(draft, passed, every, shares)):
        passes, extras, overlaps = row.values[:n], row.values[n : n + every.shape[1]], row.values[n + every.shape[1] :]
        if draft.probs is None:
            overlaps = [overlaps[row.children[node][0]] if node in row.children else 0.0 for node in range(-1, n)]
        path = _deepest(row.children, passes, -1) or []
        end = path[-1] + 1 if path else 0
        extra = extras[end] if at_once else int(draw(rest[index, end], uniforms[index, counts[index]]))
        add_row(verdict, row, path, extra, overlaps)
    return verdict


def traversal_weights(draft: Draft, p: Tensor) -> tuple[Tensor, Tensor]:
    """By slot, the probability that the path to it is accepted once all that is below was rejected, `[B, n + 1]`, and
    what the token behind it is then drawn from, `[B, n + 1, V]` (2505.12398, Algorithm 1).

    Neither depends on what is accepted: a node's younger child is met only where the elder ones were rejected.
    """
    B, n = draft.tokens.shape
    slots, rows = parent_slots(draft), torch.arange(B, device=p.device)
    counts = on_device(draft.offered, p.device)
    w, rest = p.new_ones(B, n + 1), p.clone()
    left = None
    if draft.probs is not None:
        left = to_full_vocabulary(draft.probs, draft.vocabulary, p.shape[-1]).clone()
    for node in range(n):  # a parent stands before its children, an elder sibling before a younger one
        slot, token = slots[:, node], draft.tokens[:, node : node + 1]
        own, at = w[rows, slot].unsqueeze(1), rest[rows, slot]
        here = own * at  # w p, [B, V]
        if left is None:
            drawn, goes, short = node < counts, here.gather(1, token), here.scatter(1, token, 0.0)
        else:
            slot = slot.clamp(max=left.shape[1] - 1)  # behind them there are no children
            q = left[rows, slot]
            chance = q.gather(1, token)
            drawn = (node < counts) & (chance[:, 0] > 0)  # q = 0: it was never drawn
            goes, short = here.gather(1, token) / chance.clamp(min=1e-38), (here - q).clamp_(min=0.0)
            left[rows, slot] = torch.where(drawn.unsqueeze(1), residual(q, None, token[:, 0]), q)
        w[:, node + 1] = torch.where(drawn, goes[:, 0].clamp(max=1.0), 0.0)
        total = short.sum(-1, keepdim=True)
        # Where rounding left nothing of a certain node, a rejection could not have been.
        after = torch.where(total > 0, total / (total + 1.0 - own), (own >= 1.0).to(own.dtype))
        kept = drawn.unsqueeze(1)
        w[rows, slots[:, node]] = torch.where(kept, after, own)[:, 0]
        rest[rows, slots[:, node]] = torch.where(kept & (total > 0), short / total, at)
    return w, rest


def _deepest(children: Children, passes: Sequence[float], node: int) -> list[int] | None:
    """The path from below `node` to the first node that passes, each after all that is below it; None: not even `node`."""
    for child in children.get(node, []):
        if (path := _deepest(children, passes, child)) is not None:
            return [child, *path]
    return [] if node < 0 or passes[node] else None
