"""PARD (An et al., 2504.18583): a draft model that drafts all k tokens in one pass, the later ones from mask tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from specrig.heads.base import Foreign, NeuralHead, Sizes, kept_share


class Pard(NeuralHead):
    """How many tokens the draft learns to draft in one pass, for how long, on what text. It starts as the pair's draft
    model.
    """

    name: ClassVar[str] = "pard"
    title: ClassVar[str] = "PARD"
    about: ClassVar[str] = "How the draft model of `pard` is trained, from the pair's draft."
    of_draft: ClassVar[bool] = True
    foreign: ClassVar[Mapping[str, Foreign]] = {
        "vllm": Foreign(
            "draft_model",
            keys={"parallel_drafting": True},
            options={"acceptance": "exact", "length": "fixed"},
            sampled=True,
        ),
    }

    k: int = Field(default=8, ge=1, le=16)
    """Tokens that it learns to draft in one pass."""
    lr: float = Field(default=1e-3, gt=0)
    """Peak learning rate of AdamW, for embedding, norms and biases. The paper's, for all weights, is 3e-5."""
    matrix_lr: float = Field(default=5e-3, gt=0)
    """Peak learning rate of Muon, for the matrices of the layers."""
    kl_weight: float = Field(default=0.9, ge=0, le=1)
    """Loss = kl_weight x KL(target, draft) + (1 - kl_weight) x cross-entropy."""
    mask_token: int | None = Field(default=None, ge=0)
    """Id of the token that marks a position to draft; null: the last of the draft's embedding that ends no text, mostly
    padding or a reserved token."""

    @property
    def copies(self) -> float:
        """See `NeuralHead`: of an anchor as many as depths are kept."""
        return sum(kept_share(depth) for depth in range(self.k))

    def weights(self, sizes: Sizes) -> float:
        """Those of a draft model."""
        return sizes.parameters

    def active_parameters(self, sizes: Sizes) -> float:
        """All of them, for each copy of a position."""
        return sizes.parameters * self.copies
