"""The cost of one round of each method by the roofline: drafting plus verification, in one-token passes of the target."""

from __future__ import annotations

from dataclasses import dataclass

from specrig.analysis import roofline
from specrig.analysis.roofline import Size
from specrig.models.facts.devices import Device

Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Head:
    """The size of a method's drafting head and of its verification, as the defaults of the paper have them.

    width: tokens that one target pass verifies. passes: passes of the head per round. layers, squares, outputs: what
    the head consists of, counted in decoder layers, hidden × hidden matrices and output heads of the target.
    """

    width: int
    passes: int = 0
    layers: float = 0.0
    squares: float = 0.0
    outputs: float = 0.0

    @property
    def depth(self) -> int | None:
        """Tokens on the longest drafted path; None if `passes` does not tell."""
        return self.passes if self.passes > 1 else None

    def size(self, target: Size) -> Size:
        """The size of the head for a target of the given size."""
        weights = self.layers * target.layer + self.squares * target.width**2 + self.outputs * target.embedding
        return Size(weights, weights)


HEADS = {
    "ngram": Head(width=11),  # prompt lookup: 10 tokens
    "lookahead": Head(width=120),  # 7B: (W + G)(N - 1) with W = G = 15, N = 5
    "medusa": Head(width=64, passes=1, squares=4, outputs=4),
    "hydra": Head(width=64, passes=4, squares=2, outputs=1),
    "eagle": Head(width=26, passes=5, layers=1, squares=2, outputs=1),
    "eagle2": Head(width=61, passes=6, layers=1, squares=2, outputs=1),
    "eagle3": Head(width=61, passes=6, layers=1, squares=3, outputs=0.25),  # a draft vocabulary of 32,000
    "token_recycling": Head(width=81),
    "rest": Head(width=64),
}
TREES = {"lookahead", "medusa", "hydra", "token_recycling", "rest"}
"""Methods whose width is that of their tree, whatever k is. The others are taken as chains where a source states k."""


def draft_costs(target: Size, draft: Size, device: Device | None, precision: str) -> Range:
    """(lowest, highest) draft cost c in target passes: by parameters, and by the roofline of a known device."""
    found = [draft.active / target.active]
    if device is not None:
        found.append(roofline.draft_cost(target, draft, device, precision))
    return min(found), max(found)


def round_cost(
    method: str, k: int | None, target: Size, drafts: list[Size], device: Device | None, precision: str, batch: int
) -> Range | None:
    """(lowest, highest) cost of a round in one-token target passes; None for a method that is not known here.

    k: drafted tokens per round; None means the method's default. drafts: the draft models that the claim may mean.
    device: None means that only the reading of weights counts.
    """
    head = HEADS.get(method)
    if head is None and not drafts:
        return None
    passes = k if k is not None else (head.passes if head else 4)
    width = head.width if head and (k is None or method in TREES) else passes + 1
    v = roofline.verify_cost(target, device, precision, width, batch)
    if head is not None:
        times = passes if head.passes > 1 else head.passes
        low, high = draft_costs(target, head.size(target), device, precision)
        return times * low + v, times * high + v
    costs = [draft_costs(target, draft, device, precision) for draft in drafts]
    return passes * min(low for low, _ in costs) + v, passes * max(high for _, high in costs) + v
