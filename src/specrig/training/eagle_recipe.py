"""The recipe of the EAGLE head: the `training.eagle:` block of a study's config. Its defaults train the quick embedded
pair's. No torch.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specrig.settings import Settings


def evenly(steps: int, times: int) -> set[int]:
    """So many of the steps, evenly spread, the last among them."""
    return {round(steps * (turn + 1) / times) for turn in range(times)}


class HeadTraining(Settings):
    """How long a head that drafts on its own output trains, and on what text."""

    steps: int = Field(default=60, ge=1)
    """Optimiser steps."""
    batch: int = Field(default=8, ge=1)
    """Sequences a step."""
    lr: float = Field(default=3e-3, gt=0)
    """Peak learning rate of AdamW, for the norm."""
    matrix_lr: float = Field(default=0.02, gt=0)
    """Peak learning rate of Muon, for the matrices."""
    rollout: int = Field(default=3, ge=1, le=8)
    """Steps the head takes on its own features in training: 1 is EAGLE, more is HASS (2408.15766) and EAGLE-3's
    training-time test.
    """
    corpus_sequences: int = Field(default=128, ge=0)
    """Sequences of the corpus to learn from, besides the target's own text."""
    draft_vocabulary: int | None = Field(default=None, ge=1)
    """So many of the target's tokens can be drafted, those it most often writes (EAGLE-3, section 4; FR-Spec,
    2502.14856); null: all.
    """
    loss: Literal["kl", "lk"] = "kl"
    """Distance to the target's distribution: `kl` divergence, or `lk`, which turns to the acceptance rate itself
    (2602.23881).
    """
    evaluations: int = Field(default=2, ge=1)
    """Measurements of the acceptance to expect, evenly spread, the last at the end."""

    def evaluated(self) -> set[int]:
        """The steps after which it is measured."""
        return evenly(self.steps, self.evaluations)


class EagleTraining(HeadTraining):
    """And what EAGLE's loss weighs."""

    feature_weight: float = Field(default=1.0, ge=0)
    """Weight of the smooth-L1 distance between predicted and true features (2401.15077, section 4.2)."""
    logits_weight: float = Field(default=0.1, ge=0)
    """Weight of the cross-entropy with the target's distribution through its frozen LM head (the paper's w_cls)."""
    noise: float = Field(default=0.1, ge=0)
    """True features are fed with noise from U(-noise, noise)."""
