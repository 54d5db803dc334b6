"""REST: the draft is what followed the longest suffix of the context in a datastore of text that the target wrote.

He et al., 2311.08252. All occurrences of the longest suffix that the datastore holds are looked up; what followed them
is merged into a tree, of which the continuations that occurred most often are verified (section 3). Candidates are
deterministic at every temperature. The datastore never changes, so a prompt decodes the same in a batch as alone.
`suffix` and `ngram` look into the context itself instead, so they draft nothing that is not there yet; this one does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from specrig.decoding.types import Context, Draft, Drafter, MethodOptions, PaperRound, Resources, tree_draft
from specrig.heads.rest import LONGEST, NODES, SHORTEST

if TYPE_CHECKING:
    from specrig.heads.rest.module import Datastore


class Rest(Drafter):
    """Runs no model: a few dozen steps of binary search a round, and a look at what follows each node of the tree."""

    name = "rest"
    summary = "a tree of what followed the last tokens in text that the target wrote before (REST 2311.08252)"
    needs = ("rest",)
    paper = PaperRound(width=64, tree=True)

    class Options(MethodOptions):
        """longest, shortest: tokens of the suffix that is looked up; nodes: size of the tree (the paper's 64 is for
        GPUs).
        """

        longest: int = Field(LONGEST, ge=1, le=32)
        shortest: int = Field(SHORTEST, ge=1, le=32)
        nodes: int = Field(NODES, ge=1, le=128)

        @model_validator(mode="after")
        def _ordered(self) -> Rest.Options:
            if self.shortest > self.longest:
                raise ValueError(f"shortest {self.shortest} is above longest {self.longest}")
            return self

    def __init__(self, options: MethodOptions, resources: Resources) -> None:
        from specrig.heads.rest import module as rest

        super().__init__(options, resources)
        self.store: Datastore = rest.load(resources.head("rest"), resources.target)

    def propose(self, context: Context, k: int) -> Draft:
        """Look every unfinished row's suffix up, and draft the tree of what followed it."""
        options = self.options
        found = [
            self.store.tree(row, options.longest, options.shortest, options.nodes, depth) if depth else ([], [])
            for row, depth in zip(context.tokens, context.depths, strict=True)
        ]
        return tree_draft(found, context.sampler.device)
