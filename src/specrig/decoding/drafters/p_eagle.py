"""P-EAGLE: EAGLE-3's head drafts k tokens in one pass. Worth it where a chain's k passes cost more than they bring.

2602.01469. The head runs what was accepted and k - 1 masks, and names a token at each. No token knows the one drafted
before it: above temperature 0 each is sampled from a distribution of its own, so exact rejection sampling applies. A
head with a bias of the token before (`heads.markov`) knows that one token: its logits are then read one by one.

The logits of all k levels stand after that pass. So a tree (`nodes`) drafts at no further cost, and pays where the
target verifies a few more tokens cheaply. Its nodes are those of highest value, as in EAGLE-2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, log
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from specrig.decoding.draft_size import DraftSize
from specrig.decoding.drafters.eagle3 import Eagle3
from specrig.decoding.static_tree import MOST
from specrig.decoding.types import ChainOptions, Context, Draft, Verdict, empty_draft, tree_draft

if TYPE_CHECKING:
    from typing import Self

    from torch import Tensor

LEAST = 1e-30
"""Below this chance nothing is drafted, whatever it costs."""
Tree = tuple[list[int], list[int], list[float]]
"""A row's nodes, best first: their tokens, their parents (-1: the text) and the logarithms of their chances."""
Blend = Callable[[int, Tree, Sequence[float]], Tree]
"""From a row, its tree, and the lowest values of the 1st, 2nd, … node, as many as there are nodes at most."""


