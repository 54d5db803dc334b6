"""Layer skipping (2309.08168): the target without some of its layers drafts; which ones is searched, nothing learns."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from specrig.heads.base import HeadRecipe, Sizes


class LayerSkip(HeadRecipe):
    """On how much text, how far, and for which draft length."""

    name: ClassVar[str] = "layer_skip"
    title: ClassVar[str] = "layer_skip"
    about: ClassVar[str] = "How the layers that `layer_skip` leaves out are searched."

    texts: int = Field(default=8, ge=1)
    """Texts that the target wrote to training prompts; every set of layers that is tried runs over all of them."""
    tokens: int = Field(default=128, ge=4)
    """So many tokens of each, half of them before the target began to write."""
    most: float = Field(default=0.6, gt=0, lt=1)
    """Share of the layers that is left out at most."""
    candidates: int = Field(default=8, ge=1)
    """Layers tried a step after the first, which tries all: those that were missed least when last tried."""
    k: int = Field(default=4, ge=1, le=16)
    """Draft length that the set is chosen for."""

    def flop(self, sizes: Sizes, tokens: int) -> float:
        """Of all sets of layers that are tried, as if each left out none."""
        tried = 1 + sizes.layers + (round(self.most * sizes.layers) - 1) * min(self.candidates, sizes.layers)
        return tried * sizes.forward(self.tokens) * self.texts * self.tokens
