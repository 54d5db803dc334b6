"""The recipe of Medusa heads: the `training.medusa:` block of a study's config. Its defaults train the quick embedded
pair's. No torch.
"""

from __future__ import annotations

from pydantic import Field

from specrig.settings import Settings
from specrig.training.eagle_recipe import evenly

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


class HeadsTraining(Settings):
    """How many heads that each draft one depth, how long they train, on what text."""

    heads: int = Field(default=4, ge=1, le=16)
    """Heads: the first drafts the token after the next, each further one a token later."""
    draft_vocabulary: int | None = Field(default=None, ge=1)
    """So many of the target's tokens can be drafted, those it most often writes; null: all."""
    steps: int = Field(default=60, ge=1)
    """Optimiser steps."""
    batch: int = Field(default=8, ge=1)
    """Sequences a step."""
    lr: float = Field(default=1e-3, gt=0)
    """Peak learning rate of AdamW, for biases and LM heads."""
    matrix_lr: float = Field(default=0.02, gt=0)
    """Peak learning rate of Muon, for the heads' own matrices."""
    decay: float = Field(default=0.8, gt=0, le=1)
    """Head i's loss weighs decay to the power i."""
    kl_weight: float = Field(default=0.5, ge=0, le=1)
    """Loss of a head = kl_weight x KL(what the model itself says there, head) + (1 - kl_weight) x cross-entropy of the
    token there.
    """
    corpus_sequences: int = Field(default=128, ge=0)
    """Sequences of the corpus to learn from, besides the target's own text; their hidden states are computed once."""
    evaluations: int = Field(default=2, ge=1)
    """Measurements of the acceptance to expect, evenly spread, the last at the end."""

    def evaluated(self) -> set[int]:
        """The steps after which the acceptance is measured."""
        return evenly(self.steps, self.evaluations)


class MedusaTraining(HeadsTraining):
    """And which LM heads they read out with, and how a model learns with them."""

    own_lm_heads: bool | None = None
    """Whether every head trains an LM head of its own, as the paper does; else all share the model's, frozen. Sharing
    learns slowly: SiLU is bounded below, so h + SiLU(Wh + b) can hardly lower any part of h. null: own ones for up to
    16,384 tokens to draft."""
    joint: JointTraining = JointTraining()
    """How a `medusa2:` pair trains its model and its heads together."""

    def owns(self, drafted: int) -> bool:
        """Whether heads that can draft so many tokens have LM heads of their own."""
        return drafted <= _OWN if self.own_lm_heads is None else self.own_lm_heads
