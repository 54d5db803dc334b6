"""REST (He et al., 2311.08252): a datastore of text that the target wrote. Nothing learns."""

from __future__ import annotations

from typing import ClassVar

from specrig.heads.base import HeadRecipe, Sizes

LONGEST, SHORTEST, NODES = 16, 2, 64
"""Defaults: tokens of the suffix that is looked up, and size of the tree that is drafted (the paper's 64 is for GPUs).
"""


class Rest(HeadRecipe):
    """It has no keys."""

    name: ClassVar[str] = "rest"
    title: ClassVar[str] = "REST"
    about: ClassVar[str] = "How the datastore of `rest` is made."

    def flop(self, sizes: Sizes, tokens: int) -> float:
        """Sorting multiplies nothing."""
        return 0.0
