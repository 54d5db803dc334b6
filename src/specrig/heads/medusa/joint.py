"""Medusa-2: heads and model learn together (Cai et al., 2401.10774, section 2.2.2)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

from specrig.heads.learner import States, Texts
from specrig.heads.losses import distillation
from specrig.heads.medusa import Medusa
from specrig.heads.medusa.training import MedusaLearner
from specrig.heads.teacher import LMHead, Teacher, autocast


class Joint(MedusaLearner):
    """The heads and their model, which learns.

    The model's own loss is its distance from the model before this training, whose states are stored, so that it
    changes little (self-distillation, section 2.3.2). The heads' loss stands beside it with weight lambda_0.
    """

    order = 6
    own: Tensor
    """The model's own part of the last loss."""

    def __init__(
        self, settings: Medusa, model: Teacher, teacher: Teacher, vocabulary: Tensor | None, seed: int
    ) -> None:
        super().__init__(settings, model, teacher, vocabulary, seed)
        bias = model.output.bias
        self.before = LMHead(model.output.weight.clone(), None if bias is None else bias.clone())
        self.teaching = self._subset(self.before)

    def loss(self, batch: Texts, states: Tensor, teacher_states: Tensor) -> Tensor:
        """states, teacher_states: as the model's were before it learnt."""
        live = self.model.model.get_output_embeddings()
        follows = F.pad(batch.written[:, 1:], (0, 1))
        labels = batch.tokens.roll(-1, 1)[follows]
        with autocast(self.model.where):
            hidden = self.model.forward(batch.tokens)
            with torch.no_grad():
                goal = self.before(teacher_states[follows])
            self.own = distillation(live(hidden[follows]), goal, labels, self.settings.kl_weight)
            self.output = self._subset(LMHead(live.weight, live.bias))
            return self.own + self.settings.joint.heads_weight * super().loss(batch, hidden, teacher_states)

    def measured(self, heldout: Texts, states: States) -> tuple[Tensor, Tensor]:
        """See `DepthLearner`; states: as they are now."""
        self.output = self._subset(self.model.output)
        return super().measured(heldout, states)

    def _subset(self, whole: LMHead) -> LMHead:
        return whole.subset(None if self.vocabulary is None else self.vocabulary.to(self.model.where))
