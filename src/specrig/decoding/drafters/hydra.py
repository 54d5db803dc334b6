"""Hydra: Medusa's static tree, filled by heads that read the tokens drafted above them.

Ankner et al., 2402.05109. A level is one pass of its head over all nodes that have children, each with its own path.
Medusa's heads give every node of a level the same choices instead; here a choice fits the one before it, for one pass a
level instead of one in all.

Above temperature 0 each node's children are drawn from its own distribution without replacement. The shape of the tree
is fixed before anything is drawn, and a node takes its draws in their order, whatever ranks the layout gave its
children.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specrig.decoding.drafters.medusa import Medusa, Ranks
from specrig.decoding.types import Context, Draft, MethodOptions, Resources

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Level:
    """How one level of a static tree is filled from its m parents' choices, a table `[m x width]`.

    open: m. slots, draws: each node's entry in that table, by its rank, or by how many siblings were born before it.
    opened: which of the level's nodes have children; origins: the position of their parents among this level's m.
    """

    open: int
    width: int
    slots: tuple[int, ...]
    draws: tuple[int, ...]
    opened: tuple[int, ...]
    origins: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A static tree, ready to be filled level by level.

    sources: which of the nodes that have children, counted from the root 0, each node is, up to the last that has any.
    """

    levels: list[Level]
    parents: list[int]
    sources: tuple[int, ...]

    @classmethod
    def of(cls, paths: Sequence[Ranks], vocabulary: int) -> Plan:
        """The plan of nodes in topological order, level by level. Nodes whose rank is beyond the vocabulary are left
        out.

        Example: (0,) (1,) (0, 0): the first level has one parent, the root, and two nodes, of which the first has a
        child.
        """
        paths = [path for path in paths if max(path) < vocabulary]
        index = {path: node for node, path in enumerate(paths)}
        having = {path[:-1] for path in paths}
        levels: list[Level] = []
        above: list[Ranks] = [()]
        number: dict[Ranks, int] = {(): 0}
        for depth in range(1, 1 + max(map(len, paths))):
            members = [path for path in paths if len(path) == depth]
            place = {path: at for at, path in enumerate(above)}
            width = 1 + max(path[-1] for path in members)
            births = [sum(other[:-1] == path[:-1] for other in members[:at]) for at, path in enumerate(members)]
            opened = [at for at, path in enumerate(members) if path in having]
            levels.append(
                Level(
                    open=len(above),
                    width=width,
                    slots=tuple(place[path[:-1]] * width + path[-1] for path in members),
                    draws=tuple(place[path[:-1]] * width + birth for path, birth in zip(members, births, strict=True)),
                    opened=tuple(opened),
                    origins=tuple(place[members[at][:-1]] for at in opened),
                )
            )
            above = [members[at] for at in opened]
            number |= {path: len(number) + at for at, path in enumerate(above)}
        parents = [index.get(path[:-1], -1) for path in paths]
        return cls(levels, parents, (0, *(number.get(path, 0) for path in paths[: max(parents) + 1])))


class Hydra(Medusa):
    """The heads read the state that the LM head chose the last token from, the last token, and what was drafted behind
    it.
    """

    name = "hydra"
    summary = "Medusa heads that read the tokens drafted before, a static tree (Hydra 2402.05109)"
    needs = ("hydra",)

    def __init__(self, options: MethodOptions, resources: Resources) -> None:
        super().__init__(options, resources)
        self.plans: dict[int, Plan] = {}

    def load(self) -> Any:
        """The trained heads."""
        from specrig.heads.hydra import module as hydra

        return hydra.load(self.resources.head("hydra"), self.resources.target)

    def propose(self, context: Context, k: int) -> Draft:
        """One pass of a head a level."""
        import torch

        from specrig.runtime.device import constant, on_device

        heads, sampler = self.heads, context.sampler
        plan = self.plans.get(k)
        if plan is None:
            paths = self.options.paths(heads.accuracy, min(k, heads.count))
            plan = self.plans[k] = Plan.of(paths, heads.tokens)
        # Typical acceptance asks how likely a candidate is, not where it came from: the paper offers it the most likely
        # ones.
        ranked = sampler.greedy or self.options.acceptance == "typical"
        device = self.hidden.device
        # What each of the m nodes with children is continued from, [B, m, (depth + 2) D]: the state and the tokens of
        # its path.
        last = on_device([tokens[-1:] for tokens in context.tokens], device)
        inputs = torch.cat((self.hidden.unsqueeze(1), heads.embed(last)), -1)
        tokens: list[Tensor] = []
        probs: list[Tensor] = []
        for depth, level in enumerate(plan.levels):
            logits = heads(inputs, depth)
            if ranked:
                chosen = logits.topk(level.width, -1).indices
            else:
                # A row draws for no more levels than it can use, so that it samples the same in a batch as alone.
                chosen, q = sampler.candidates(
                    logits, level.width, [level.open * (own > depth) for own in context.depths]
                )
                assert q is not None
                probs.append(q)
            # The table of choices [B, m · width] -> the level's nodes [B, n].
            nodes = heads.target_ids(chosen.flatten(1)[:, constant(level.slots if ranked else level.draws, device)])
            tokens.append(nodes)
            if level.opened:
                grown = heads.embed(nodes[:, constant(level.opened, device)])
                inputs = torch.cat((inputs[:, constant(level.origins, device)], grown), -1)
        sources = torch.cat(probs, 1)[:, constant(plan.sources, device)] if probs else None
        chain = plan.parents == list(range(-1, len(plan.parents) - 1))  # cheaper to verify
        return Draft(
            torch.cat(tokens, 1), None if chain else [plan.parents] * len(last), sources, vocabulary=heads.vocabulary
        )
