"""Medusa (Cai et al., 2401.10774): heads that each predict one further token from the model's last hidden state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, model_validator

from specrig.heads.base import BIAS, Foreign, NeuralHead, Sizes
from specrig.settings import Settings

_OWN = 16_384


class JointTraining(Settings):
    """Medusa-2: after the heads alone, heads and model together (2401.10774, section 2.2.2)."""

    steps: int = Field(default=15, ge=1)
    """Optimiser steps."""
    lr: float = Field(default=3e-4, gt=0)
    """Peak learning rate of AdamW for the model; the heads keep theirs, several times as high."""
    matrix_lr: float = Field(default=2e-3, gt=0)
    """Peak learning rate of Muon for the model's matrices."""
    heads_weight: float = Field(default=0.2, gt=0)
    """Weight of the heads' loss beside the model's own (the paper's lambda_0)."""


class DepthHeads(NeuralHead):
    """How many heads that each draft one depth, how long they train, on what text."""

    heads: int = Field(default=4, ge=1, le=16)
    """Heads: the first drafts the token after the next, each further one a token later."""
    lr: float = Field(default=1e-3, gt=0)
    """Peak learning rate of AdamW, for biases and LM heads."""
    decay: float = Field(default=0.8, gt=0, le=1)
    """Head i's loss weighs decay to the power i."""
    markov_rank: int = Field(default=0, ge=0)
    """Rank of a bias on every head's logits that depends on the previous token (DSpark's idea, 2607.05147); 0: no bias."""
    kl_weight: float = Field(default=0.5, ge=0, le=1)
    """Loss of a head = kl_weight x KL(what the model itself says there, head) + (1 - kl_weight) x cross-entropy of the
    token there.
    """

    def bias_weights(self, sizes: Sizes) -> float:
        """Of the bias of the token before."""
        return float(self.markov_rank * (sizes.vocabulary + self.drafted(sizes)))

    def bias_multiplied(self, sizes: Sizes) -> float:
        """Of the same: a row of the one matrix is looked up, the other one is multiplied, for each head."""
        return float(self.heads * self.markov_rank * self.drafted(sizes))


class Medusa(DepthHeads):
    """How many heads that each draft one depth, how long they train, on what text, which LM heads they read out with,
    and how a model learns with them.
    """

    name: ClassVar[str] = "medusa"
    title: ClassVar[str] = "Medusa"
    about: ClassVar[str] = "How the Medusa heads are trained."
    for_drafts: ClassVar[bool] = True
    foreign: ClassVar[Mapping[str, Foreign]] = {
        "vllm": Foreign("medusa", options={"tree": [1], "acceptance": "exact"}, unknown=BIAS),
    }

    own_lm_heads: bool | None = None
    """Whether every head trains an LM head of its own, as the paper does; else all share the model's, frozen. Sharing
    learns slowly: SiLU is bounded below, so h + SiLU(Wh + b) can hardly lower any part of h. null: own ones for up to
    16,384 tokens to draft."""
    projections: bool = False
    """Whether every head maps its state before the model's LM head, which all share: what LM heads of their own begin
    as, in a fraction of the weights. vLLM cannot load it."""
    joint: JointTraining = JointTraining()
    """How a `medusa2:` pair trains its model and its heads together."""

    @model_validator(mode="after")
    def _one_way_out(self) -> Medusa:
        if self.projections and self.own_lm_heads:
            raise ValueError("`projections` share the model's LM head: leave out `own_lm_heads` or `projections`")
        return self

    def owns(self, drafted: int) -> bool:
        """Whether heads that can draft so many tokens have LM heads of their own."""
        if self.projections:
            return False
        return drafted <= _OWN if self.own_lm_heads is None else self.own_lm_heads

    def weights(self, sizes: Sizes) -> float:
        """Of the blocks and projections, and of the LM heads where each has its own."""
        drafted = self.drafted(sizes)
        own = self.heads * sizes.hidden * drafted if self.owns(drafted) else 0
        return float(self._matrices(sizes) + own) + self.bias_weights(sizes)

    def active_parameters(self, sizes: Sizes) -> float:
        """Besides, an LM head for each."""
        output = self.heads * sizes.hidden * self.drafted(sizes)
        return float(self._matrices(sizes) + output) + self.bias_multiplied(sizes)

    def _matrices(self, sizes: Sizes) -> int:
        return self.heads * sizes.hidden**2 * (2 if self.projections else 1)

    @classmethod
    def unloadable(cls, engine: str, config: Mapping[str, Any]) -> str | None:
        """VLLM 0.32 misses `token_map` among what it has loaded, so it loads no heads of a reduced vocabulary. It knows no
        projections.
        """
        whole = config.get("vocab_size", 0)
        if engine == "vllm" and config.get("projections"):
            return (
                "vLLM cannot load Medusa heads with projections; train them with "
                "`medusa: {projections: false, draft_vocabulary: null}`"
            )
        if engine != "vllm" or (drafted := config.get("truncated_vocab_size") or whole) >= whole:
            return None
        return (
            f"vLLM cannot load Medusa heads that draft among {drafted} of {whole} tokens; train them with "
            "`medusa: {draft_vocabulary: null}`"
        )
