"""Training of the DSpark head: DFlash's blocks, the bias of the token before, and the confidence head beside them.

The bias is learnt from the true token before each drafted one. The confidence head learns the share of drafts that the
target accepts at each place, 1 - |p - q| / 2 (2607.05147, equation 8), by binary cross-entropy; of a reduced vocabulary
among the tokens in it.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

from specrig.heads.dflash.training import DFlashLearner
from specrig.heads.dspark import DSpark
from specrig.heads.dspark import module as checkpoint
from specrig.heads.dspark.module import ConfidenceHead
from specrig.heads.learner import Texts
from specrig.heads.losses import distribution_loss, overlaps
from specrig.heads.markov import MarkovBias, biased
from specrig.heads.shapes import CONFIDENCE, CONFIDENCE_BIAS, MARKOV_W1, MARKOV_W2
from specrig.heads.teacher import LMHead, Teacher


class DSparkLearner(DFlashLearner):
    """DSpark's head. At first its layers and its bias add nothing, and it is confident in no draft."""

    settings: DSpark

    def __init__(
        self, settings: DSpark, model: Teacher, teacher: Teacher, vocabulary: Tensor | None, seed: int
    ) -> None:
        super().__init__(settings, model, teacher, vocabulary, seed)
        self.config = checkpoint.head_config(
            model.config, settings.layers, settings.k, vocabulary, settings.markov_rank
        )
        self.own_output = self.output if vocabulary is None else LMHead(self.output.weight)
        rank = self.config.markov_rank  # at most the hidden width
        bias = MarkovBias.untrained(model.vocabulary, len(self.output.weight), rank, seed + 1)
        assert bias is not None
        self.markov = bias
        reads = model.hidden + rank
        # An optimiser moves each entry by about its rate; so the logit moves by no more than some rates.
        self.confidence = ConfidenceHead(torch.zeros(reads), torch.zeros(1), scale=reads**-0.5)

    def logits(self, states: Tensor, before: Tensor) -> Tensor:
        """See `DFlashLearner`."""
        return biased(self.own_output(states), self.markov, before)

    def loss(self, batch: Texts, states: Tensor, teacher_states: Tensor) -> Tensor:
        """DFlash's, and the confidence head's."""
        drafted = self.drafted(batch, states)
        distance = distribution_loss(drafted.logits, drafted.likely, self.settings.loss, drafted.weights)
        confidence = self.confidence(drafted.states, F.embedding(drafted.before, self.markov.embedding))
        accepted = overlaps(drafted.logits, drafted.likely)
        wrong = F.binary_cross_entropy_with_logits(confidence, accepted, reduction="none")
        total = drafted.weights.sum().clamp(min=torch.finfo(drafted.weights.dtype).tiny)
        return distance + self.settings.confidence_weight * (drafted.weights * wrong).sum() / total

    def tensors(self) -> dict[str, Tensor]:
        """See `Learner`; a reduced vocabulary has the target's rows as its LM head."""
        confidence = (self.confidence.scale * self.confidence.weight).unsqueeze(0)
        found = super().tensors() | {CONFIDENCE: confidence, CONFIDENCE_BIAS: self.confidence.bias}
        found |= {MARKOV_W1: self.markov.embedding, MARKOV_W2: self.markov.lm_head}
        if self.vocabulary is None:
            return found
        offsets = self.vocabulary - torch.arange(len(self.vocabulary), device=self.vocabulary.device)
        return found | {"lm_head.weight": self.own_output.weight, "d2t": offsets}

    @torch.no_grad()
    def restore(self, found: dict[str, Tensor]) -> None:
        """See `Learner`; the confidence head's weights are divided by their scale."""
        super().restore(found)
        self.confidence.weight.copy_(found[CONFIDENCE][0] / self.confidence.scale)

    def save(self, folder: Path) -> None:
        """See `Learner`."""
        checkpoint.save(folder, self.config, self.tensors())
