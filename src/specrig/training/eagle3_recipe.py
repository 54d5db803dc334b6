"""The recipe of the EAGLE-3 head: the `training.eagle3:` block of a study's config. Its defaults train the quick
embedded pair's. No torch.
"""

from __future__ import annotations

from pydantic import Field

from specrig.training.eagle_recipe import HeadTraining


class Eagle3Training(HeadTraining):
    """What EAGLE-3 changes: no feature loss, no noise; its steps weigh unequally, its vocabulary may be smaller."""

    steps: int = Field(default=50, ge=1)
    """Optimiser steps."""
    lr: float = Field(default=1e-2, gt=0)
    """Peak learning rate of AdamW, for norms and LM head."""
    matrix_lr: float = Field(default=0.08, gt=0)
    """Peak learning rate of Muon, for the matrices: they start further from their goal than EAGLE's, whose loss leads
    by features.
    """
    step_decay: float = Field(default=0.8, gt=0, le=1)
    """Each further step on its own output weighs that much of the one before (as the paper's code has it)."""
