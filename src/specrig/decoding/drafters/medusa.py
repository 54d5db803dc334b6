"""Medusa: heads on the target's last hidden state draft all positions at once, a static tree of their choices is
verified.

Cai et al., 2401.10774. The heads need no pass through a model of their own, but no head knows what the head before it
chose. So several choices of each head are offered, as a tree. Heads with a bias of the token before (`heads.markov`)
know that one token: their tree is filled level by level, and each node has children of its own, as in Hydra's.

Above temperature 0 a head's choices are drawn from its distribution without replacement, once a level, and every node's
children on that level are the first few of these draws. This is exact for three reasons: the shape of the tree is fixed
before anything is drawn, levels are drawn independently of each other, and verification walks down one path, so it
meets each level's draws once. A node takes the draws in their order, whatever ranks the layout gave its children,
because leaving out a draw would change the distribution of the later ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from specrig.decoding.draft_size import DEARER, DraftSize
from specrig.decoding.static_tree import (
    FALLBACK,
    MOST,
    FittedTree,
    FixedTree,
    Layout,
    Plan,
    Ranks,
    assumed_accuracy,
    regular_tree,
    sparse_tree,
)
from specrig.decoding.types import Context, Draft, Drafter, MethodOptions, PaperRound, Resources, Verdict, empty_draft

if TYPE_CHECKING:
    from torch import Tensor

    from specrig.decoding.types import Criterion


WIDEST = 8
"""Choices of a head that a fitted tree may hold, where nobody measured how good they are."""


class TreeOptions(MethodOptions):
    """tree: branching per level of a regular tree; None: the `nodes` most promising nodes by the heads' measured
    accuracies; nodes: auto takes as many as pay here (`decoding.draft_size`).
    """

    tree: tuple[int, ...] | None = Field(None, min_length=1)
    nodes: Annotated[int, Field(ge=1, le=200)] | Literal["auto"] = 16

    def shape(self, accuracy: Sequence[Sequence[float]], drafter: Drafter) -> FixedTree | FittedTree:
        """The trees of a drafter's batch, for heads of this accuracy."""
        if self.tree is None and self.nodes == "auto":
            size = DraftSize(drafter.resources.pass_costs(), DEARER)
            return FittedTree(size, accuracy or assumed_accuracy(WIDEST, MOST))
        return FixedTree(partial(self.paths, accuracy))

    def paths(self, accuracy: Sequence[Sequence[float]], depth: int) -> list[Ranks]:
        """Its nodes by their paths of ranks, level by level."""
        if self.tree is None and accuracy:
            assert self.nodes != "auto"  # see `shape`
            return sparse_tree(accuracy, self.nodes, depth)
        return regular_tree(self.tree or FALLBACK, depth)


class Medusa(Drafter):
    """The heads read the hidden state that the LM head chose the last token from; head 0 drafts the token after that
    one.
    """

    name = "medusa"
    summary = "heads on the target's hidden state draft a static tree (Medusa 2401.10774)"
    family = "heads"
    needs = ("medusa",)
    paper = PaperRound(width=64, passes=1, squares=4, outputs=4, tree=True)

    class Options(TreeOptions):
        """acceptance: `exact` and `traversal` are lossless; `typical` (by posterior_threshold and posterior_alpha) is
        lossy above temperature 0.

        `k` bounds the tree's depth, which cannot exceed the number of trained heads.
        """

        acceptance: Literal["exact", "traversal", "typical"] = "exact"
        posterior_threshold: float = Field(0.09, gt=0, le=1)
        posterior_alpha: float = Field(0.3, gt=0, le=1)

    def __init__(self, options: MethodOptions, resources: Resources) -> None:
        super().__init__(options, resources)
        self.heads = self.load()
        self.layouts: dict[tuple[Ranks, ...], Layout] = {}
        self.plans: dict[tuple[Ranks, ...], Plan] = {}

    def load(self) -> Any:
        """The trained heads."""
        from specrig.heads.medusa import module as medusa

        return medusa.load(self.resources.head("medusa"), self.resources.target)

    def criterion(self) -> Criterion | None:
        """Medusa's typical acceptance, where the options name it."""
        from specrig.decoding.verify_tree import typical_acceptance

        if self.options.acceptance != "typical":
            return None
        return typical_acceptance(self.options.posterior_threshold, self.options.posterior_alpha)

    def begin(self, context: Context, hidden: Tensor, aux_hidden_states: Tensor | None = None) -> None:
        """Start from the prompts' last positions."""
        from specrig.runtime.device import at_each

        self.heads.watch.clear()
        # A copy: to time passes for the shape of the tree may overwrite what the target's last pass returned.
        self.hidden = at_each(hidden, [len(tokens) - 2 for tokens in context.tokens]).clone()
        self.shape = self.options.shape(self.heads.accuracy, self)

    def propose(self, context: Context, k: int) -> Draft:
        """One pass of the heads, all levels at once; with a bias of the token before, their logits are then read level
        by level.
        """
        paths = self.shape.tree(min(k, self.heads.count))
        if not paths:
            return empty_draft(context)
        # Typical acceptance asks how likely a candidate is, not where it came from: the paper offers it the most likely
        # ones.
        ranked = self.options.acceptance == "typical"
        # What is judged below one node must say nothing of another's children: each node draws its own.
        apart = self.options.acceptance == "traversal" and not context.sampler.greedy
        if self.heads.markov is not None or apart:
            plan = self.plan(paths)
            logits = self.heads(self.hidden, plan.depth)
            children = partial(self.heads.biased, logits)
            return plan.fill(children, context, ranked=ranked, vocabulary=self.heads.vocabulary)
        if paths not in self.layouts:
            self.layouts[paths] = Layout.of(paths, self.heads.tokens)
        layout = self.layouts[paths]
        return layout.fill(
            self.heads(self.hidden, layout.depth), context, ranked=ranked, vocabulary=self.heads.vocabulary
        )

    def plan(self, paths: tuple[Ranks, ...]) -> Plan:
        """These nodes, to be filled level by level."""
        if paths not in self.plans:
            self.plans[paths] = Plan.of(paths, self.heads.tokens)
        return self.plans[paths]

    def observe(self, verdict: Verdict) -> None:
        """Go on from the node that the round's last token was chosen at."""
        from specrig.runtime.device import at_each

        assert verdict.hidden is not None
        self.shape.learn(verdict)
        self.hidden = at_each(verdict.hidden, [path[-1] + 1 if path else 0 for path in verdict.paths])

    def passes(self) -> dict[int, tuple[int, float]]:
        """The heads' bare passes."""
        return self.heads.pass_totals()
