"""Training of the EAGLE-3 head: "training-time test" (Li et al., 2503.01840, section 3.2).

In training the head takes the same steps as when it drafts: the first one reads the target's fused features, each
further one reads the head's own output. Each step's loss is the KL divergence between the target's distribution and the
head's (the paper has a cross-entropy, which differs by a constant). No loss asks the output to resemble the target's
features, so the layer can carry what later steps need.
Shapes: B sequences, T entries (tokens less one), D hidden, V vocabulary, Vd the head's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from specrig.heads.eagle import LayerHead
from specrig.heads.eagle.training import Divided, LayerLearner
from specrig.heads.eagle3 import Eagle3
from specrig.heads.eagle3 import module as checkpoint
from specrig.heads.eagle3.module import Eagle3Layers
from specrig.heads.learner import Texts
from specrig.heads.shapes import VARIANTS, read_aux_layers
from specrig.heads.teacher import Teacher
from specrig.heads.trained_layer import layer_tensors, normal, untrained_layer
from specrig.runtime.layer import DecoderLayer


class AuxStatesLearner(LayerLearner):
    """Layers on three of the target's hidden states. LM head and final norm begin as the target's."""

    module: Eagle3Layers
    config: Any

    def __init__(
        self, settings: LayerHead, model: Teacher, teacher: Teacher, vocabulary: Tensor | None, seed: int
    ) -> None:
        super().__init__(settings, model, teacher, vocabulary, seed)
        generator, D, config = torch.Generator().manual_seed(seed), model.hidden, self.layer_config
        fc, layers = Divided(normal(D, 3 * D, generator)), self.untrained_layers(generator)
        norms = [nn.Parameter(norm) for norm in (torch.ones(D), torch.ones(D), model.final_norm().float().clone())]
        self.module = Eagle3Layers(fc, layers, config.rms_norm_eps, norms)
        self.lm_head = nn.Parameter(self.output.weight.float().clone())

    def untrained_layers(self, generator: torch.Generator) -> list[DecoderLayer]:
        """The head's layers."""
        return [untrained_layer(self.layer_config, 2 * self.model.hidden, generator)]

    def fuse(self, states: Tensor) -> Tensor:
        """The target's low, middle and high state -> features: `[B, T, 4D]` -> `[B, T, D]`. The last D, the final
        state, are not read.
        """
        return self.module.fuse(states[..., : self.fc.weight.shape[1]])

    def inputs(self, tokens: Tensor, states: Tensor) -> Tensor:
        """See `LayerLearner`."""
        return self.module.fused(super().inputs(tokens, states))

    def goal_scale(self) -> Tensor:
        """Its own norm, which begins as the target's, comes behind what it predicts."""
        return self.model.final_norm().float()

    def logits(self, predicted: Tensor) -> Tensor:
        """Through its own norm and LM head."""
        return F.linear(self.module.read_out(predicted), self.lm_head)

    def tensors(self) -> dict[str, Tensor]:
        """See `Learner`."""
        module = self.module
        own: dict[str, Tensor] = {"lm_head.weight": self.lm_head}
        norms = module.embedding_norm, module.feature_norm, module.norm
        names = "midlayer.input_layernorm", "midlayer.hidden_norm", "norm"
        own |= {f"{name}.weight": norm for name, norm in zip(names, norms, strict=True) if norm is not None}
        offsets = {} if self.vocabulary is None else {"d2t": self.vocabulary - torch.arange(len(self.vocabulary))}
        return {"fc.weight": self.fc.stored()} | layer_tensors(module.layers[0], "midlayer") | own | offsets

    def reading(self, config: Any) -> dict[str, tuple[Any, Any]]:
        """See `Learner`."""
        named = read_aux_layers(config, self.model.layers)
        return {
            "eagle_aux_hidden_state_layer_ids": (list(named), list(self.aux_layers)),
            **{key: (bool(getattr(config, key, False)), getattr(self.config, key, False)) for key in VARIANTS},
        }


class Eagle3Learner(AuxStatesLearner):
    """EAGLE-3's head."""

    settings: Eagle3

    def __init__(
        self, settings: Eagle3, model: Teacher, teacher: Teacher, vocabulary: Tensor | None, seed: int
    ) -> None:
        super().__init__(settings, model, teacher, vocabulary, seed)
        self.config = checkpoint.head_config(
            model.config, None if vocabulary is None else len(vocabulary), settings.norms
        )
        self.module.norms_output = settings.norms
        if settings.norms:
            self.module.state_norms = nn.ParameterList(torch.ones(model.hidden) for _ in self.aux_layers)

    def tensors(self) -> dict[str, Tensor]:
        """See `Learner`."""
        return super().tensors() | {f"fc_norm.{at}.weight": norm for at, norm in enumerate(self.module.state_norms)}

    def loss(self, batch: Texts, states: Tensor, teacher_states: Tensor) -> Tensor:
        """See `unrolled`, over all steps."""
        return self.unrolled(batch, states, self.settings.rollout, self.settings.step_decay)

    def save(self, folder: Path) -> None:
        """See `Learner`."""
        checkpoint.save(folder, self.config, self.tensors())
