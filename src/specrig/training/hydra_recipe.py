"""The recipe of Hydra heads: the `training.hydra:` block of a study's config. Its defaults train the quick embedded pair's. No torch."""

from __future__ import annotations

from pydantic import Field

from specrig.settings import Settings
from specrig.training.eagle_recipe import evenly


class HydraTraining(Settings):
    """How many heads, how long they train, on what text. All read the target's own LM head, which stays as it is."""

    heads: int = Field(default=4, ge=1, le=16)
    """Heads: the first drafts the token after the next, each further one a token later, given those before."""
    draft_vocabulary: int | None = Field(default=None, ge=1)
    """So many of the target's tokens can be drafted, those it most often writes; null: all."""
    steps: int = Field(default=60, ge=1)
    """Optimiser steps."""
    batch: int = Field(default=8, ge=1)
    """Sequences a step."""
    lr: float = Field(default=1e-3, gt=0)
    """Peak learning rate of AdamW, for biases."""
    matrix_lr: float = Field(default=0.02, gt=0)
    """Peak learning rate of Muon, for the matrices."""
    decay: float = Field(default=0.8, gt=0, le=1)
    """Head i's loss weighs decay to the power i."""
    kl_weight: float = Field(default=0.5, ge=0, le=1)
    """Loss of a head = kl_weight x KL(what the target itself says there, head) + (1 - kl_weight) x cross-entropy of the token there."""
    corpus_sequences: int = Field(default=128, ge=0)
    """Sequences of the corpus to learn from, besides the target's own text."""
    evaluations: int = Field(default=2, ge=1)
    """Measurements of the acceptance to expect, evenly spread, the last at the end."""

    def evaluated(self) -> set[int]:
        """The steps after which the acceptance is measured."""
        return evenly(self.steps, self.evaluations)
