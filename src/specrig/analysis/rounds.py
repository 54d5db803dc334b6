"""The cost of one round of each method by the roofline: drafting plus verification, in one-token passes of the target."""

from __future__ import annotations

from functools import cache

from specrig.analysis import roofline
from specrig.analysis.roofline import Size
from specrig.decoding.drafters import registry
from specrig.decoding.types import PaperRound
from specrig.models.facts.devices import Device

Range = tuple[float, float]


@cache
def papers() -> dict[str, PaperRound]:
    """Method -> a round with the defaults of its paper; methods without a head or a pass of their own are left out."""
    return {name: vars(drafter)["paper"] for name, drafter in registry().items() if "paper" in vars(drafter)}


def head_size(paper: PaperRound, target: Size) -> Size:
    """The size of a method's head for a target of this size."""
    weights = paper.layers * target.layer + paper.squares * target.width**2 + paper.outputs * target.embedding
    return Size(weights, weights)


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
    paper = papers().get(method)
    if paper is None and not drafts:
        return None
    passes = k if k is not None else (paper.passes if paper else 4)
    width = paper.width if paper and (k is None or paper.tree) else passes + 1
    v = roofline.verify_cost(target, device, precision, width, batch)
    if paper is not None:
        times = passes if paper.passes > 1 else paper.passes
        low, high = draft_costs(target, head_size(paper, target), device, precision)
        return times * low + v, times * high + v
    costs = [draft_costs(target, draft, device, precision) for draft in drafts]
    return passes * min(low for low, _ in costs) + v, passes * max(high for _, high in costs) + v
