"""Training of the MTP head (DeepSeek-V3, 2412.19437, section 2.2), for a target whose checkpoint carries none.

The loss is the mean over `rollout` depths of the distance between the head's distribution and the frozen target's. (The
report has the cross-entropy with the text. The target's own distribution says more a token.) Each further depth reads
the head's own state, with the same weights. The report has weights of their own for each depth, and its engines run the
first one again and again.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from specrig.heads.eagle.training import EagleLearner
from specrig.heads.learner import Texts
from specrig.heads.mtp import Mtp
from specrig.heads.mtp import module as checkpoint
from specrig.heads.teacher import Teacher

NORMS = {
    "embedding_norm": "embedding_norm", "feature_norm": "feature_norm", "norm": "norm",
    "input_norm": "layers.0.input_layernorm",
}  # fmt: skip
"""Attribute of the module -> what the checkpoint calls it."""


class MtpLearner(EagleLearner):
    """EAGLE's head with four norms; the final one begins as the target's."""

    def __init__(self, settings: Mtp, model: Teacher, teacher: Teacher, vocabulary: Tensor | None, seed: int) -> None:
        super().__init__(settings, model, teacher, vocabulary, seed)
        for name in NORMS:
            scale = model.final_norm().float().clone() if name == "norm" else torch.ones(model.hidden)
            setattr(self.module, name, nn.Parameter(scale))
        self.module.norms_output = True

    def goal_scale(self) -> Tensor:
        """The head's norm, which begins as the target's, comes behind what it predicts."""
        return self.model.final_norm().float()

    def loss(self, batch: Texts, states: Tensor, teacher_states: Tensor) -> Tensor:
        """See `unrolled`: all depths weigh the same."""
        return self.unrolled(batch, states, self.settings.rollout, 1.0)

    def tensors(self) -> dict[str, Tensor]:
        """See `Learner`."""
        return super().tensors() | {f"{name}.weight": getattr(self.module, norm) for norm, name in NORMS.items()}

    def save(self, folder: Path) -> None:
        """See `Learner`."""
        checkpoint.save(folder, checkpoint.head_config(self.model.config, self.vocabulary), self.tensors())