class PEagle(Eagle3):
    """One pass of the head a round, whatever k is."""

    name = "p_eagle"
    summary = "EAGLE-3's head drafts k tokens in one pass, on masks (P-EAGLE, 2602.01469)"
    family = "one pass"
    needs = ("p_eagle",)
    head: Any
    blend: Blend | None = None
    """What makes a row's greedy tree another one; None: nothing does."""

    class Options(ChainOptions):
        """length: of the chain that is verified. fixed: k; auto: as far as a pass of that width pays here, k at most
        (`decoding.draft_size`). nodes: 0 drafts a chain, else the size of a tree of k levels; auto: as many as pay here.
        top_k: most children of a node. acceptance and length are those of a chain.
        """

        length: Literal["fixed", "auto"] = "fixed"
        nodes: Annotated[int, Field(ge=0, le=128)] | Literal["auto"] = 0
        top_k: int = Field(8, ge=1, le=16)

        @model_validator(mode="after")
        def _one_shape(self) -> Self:
            if self.nodes and (self.length == "auto" or self.acceptance != "exact"):
                raise ValueError("length: auto and acceptance: block are of chains: leave them out with nodes")
            return self

    def load(self) -> Any:
        """The trained head."""
        from specrig.heads.p_eagle.module import load

        return load(self.resources.head("p_eagle"), self.resources.target)

    def begin(self, context: Context, hidden: Tensor, aux_hidden_states: Tensor | None = None) -> None:
        """Prefill the head with the prompts' states."""
        super().begin(context, hidden, aux_hidden_states)
        fitted = "auto" in (self.options.length, self.options.nodes)
        self.size = DraftSize(self.resources.pass_costs(), self.times) if fitted else None
        self.values: list[list[float]] = []  # of each row's nodes, see `DraftSize.learn_trees`

    def propose(self, context: Context, k: int) -> Draft:
        """Sample k tokens a row: each for itself, or with a bias each behind the one before. Or a tree of k levels."""
        logits = self.head.draft(context.tokens, context.done, k)
        if self.options.nodes:
            return self._tree(logits, context)
        if self.head.markov is not None:
            draft, logits = self._in_turn(logits, context)
        else:
            slots, probs = context.sampler.candidates(logits, 1, context.depths)
            draft = Draft(self.head.target_ids(slots.squeeze(-1)), probs=probs, vocabulary=self.head.vocabulary)
        return draft if self.size is None else self.size.shorten(draft, logits, context.depths)

    def _in_turn(self, logits: Tensor, context: Context) -> tuple[Draft, Tensor]:
        """The draft of logits `[B, k, Vd]`, and the logits with the bias of what was drafted before."""
        import torch

        from specrig.heads.markov import biased

        if context.sampler.greedy and self.size is None:
            found = self.head.markov.greedy(logits, self.head.vocabulary)
            if found is not None:
                return Draft(self.head.target_ids(found), vocabulary=self.head.vocabulary), logits
        tokens: list[Tensor] = []  # [B, 1] each
        probs: list[Tensor] = []
        each = list(logits.split(1, 1))
        for slot in range(len(each)):
            if slot:
                each[slot] = biased(each[slot], self.head.markov, tokens[-1])
            slots, drawn_from = context.sampler.candidates(
                each[slot], 1, [int(depth > slot) for depth in context.depths]
            )
            tokens.append(self.head.target_ids(slots.squeeze(-1)))
            probs += [] if drawn_from is None else [drawn_from]
        draft = Draft(
            torch.cat(tokens, 1), probs=torch.cat(probs, 1) if probs else None, vocabulary=self.head.vocabulary
        )
        return draft, torch.cat(each, 1)

    def _tree(self, logits: Tensor, context: Context) -> Draft:
        """The tree of logits `[B, k, Vd]`: each row's most promising nodes."""
        if self.size is None:
            least, trust = [-inf] * self.options.nodes, 0.0
        else:
            least, trust = [log(max(chance, LEAST)) for chance in self.size.least(MOST)], log(self.size.trust)
        found = self.head.greedy_tree(logits, least, self.options.top_k, trust) if context.sampler.greedy else None
        if found is None:
            draft, chances = self._tree_by_levels(logits, context)
            values = [] if self.size is None else chances.tolist()
        else:
            trees: list[Tree] = [
                tree if depth else ([], [], []) for tree, depth in zip(found, context.depths, strict=True)
            ]
            if self.blend is not None:
                trees = [
                    self.blend(row, tree, least) if depth else tree
                    for row, (tree, depth) in enumerate(zip(trees, context.depths, strict=True))
                ]
            values = [own for _, _, own in trees]
            nodes = [(tokens, parents) for tokens, parents, _ in trees]
            draft = tree_draft(nodes, logits.device, vocabulary=self.head.vocabulary)
        if self.size is not None:
            self.values = [row if depth else [] for row, depth in zip(values, context.depths, strict=True)]
        return draft if draft.tokens.shape[1] else empty_draft(context)

    def _tree_by_levels(self, logits: Tensor, context: Context) -> tuple[Draft, Tensor]:
        """In torch, also above temperature 0: EAGLE-2's tree, of which all rows keep equally many nodes."""
        from specrig.heads.markov import biased

        def below(level: int, tokens: Tensor, _: Tensor | None) -> Tensor:
            own = logits[:, level : level + 1].expand(-1, tokens.shape[1], -1)
            return biased(own, self.head.markov, tokens)

        def nodes(values: Tensor) -> int:
            if self.size is None:
                return int(self.options.nodes)
            # A slot's worth is known before its token is drawn, and decides by itself whether the slot is kept.
            active = [row for row, depth in enumerate(context.depths) if depth]
            chances = values[active].sort(-1, descending=True).values.exp().mean(0)
            return self.size.fit(chances[:MOST].tolist())

        return self.grown(context, logits[:, 0], below, logits.shape[1], self.options.top_k, nodes)

    def _children(self, context: Context, logits: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """See `Eagle2`; a child's worth is corrected by what was accepted so far."""
        tokens, worth, q = super()._children(context, logits, width)
        return tokens, worth if self.size is None else (worth + log(self.size.trust)).clamp(max=0.0), q

    def observe(self, verdict: Verdict) -> None:
        """Keep the true states of what was accepted."""
        super().observe(verdict)
        if self.size is None:
            return
        if self.options.length == "auto":
            self.size.learn_chains(verdict)
        elif self.values:
            self.size.learn_trees(self.values, verdict)
            self.values = []
        else:  # the round was another drafter's
            self.size.learn(0.0, 0, verdict, own=False)
