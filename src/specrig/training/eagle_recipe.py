"""The recipe of the EAGLE head: the `training.eagle:` block of a study's config. Its defaults train the quick embedded pair's. No torch."""

from __future__ import annotations

from pydantic import Field

from specrig.settings import Settings


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
    """Steps the head takes on its own features in training: 1 is EAGLE, more is HASS (2408.15766) and EAGLE-3's training-time test."""
    corpus_sequences: int = Field(default=128, ge=0)
    """Sequences of the corpus to learn from."""


class EagleTraining(HeadTraining):
    """And what EAGLE's loss weighs."""

    feature_weight: float = Field(default=1.0, ge=0)
    """Weight of the smooth-L1 distance between predicted and true features (2401.15077, section 4.2)."""
    logits_weight: float = Field(default=0.1, ge=0)
    """Weight of the cross-entropy with the target's distribution through its frozen LM head (the paper's w_cls)."""
    noise: float = Field(default=0.1, ge=0)
    """True features are fed with noise from U(-noise, noise)."""
