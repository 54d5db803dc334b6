"""P-EAGLE: EAGLE-3's head drafts k tokens in one pass. Worth it where a chain's k passes cost more than they bring.

2602.01469. The head runs what was accepted and k - 1 masks, and names a token at each. No token knows the one drafted
before it: above temperature 0 each is sampled from a distribution of its own, so exact rejection sampling applies. A
head with a bias of the token before (`heads.markov`) knows that one token: its logits are then read one by one.

The logits of all k levels stand after that pass. So a tree (`nodes`) drafts at no further cost, and pays where the
target verifies a few more tokens cheaply. Its nodes are those of highest value, as in EAGLE-2.

With `passes` above 1 the head drafts the first tokens one by one, as EAGLE-3 does, and the others in its last pass, on
masks behind them: the second token then knows the first one for another, shorter pass. The head must have learnt to read
its own output (`training.p_eagle.rollout`). In a tree the last pass runs the best tokens of the first level.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, log
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from specrig.decoding.draft_size import DEARER, LEAST, DraftSize
from specrig.decoding.drafters.eagle2 import Below
from specrig.decoding.drafters.eagle3 import Eagle3
from specrig.decoding.static_tree import MOST
from specrig.decoding.types import ChainOptions, Context, Draft, Family, Verdict, empty_draft, tree_draft

if TYPE_CHECKING:
    from typing import Self

    from torch import Tensor

BRANCHES = 3
"""So many nodes of a greedy tree's first level get a second pass at most. Seldom is another one right."""
Tree = tuple[list[int], list[int], list[float]]
"""A row's nodes, best first: their tokens, their parents (-1: the text) and the logarithms of their chances."""
Blend = Callable[[int, Tree, Sequence[float]], Tree]
"""From a row, its tree, and the lowest chances of the 1st, 2nd, … node, as many as there are nodes at most."""


class OnePassOptions(ChainOptions):
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


