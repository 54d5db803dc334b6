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

from specrig.heads import eagle3 as checkpoint
from specrig.runtime.types import DecodingError
from specrig.training import eagle
from specrig.training.eagle3_recipe import Eagle3Training
from specrig.training.losses import likeness
from specrig.training.recipe import Recipe
from specrig.training.run import TrainingError
from specrig.training.target_text import Texts
from specrig.training.teacher import Teacher
from specrig.training.trainer import autocast


class Layer(eagle.Layer):
    """The head while it trains. Its LM head and norm begin as the target's."""

    def __init__(self, target: Teacher, drafted: Tensor | None = None) -> None:
        """drafted: `[Vd]` rising token ids that the head can draft; None: all."""
        super().__init__(target, drafted)
        D = target.hidden
        try:
            self.streams = checkpoint.choose_aux_layers(target.layers)
        except DecodingError as error:
            raise TrainingError(str(error)) from error
        self.embedding_norm, self.feature_norm = nn.Parameter(torch.ones(D)), nn.Parameter(torch.ones(D))
        self.norm = nn.Parameter(target.final_norm().float().clone())
        self.lm_head = nn.Parameter(self.output.weight.float().clone())

    def enters(self, D: int) -> int:
        """Width of what `fc` reads: three streams."""
        return 3 * D

    def reads(self, D: int) -> int:
        """Width of what attention reads: the token's embedding and the feature."""
        return 2 * D

    def fuse(self, states: Tensor) -> Tensor:
        """The target's low, middle and high stream -> features: `[B, T, 4D]` -> `[B, T, D]`. The last D, the final
        state, are not read.
        """
        return F.linear(states[..., : self.fc.shape[1]].to(self.fc.dtype), self.fc)

    def enter(self, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream carries the features; attention reads the token too."""
        D = features.shape[-1:]
        embedded = F.rms_norm(embedded.to(features.dtype), D, self.embedding_norm, self.eps)
        return features, torch.cat((embedded, F.rms_norm(features, D, self.feature_norm, self.eps)), -1)

    def logits(self, predicted: Tensor) -> Tensor:
        """`[..., D]` -> `[..., Vd]`."""
        return F.linear(F.rms_norm(predicted, predicted.shape[-1:], self.norm, self.eps), self.lm_head)

    def save(self, folder: Path, target: Any) -> None:
        """See `eagle.Layer`."""
        count = None if self.drafted is None else len(self.drafted)
        checkpoint.save(folder, checkpoint.head_config(target, count), self.tensors())

    def tensors(self) -> dict[str, Tensor]:
        """The weights under the checkpoint's names."""
        own = {
            "midlayer.input_layernorm.weight": self.embedding_norm,
            "midlayer.hidden_norm.weight": self.feature_norm,
            "norm.weight": self.norm,
            "lm_head.weight": self.lm_head,
        }
        offsets = {} if self.drafted is None else {"d2t": self.drafted - torch.arange(len(self.drafted))}
        return self._layer_tensors("midlayer") | own | offsets


def head_loss(
    head: Layer,
    target: Teacher,
    batch: Texts,
    states: Tensor,
    settings: Eagle3Training,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The weighted mean over the steps of the distance of the distributions (`losses.likeness`), each step step_decay
    times the one before.

    batch: B texts of T + 1 tokens; states: `[B, T + 1, 4D]`, the target's streams and final state; both on the target's
    device. With a reduced vocabulary the target's distribution is renormalised over the tokens that the head knows.
    """
    wanted = eagle.learnt(batch)
    with torch.no_grad(), autocast(target.where):
        likely = head.output(states[:, 1:, -target.hidden :][wanted])
        embedded = F.embedding(batch.tokens[:, 1:], target.embedding)
    total, weight, weights = torch.zeros((), device=target.where), 1.0, 0.0
    with autocast(target.where):
        # The weight of step i is step_decay to the power i.
        for predicted in head(embedded, states[:, :-1], settings.rollout):
            total = total + weight * likeness(head.logits(predicted[wanted]), likely, settings.loss)
            weights += weight
            weight *= settings.step_decay
    return total / weights


def train_head(
    recipe: Recipe, corpus_dir: Path, models: Path, target: Path, progress: bool, device: str = "cpu"
) -> None:
    """Train an EAGLE-3 head for the model in `target` and write the folder `models`/eagle3: see `eagle.fit`."""
    kind = eagle.HeadKind("eagle3", recipe.eagle3, Layer, head_loss)
    eagle.fit(kind, recipe, corpus_dir, models, target, progress=progress, device=device)
