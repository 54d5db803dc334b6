"""Training of the EAGLE-3 head: "training-time test" (Li et al., 2503.01840, section 3.2).

In training the head takes the same steps as when it drafts: the first one reads the target's fused features, each further one reads the
head's own output. Each step's loss is the KL divergence between the target's distribution and the head's (the paper has a cross-entropy,
which differs by a constant). No loss asks the output to resemble the target's features, so the layer can carry what later steps need.
Shapes: B sequences, T entries (tokens less one), D hidden, V vocabulary, Vd the head's.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name
from transformers import LlamaConfig

from specrig.decoding.heads import eagle3 as checkpoint
from specrig.decoding.types import DecodingError
from specrig.training import eagle
from specrig.training.eagle3_recipe import Eagle3Training
from specrig.training.llama import EPSILON, Llama
from specrig.training.losses import distillation
from specrig.training.recipe import Recipe
from specrig.training.run import TrainingError
from specrig.training.target_text import read_text
from specrig.training.trainer import autocast


class Layer(eagle.Layer):
    """The head while it trains. Its LM head and norm begin as the target's."""

    drafted: Tensor

    def __init__(self, target: Llama, drafted: Tensor | None = None) -> None:
        """drafted: `[Vd]` rising token ids that the head can draft; None: all."""
        super().__init__(target)
        D = target.shape.hidden
        try:
            self.streams = checkpoint.choose_aux_layers(target.shape.layers)
        except DecodingError as error:
            raise TrainingError(str(error)) from error
        self.fc = nn.Parameter(torch.empty(D, 3 * D))
        self.qkv = nn.Parameter(torch.empty(3 * D, 2 * D))
        self.embedding_norm, self.feature_norm = nn.Parameter(torch.ones(D)), nn.Parameter(torch.ones(D))
        self.norm = nn.Parameter(target.norm.detach().clone())
        every = torch.arange(target.vocabulary)
        self.register_buffer("drafted", every if drafted is None else drafted.cpu(), persistent=False)
        self.lm_head = nn.Parameter(target.embedding.detach()[self.drafted.to(target.embedding.device)].clone())
        self.reduced, self.vocabulary = len(self.drafted) < target.vocabulary, target.vocabulary

    def fuse(self, states: Tensor) -> Tensor:
        """The target's low, middle and high stream -> features: `[B, T, 4D]` -> `[B, T, D]`. The last D, the final state, are not read."""
        return F.linear(states[..., : self.fc.shape[1]].to(self.fc.dtype), self.fc)

    def enter(self, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream carries the features; attention reads the token too."""
        D = features.shape[-1:]
        embedded = F.rms_norm(embedded.to(features.dtype), D, self.embedding_norm, EPSILON)
        return features, torch.cat((embedded, F.rms_norm(features, D, self.feature_norm, EPSILON)), -1)

    def draft_logits(self, predicted: Tensor) -> Tensor:
        """`[..., D]` -> `[..., Vd]`."""
        return F.linear(F.rms_norm(predicted, predicted.shape[-1:], self.norm, EPSILON), self.lm_head)

    def logits(self, predicted: Tensor, target: Llama) -> Tensor:
        """`[..., D]` -> `[..., V]`, minus infinity for what the head cannot draft."""
        own = self.draft_logits(predicted)
        if not self.reduced:
            return own
        every = own.new_full((*own.shape[:-1], self.vocabulary), -torch.inf)
        every[..., self.drafted] = own
        return every

    def save(self, folder: Path, target: LlamaConfig) -> None:
        """See `eagle.Layer`."""
        checkpoint.save(folder, checkpoint.head_config(target, len(self.drafted)), self.tensors())

    def tensors(self) -> dict[str, Tensor]:
        """The weights under the checkpoint's names."""
        own = {
            "midlayer.input_layernorm.weight": self.embedding_norm,
            "midlayer.hidden_norm.weight": self.feature_norm,
            "norm.weight": self.norm,
            "lm_head.weight": self.lm_head,
        }
        offsets = {"d2t": self.drafted - torch.arange(len(self.drafted), device=self.drafted.device)} if self.reduced else {}
        return self._layer_tensors("midlayer") | own | offsets


def head_loss(
    head: Layer, target: Llama, tokens: Tensor, states: Tensor, settings: Eagle3Training, generator: torch.Generator | None = None
) -> Tensor:
    """The weighted mean over the steps of the KL divergence, in nats a token; each step weighs step_decay times the one before.

    tokens: `[B, T + 1]`; states: `[B, T + 1, 4D]`, the target's streams and final state; both on the target's device. With a reduced
    vocabulary the target's distribution is renormalised over the tokens that the head knows.
    """
    where = target.embedding.device
    with torch.no_grad(), autocast(where):
        likely = target.logits(states[:, 1:, -target.shape.hidden :]).flatten(0, 1)
        likely = likely[:, head.drafted] if head.reduced else likely
        embedded = F.embedding(tokens[:, 1:], target.embedding)
    T = embedded.shape[1]
    unused = torch.zeros(len(likely), dtype=torch.int64, device=where)  # labels, of no weight
    total, weight, weights = torch.zeros((), device=where), 1.0, 0.0
    with autocast(where):
        # The weight of step i is step_decay to the power i.
        for predicted in head(embedded, states[:, :-1], settings.rollout, target.cos[:T], target.sin[:T]):
            total = total + weight * distillation(head.draft_logits(predicted).flatten(0, 1), likely, unused, 1.0)
            weights += weight
            weight *= settings.step_decay
    return total / weights


def frequent(texts: Tensor, count: int, vocabulary: int) -> Tensor:
    """The `count` tokens that `texts` hold most often, rising ids `[count]`; among equals the lower id."""
    found = torch.bincount(texts.flatten(), minlength=vocabulary).argsort(descending=True, stable=True)
    return found[:count].sort().values


def train_head(recipe: Recipe, corpus_dir: Path, models: Path, target: Path, progress: bool, device: str = "cpu") -> None:
    """Train an EAGLE-3 head for the model in `target` and write the folder `models`/eagle3: see `eagle.fit`."""
    wanted = recipe.eagle3.draft_vocabulary

    def make(target: Llama) -> Layer:
        if wanted is None or wanted >= target.vocabulary:
            return Layer(target)
        return Layer(target, frequent(read_text(models).train, wanted, target.vocabulary))

    kind = eagle.HeadKind("eagle3", recipe.eagle3, make, head_loss)
    eagle.fit(kind, recipe, corpus_dir, models, target, progress=progress, device=device)
