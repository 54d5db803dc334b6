"""Suffix decoding where the text repeats itself, a P-EAGLE head where it does not.

`suffix_hybrid` with a head in place of the draft model: the head drafts in one pass, and it has nothing to catch up
with after rounds in which the suffix tree drafted, since it reads the target's states.

With `blend`, the head's tree and what the text says are one tree. The head names a first token well and the next ones
badly, since it does not know the first one. The text knows what followed that token before. So each node's children are
those of the head, and the tokens that followed the longest matches of the text that ends with the node. A match of m
tokens, which occurred N times and n times before a token, gives it the chance m² / (m² + 3) · n / (N + 1/2): short
matches are trusted less than in `suffix_blend`, since the head has named what is likely. A token that both name has the
chance that one of them is right.

A third source is what the target has named behind drafted tokens that it rejected: such a token often comes a little
later. Every pass names the target's most likely token behind each node (Token Recycling, 2408.08696, keeps more of them).

Example: the text holds `Marie Curie` once, and the head drafts `Marie`. Behind it the match is one token long and
occurred once: `Curie` has the chance 1/4 · 1 / 1.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from specrig.decoding.drafters.p_eagle import PEagle, Tree
from specrig.decoding.drafters.suffix import Node, Suffix, SuffixTree
from specrig.decoding.drafters.suffix_hybrid import HybridOptions, SuffixHybrid
from specrig.decoding.types import Context, Draft, MethodOptions, Resources, Verdict
from specrig.heads.likeliest import Child, likeliest

if TYPE_CHECKING:
    from typing import Self

    from torch import Tensor

DOUBT = 3.0
"""Of matches of one token three in four are chance: of 760 such copies on Spec-Bench 8 to 16 % were accepted."""
REJECTED = 0.15
"""The chance of the token that the target named last behind a token, where the text does not hold both."""
LENGTHS = 3
"""How many lengths of match are asked what follows: the longest ones that occurred more often than a longer one."""
BLENDED = 2.0
"""How many times as much the suffix tree must promise before it drafts alone: a blended tree holds its copies, too."""
At = tuple[int | None, Sequence[Node], int | None]
"""A node of the blended tree: the head's node, if it is one; the matches of the text that ends with its parent, and its
own token, which makes them longer (None: they are its own).
"""


class SuffixPEagle(SuffixHybrid):
    """k bounds what the suffix tree drafts. In rounds in which only the suffix tree drafts, the head is not run."""

    name = "suffix_p_eagle"
    summary = "suffix decoding where the text repeats itself, else a P-EAGLE head (2411.04975, 2602.01469)"
    family = "one pass"
    needs = ("p_eagle",)
    former_defaults: ClassVar[Mapping[str, tuple[Any, ...]]] = {"max_spec_factor": (1.0,)}
    drafter = PEagle

    class Options(HybridOptions):
        """Options as in `suffix_hybrid`, except: draft_k: tokens of the head's chain, or levels of its tree; draft_passes:
        passes of the head a round; draft_nodes: size of the head's tree, 0: a chain, auto: as many nodes as pay here;
        length: for the chains of both; blend: add what the text says to the head's tree (at temperature 0, on a CPU),
        which also doubles `least`.
        """

        max_spec_factor: float = Field(3.0, gt=0, le=16)

        draft_k: int = Field(3, ge=1, le=16)
        draft_passes: int = Field(1, ge=1, le=16)
        draft_nodes: Annotated[int, Field(ge=0, le=128)] | Literal["auto"] = 0
        blend: bool = False

        @model_validator(mode="after")
        def _blended_is_a_tree(self) -> Self:
            if self.blend and not self.draft_nodes:
                raise ValueError(
                    "blend joins trees of the head: set draft_nodes to a number or auto, or leave blend out"
                )
            return self

    draft: PEagle

    def __init__(self, options: MethodOptions, resources: Resources) -> None:
        super().__init__(options, resources)
        if self.options.blend:
            self.draft.blend = self.blended

    @property
    def least(self) -> float:
        """See `SuffixHybrid`."""
        return float(self.options.least) * (BLENDED if self.options.blend else 1.0)

    def drafter_options(self) -> MethodOptions:
        """The head verifies as much of its chain as pays where the suffix tree does."""
        own = {"nodes": self.options.draft_nodes} if self.options.draft_nodes else {"length": self.options.length}
        return PEagle.Options.model_validate(own | {"passes": self.options.draft_passes})

    def begin(self, context: Context, hidden: Tensor, aux_hidden_states: Tensor | None = None) -> None:
        """See `SuffixHybrid`."""
        super().begin(context, hidden, aux_hidden_states)
        self.named: list[dict[int, int]] = [{} for _ in context.tokens]
        """Of each row, the token that the target named last behind a token."""

    def propose(self, context: Context, k: int) -> Draft:
        """See `SuffixHybrid`; blended trees are as deep as suffix decoding's drafts."""
        self.depths = context.depths
        self.drafted = super().propose(context, k)
        return self.drafted

    def blended(self, row: int, tree: Tree, least: Sequence[float]) -> Tree:
        """The head's tree of a row joined with what its text says; see `p_eagle.Blend`."""
        tokens, parents, values = tree
        text, below, lowest = self.trees[row], dict[int, list[int]](), least[0]
        for node, parent in enumerate(parents):
            below.setdefault(parent, []).append(node)

        def children(at: At) -> Iterable[Child[At]]:
            node, matches, token = at
            matches = matches if token is None else text.behind(matches, token)
            missed = missed_by(text, matches, lowest)
            named = self.named[row].get(text.text[-1] if token is None else token)
            if named is not None and named not in missed and lowest <= REJECTED:
                missed[named] = 1 - REJECTED
            own: dict[int, int] = {}
            for child in below.get(node, []) if node is not None else []:
                own[tokens[child]] = child
                share = exp(values[child] - (values[node] if node is not None and node >= 0 else 0.0))
                missed[tokens[child]] = missed.get(tokens[child], 1.0) * (1 - share)
            for name, wrong in missed.items():
                if wrong < 1:  # of a token without any chance there is no logarithm
                    yield 1 - wrong, name, name, (own.get(name), matches, name)

        root: At = (-1, text.matches, None)
        chances, drafted, above = likeliest(root, children, len(least), self.depths[row], least)
        return drafted, above, [log(chance) for chance in chances]

    def drafter_context(self, context: Context, depths: list[int]) -> Context:
        """The head runs all rows that go on: in all of them the same rounds' states wait for it."""
        return Context(context.tokens, context.done, context.sampler, depths)

    def observe(self, verdict: Verdict) -> None:
        """Keep the target's states of the accepted tokens, of either drafter, and what the target named."""
        Suffix.observe(self, verdict)
        self.draft.observe(verdict)
        for row, chosen in enumerate(verdict.choices if self.options.blend else ()):
            if verdict.tokens[row]:
                nodes = verdict.drafted[row][: self.drafted.offered[row]]
                self.named[row].update(zip([self.trees[row].text[-1], *nodes], chosen, strict=False))


def missed_by(text: SuffixTree, matches: Sequence[Node], least: float) -> dict[int, float]:
    """Each token that followed matches (by length) of a text: the chance that it is wrong all the same. Tokens with a lower
    chance than `least` behind a match are left out: no node has less.
    """
    missed: dict[int, float] = {}
    for length, node in text.distinct(matches, LENGTHS):
        for token, chance, _ in text.shares(length**2 / (length**2 + DOUBT), node, least):
            missed[token] = missed.get(token, 1.0) * (1 - chance)
    return missed
