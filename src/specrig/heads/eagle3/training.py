"""Training of the EAGLE-3 head: "training-time test" (Li et al., 2503.01840, section 3.2).

In training the head takes the same steps as when it drafts: the first one reads the target's fused features, each
further one reads the head's own output. Each step's loss is the KL divergence between the target's distribution and the
head's (the paper has a cross-entropy, which differs by a constant). No loss asks the output to resemble the target's
features, so the layer can carry what later steps need.
Shapes: B sequences, T entries (tokens less one), D hidden, V vocabulary, Vd the head's.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from specrig.heads.eagle import LayerHead
from specrig.heads.eagle.training import LayerLearner, trained_entries
from specrig.heads.eagle3 import Eagle3
from specrig.heads.eagle3 import module as checkpoint
from specrig.heads.learner import Texts
from specrig.heads.losses import distribution_loss
from specrig.heads.shapes import VARIANTS, read_aux_layers
from specrig.heads.teacher import Teacher, autocast


class AuxStatesLearner(LayerLearner):
    """A layer on three of the target's hidden states. Its LM head and norm begin as the target's."""

    def __init__(
        self, settings: LayerHead, model: Teacher, teacher: Teacher, vocabulary: Tensor | None, seed: int
    ) -> None:
        super().__init__(settings, model, teacher, vocabulary, seed)
        D = model.hidden
        self.embedding_norm, self.feature_norm = nn.Parameter(torch.ones(D)), nn.Parameter(torch.ones(D))
        self.norm = nn.Parameter(model.final_norm().float().clone())
        self.lm_head = nn.Parameter(self.output.weight.float().clone())

    def enters(self, D: int) -> int:
        """Three of the target's hidden states."""
        return 3 * D

    def reads(self, D: int) -> int:
        """The token's embedding and the feature."""
        return 2 * D

    def fuse(self, states: Tensor) -> Tensor:
        """The target's low, middle and high state -> features: `[B, T, 4D]` -> `[B, T, D]`. The last D, the final
        state, are not read.
        """
        return self.mixed(states[..., : self.fc.shape[1]])

    def goal_scale(self) -> Tensor:
        """Its own norm, which begins as the target's, comes behind what it predicts."""
        return self.model.final_norm().float()

    def enter(self, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream carries the features; attention reads the token too."""
        D = features.shape[-1:]
        embedded = F.rms_norm(embedded.to(features.dtype), D, self.embedding_norm, self.eps)
        return features, torch.cat((embedded, F.rms_norm(features, D, self.feature_norm, self.eps)), -1)

    def logits(self, predicted: Tensor) -> Tensor:
        """Through its own norm and LM head."""
        return F.linear(F.rms_norm(predicted, predicted.shape[-1:], self.norm, self.eps), self.lm_head)

    def tensors(self) -> dict[str, Tensor]:
        """See `Learner`."""
        own = {
            "midlayer.input_layernorm.weight": self.embedding_norm,
            "midlayer.hidden_norm.weight": self.feature_norm,
            "norm.weight": self.norm,
            "lm_head.weight": self.lm_head,
        }
        offsets = {} if self.vocabulary is None else {"d2t": self.vocabulary - torch.arange(len(self.vocabulary))}
        return {"fc.weight": self.stored_fc()} | self.layer.tensors("midlayer") | own | offsets

    def reading(self, config: Any) -> dict[str, tuple[Any, Any]]:
        """See `Learner`."""
        named = read_aux_layers(config, self.model.layers)
        return {
            "eagle_aux_hidden_state_layer_ids": (list(named), list(self.aux_layers)),
            **{key: (bool(getattr(config, key, False)), False) for key in VARIANTS},
        }

    def unrolled(self, batch: Texts, states: Tensor, steps: int, decay: float, known: Tensor | None = None) -> Tensor:
        """The weighted mean over the steps of the distance of the distributions (`losses.distribution_loss`), each step
        `decay` times the one before. With a reduced vocabulary the target's distribution is renormalised over the tokens
        that the head knows. known: what step 0 predicts, `[B, T, D]`; then the mean is over the further steps alone.
        """
        model, trained = self.model, trained_entries(batch)
        with torch.no_grad(), autocast(model.where):
            likely = self.output(states[:, 1:, -model.hidden :][trained])
            embedded = F.embedding(batch.tokens[:, 1:], model.embedding)
        total, weight, weights = torch.zeros((), device=model.where), 1.0, 0.0
        with autocast(model.where):
            further = islice(self(embedded, states[:, :-1], steps, known), 0 if known is None else 1, None)
            for predicted in further:
                loss = distribution_loss(self.logits(predicted[trained]), likely, self.settings.loss)
                total = total + weight * loss
                weights += weight
                weight *= decay
        return total / weights


class Eagle3Learner(AuxStatesLearner):
    """EAGLE-3's head."""

    settings: Eagle3

    def loss(self, batch: Texts, states: Tensor, teacher_states: Tensor) -> Tensor:
        """See `unrolled`, over all steps."""
        return self.unrolled(batch, states, self.settings.rollout, self.settings.step_decay)

    def save(self, folder: Path) -> None:
        """See `Learner`."""
        count = None if self.vocabulary is None else len(self.vocabulary)
        checkpoint.save(folder, checkpoint.head_config(self.model.config, count), self.tensors())