class PEagle(Eagle3):
    """One pass of the head a round, whatever k is, or as many as `passes` says."""

    name = "p_eagle"
    summary = "EAGLE-3's head drafts k tokens in one pass, on masks (P-EAGLE, 2602.01469)"
    family: ClassVar[Family] = "one pass"
    needs = ("p_eagle",)
    head: Any
    blend: Blend | None = None
    """What makes a row's greedy tree another one; None: nothing does."""

    class Options(OnePassOptions):
        __doc__ = f"passes: of the head; each but the last drafts one token. {OnePassOptions.__doc__}"

        passes: int = Field(1, ge=1, le=16)

        @model_validator(mode="after")
        def _passes_of_a_tree(self) -> Self:
            if self.nodes and self.passes > 2:
                raise ValueError("a tree has one pass or two: set passes to 1 or 2, or leave nodes out")
            return self

    def load(self) -> Any:
        """The trained head."""
        from specrig.heads.p_eagle.module import load

        return load(self.resources.head("p_eagle"), self.resources.target)

    def head_passes(self, k: int) -> int:
        """Passes of the head in a round that drafts k tokens or levels."""
        return min(self.options.passes, k)

    def begin(self, context: Context, hidden: Tensor, aux_hidden_states: Tensor | None = None) -> None:
        """Prefill the head with the prompts' states."""
        super().begin(context, hidden, aux_hidden_states)
        fitted = "auto" in (self.options.length, self.options.nodes)
        self.size = DraftSize(self.resources.pass_costs(), DEARER) if fitted else None
        self.values: list[list[float]] = []  # of each row's nodes, see `DraftSize.learn_trees`

    def propose(self, context: Context, k: int) -> Draft:
        """A chain of k tokens or a tree of k levels."""
        if self.options.nodes:
            return self._tree(context, k)
        return self.shorten(*self._chain(context, k), context)

    def shorten(self, draft: Draft, logits: Tensor, context: Context) -> Draft:
        """The chains that are verified, of those drafted from the logits `[B, k, Vd]`."""
        return draft if self.size is None else self.size.shorten(draft, logits, context.depths)

    def _chain(self, context: Context, k: int) -> tuple[Draft, Tensor]:
        """A draft of k tokens a row, and the logits `[B, k, Vd]` that they were drawn from."""
        import torch

        if (passes := self.head_passes(k)) == 1:
            return self._named(self.head.draft(context.tokens, context.done, k), context)
        begun, first, feature = self.one_by_one(context, passes - 1)
        logits = self.head.behind(begun.tokens[:, -1:], feature.unsqueeze(1), k - passes)[:, 0]
        depths = [max(0, depth - passes + 1) for depth in context.depths]
        rest, logits = self._named(logits, Context(context.tokens, context.done, context.sampler, depths))
        probs = None if begun.probs is None or rest.probs is None else torch.cat((begun.probs, rest.probs), 1)
        draft = Draft(torch.cat((begun.tokens, rest.tokens), 1), probs=probs, vocabulary=self.head.vocabulary)
        return draft, torch.cat((torch.stack(first, 1), logits), 1)

    def _named(self, logits: Tensor, context: Context) -> tuple[Draft, Tensor]:
        """The draft of logits `[B, k, Vd]`, each token for itself, or with a bias each behind the one before. Also the
        logits, the bias in them.
        """
        if self.head.markov is not None:
            return self._in_turn(logits, context)
        slots, probs = context.sampler.candidates(logits, 1, context.depths)
        return Draft(self.head.target_ids(slots.squeeze(-1)), probs=probs, vocabulary=self.head.vocabulary), logits

    def _in_turn(self, logits: Tensor, context: Context) -> tuple[Draft, Tensor]:
        import torch

        if context.sampler.greedy and self.size is None:
            found = self.head.markov.greedy(logits, self.head.vocabulary)
            if found is not None:
                return Draft(self.head.target_ids(found), vocabulary=self.head.vocabulary), logits
        tokens: list[Tensor] = []  # [B, 1] each
        probs: list[Tensor] = []
        each = list(logits.split(1, 1))
        for slot in range(len(each)):
            if slot:
                each[slot] = self._biased(each[slot], tokens[-1])
            slots, drawn_from = context.sampler.candidates(
                each[slot], 1, [int(depth > slot) for depth in context.depths]
            )
            tokens.append(self.head.target_ids(slots.squeeze(-1)))
            probs += [] if drawn_from is None else [drawn_from]
        draft = Draft(
            torch.cat(tokens, 1), probs=torch.cat(probs, 1) if probs else None, vocabulary=self.head.vocabulary
        )
        return draft, torch.cat(each, 1)

    def _biased(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Logits of what follows `tokens`, with the bias that the head has of them; see `heads.markov.biased`."""
        from specrig.heads.markov import biased

        return biased(logits, self.head.markov, tokens)

    def _tree(self, context: Context, k: int) -> Draft:
        """A tree of k levels: each row's most promising nodes."""
        if self.size is None:
            least, trust = [0.0] * self.options.nodes, 0.0
        else:
            least, trust = self.size.least(MOST), log(self.size.trust)
        found, first, below = self._levels(context, k, least, trust)
        if found is None:
            draft, chances = self._tree_by_levels(first, below, k, context)
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
            draft = tree_draft(nodes, first.device, vocabulary=self.head.vocabulary)
        if self.size is not None:
            self.values = [row if depth else [] for row, depth in zip(values, context.depths, strict=True)]
        return draft if draft.tokens.shape[1] else empty_draft(context)

    def _levels(
        self, context: Context, k: int, least: Sequence[float], trust: float
    ) -> tuple[list[Tree] | None, Tensor, Below]:
        """What a tree of k levels is made of: at temperature 0 each row's tree by compiled code, None where there is
        none; else the logits `[B, Vd]` of the first level, and what makes those of the others.

        least: of each node, the first, the second, …, the lowest chance; trust: added to the logarithm of each chance.
        """
        if self.head_passes(k) > 1:
            return self._levels_of_two(context, k, least, trust)
        logits = self.head.draft(context.tokens, context.done, k)
        greedy = context.sampler.greedy
        found = self.head.greedy_tree(logits, least, self.options.top_k, trust) if greedy else None

        def below(level: int, tokens: Tensor, _: Tensor | None) -> Tensor:
            return self._biased(logits[:, level : level + 1].expand(-1, tokens.shape[1], -1), tokens)

        return found, logits[:, 0], below

    def _levels_of_two(
        self, context: Context, k: int, least: Sequence[float], trust: float
    ) -> tuple[list[Tree] | None, Tensor, Below]:
        """As `_levels`, with a second pass that runs nodes of the first level, and masks behind each."""
        import torch

        first, feature = self.head.advance(context.tokens, context.done)
        logits, branch = first, first  # behind the expanded nodes, `[B, w, k - 1, Vd]`; which is which, `[B, w]`

        def below(level: int, tokens: Tensor, above: Tensor | None) -> Tensor:
            nonlocal logits, branch
            if above is None:
                logits = self.head.behind(tokens, feature.unsqueeze(1).expand(-1, tokens.shape[1], -1), k - 2)
                branch = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
                return logits[:, :, 0]
            branch = branch.gather(1, above)
            rows = torch.arange(len(tokens), device=tokens.device).unsqueeze(1)
            return self._biased(logits[rows, branch, level - 1], tokens)

        greedy = context.sampler.greedy
        return self._branched(first, feature, least, trust, k) if greedy else None, first, below

    def _branched(
        self, logits: Tensor, feature: Tensor, least: Sequence[float], trust: float, k: int
    ) -> list[Tree] | None:
        """Greedy trees by compiled code: the first level by `logits` `[B, Vd]`, below its best nodes what a second pass
        says of them, which reads `feature` `[B, D]`.
        """
        import torch

        children = self.options.top_k
        firsts: list[Tree] | None = self.head.greedy_tree(logits.unsqueeze(1), least, children, trust)
        if firsts is None:
            return None
        width = min(BRANCHES, max(len(tokens) for tokens, _, _ in firsts))
        if not width:
            return firsts
        # A row with fewer nodes runs some token in their place; nothing is looked up behind it.
        tokens = torch.tensor([(row + [0] * width)[:width] for row, _, _ in firsts], device=logits.device)
        behind = self.head.behind(tokens, feature.unsqueeze(1).expand(-1, width, -1), k - 2)
        found = []
        for row, (_, _, values) in enumerate(firsts):
            below = []
            for branch, value in enumerate(values[:width]):
                rest = [lowest / max(exp(value), LEAST) for lowest in least]
                below += self.head.greedy_tree(behind[row : row + 1, branch], rest, children, trust)
            found.append(merged(firsts[row], below, least))
        return found

    def _tree_by_levels(self, logits: Tensor, below: Below, k: int, context: Context) -> tuple[Draft, Tensor]:
        """In torch, also above temperature 0: EAGLE-2's tree, of which all rows keep equally many nodes."""

        def nodes(values: Tensor) -> int:
            if self.size is None:
                return int(self.options.nodes)
            # A slot's worth is known before its token is drawn, and decides by itself whether the slot is kept.
            active = [row for row, depth in enumerate(context.depths) if depth]
            chances = values[active].sort(-1, descending=True).values.exp().mean(0)
            return self.size.fit(chances[:MOST].tolist())

        return self.grown(context, logits, below, k, self.options.top_k, nodes)

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
            self.size.learn(0.0, 0, verdict)


def merged(first: Tree, below: Sequence[Tree], least: Sequence[float]) -> Tree:
    """One tree of a first level and of what hangs below its first nodes, best nodes first, as many as `least` allows, the
    lowest chances of the nodes.

    below: of the first node, the second, …, with values and parents of their own; -1 is the node.
    """
    tokens, values = list(first[0]), list(first[2])
    parents = [-1] * len(tokens)
    for branch, (own, above, worth) in enumerate(below):
        start = len(tokens)
        tokens += own
        parents += [branch if parent < 0 else start + parent for parent in above]
        values += [first[2][branch] + value for value in worth]
    # Stable: of equals the parent, which comes before its child, stays before it.
    order = sorted(range(len(tokens)), key=lambda node: -values[node])[: len(least)]
    count = next((at for at, node in enumerate(order) if exp(values[node]) < least[at]), len(order))
    slot = {node: at for at, node in enumerate(order[:count])} | {-1: -1}
    kept = order[:count]
    return [tokens[node] for node in kept], [slot[parents[node]] for node in kept], [values[node] for node in kept]
