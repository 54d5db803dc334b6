"""How the layers that a target leaves out are searched: the `training.layer_skip:` block of a study's config. No torch."""

from __future__ import annotations

from pydantic import Field

from specrig.settings import Settings


class LayerSkipSearch(Settings):
    """On how much text, how far, and for which draft length."""

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
