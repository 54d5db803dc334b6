"""The EAGLE head: one decoder layer that continues the target's features (Li et al., 2401.15077, section 4.1).

The feature of position t is the target's hidden state after the final norm, which its LM head reads to predict token t
+ 1. From the feature of t and the embedding of token t + 1 the head predicts the feature of t + 1, and the target's own
LM head turns that into the distribution of token t + 2. The head goes on without the target by reading the features
that it predicted itself.

    tokens     x0  x1  x2  x3       context: prompt and output so far, x3 not yet run by the target
    features   f0  f1  f2           true, from target passes
    entries    f0+x1  f1+x2  f2+x3  -> f3', and LM head(f3') drafts x4; then f3'+x4 -> f4' and so on

The head's cache holds such entries. Entries made of true features stay. Entries made of predicted features are dropped
after each round; for the accepted tokens they are computed again from the true features, which the target's pass has
given by then.

Checkpoint (what vLLM loads): config.json of a Llama with one layer, model.safetensors with `fc.weight` `[D, 2D]`
(embedding first), `layers.0.{self_attn,mlp}.*` and `layers.0.post_attention_layernorm.weight`; mostly no input norm, no
final norm, no embedding, no LM head. Published heads may have all of these, an `fc.bias` (the authors' default), biases
in the layer and further layers (`heads.shapes`, `heads.layouts`). A head with a final norm feeds the state behind it
back: that is what the target's features are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the name everyone uses)
from transformers import LlamaConfig

from specrig.heads.draft_head import DraftHead
from specrig.heads.layer import layer_like
from specrig.runtime.device import Positions, at_each, padded
from specrig.runtime.layer import DecoderLayer, Product
from specrig.runtime.linear import Linear
from specrig.runtime.model import Step
from specrig.runtime.types import Parents

if TYPE_CHECKING:
    from pathlib import Path


class EagleLayers(nn.Module):
    """What the head computes, when it drafts and while it learns; embedding and LM head are the target's."""

    def __init__(self, fc: Product, layers: Iterable[DecoderLayer], eps: float) -> None:
        super().__init__()
        self.fc: Any = fc
        self.eps = eps
        self.layers: Any = nn.ModuleList(layers)
        self.embedding_norm: Tensor | None = None
        """Of the embedding that `fc` reads; None: it reads the embedding as it is."""
        self.feature_norm: Tensor | None = None
        """Of the feature that `fc` reads, likewise."""
        self.input_norm: Tensor | None = None
        """Of the stream that the first layer's attention reads; None: it reads the stream as it is."""
        self.norm: Tensor | None = None
        """Of what the LM head reads; None: it reads the predicted feature as it is."""
        self.norms_output = False
        """Whether the state behind the final norm is fed back, instead of the one before it."""

    def joined(self, embedded: Tensor, features: Tensor) -> Tensor:
        """Embeddings and features `[..., D]` as `fc` reads them, `[..., 2D]`."""
        embedded = self.normed(embedded, self.embedding_norm)
        return torch.cat((embedded, self.normed(features.to(embedded.dtype), self.feature_norm)), -1)

    def entry(self, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Of embeddings and features `[B, n, D]` the first layer's residual stream, and what its attention reads."""
        x = self.fc(self.joined(embedded, features))
        return x, self.normed(x, self.input_norm)

    def read_out(self, predicted: Tensor) -> Tensor:
        """Predicted features `[..., D]` as the LM head reads them."""
        return self.normed(predicted, self.norm)

    def fed_back(self, predicted: Tensor) -> Tensor:
        """Predicted features `[..., D]` as the next step reads them."""
        return self.read_out(predicted) if self.norms_output else predicted

    def normed(self, x: Tensor, norm: Tensor | None) -> Tensor:
        """`[..., D]` behind a norm; as it is where there is none."""
        return x if norm is None else F.rms_norm(x, x.shape[-1:], norm, self.eps)


class EagleHead(DraftHead):
    """The head with its cache, and with the target's embedding and LM head. B rows, D hidden width, V vocabulary, Vd
    the head's.
    """

    kind: ClassVar[str] = "eagle"
    title: ClassVar[str] = "EAGLE head"
    module: EagleLayers
    _above: Tensor | None = None

    def take_weights(self, weights: dict[str, Tensor]) -> None:
        """Build the layers from the checkpoint's tensors."""
        layers = self.layers_of(weights, "layers.0")
        self.module = EagleLayers(Linear(weights["fc.weight"], weights.get("fc.bias")), layers, self.eps)
        self.module.embedding_norm = weights.get("embedding_norm.weight")
        self.module.feature_norm = weights.get("feature_norm.weight")
        self.module.input_norm = weights.get("layers.0.input_layernorm.weight")
        self.module.norm = weights.get("norm.weight")
        self.module.norms_output = self.module.norm is not None
        self.take_module(weights)

    def layers_of(self, weights: dict[str, Tensor], first: str) -> list[DecoderLayer]:
        """The layers of a checkpoint, whose first has this name."""
        further = (DecoderLayer.of(weights, f"layers.{index}.", self.config) for index in range(1, self.layers))
        return [DecoderLayer.of(weights, f"{first}.", self.config, whole=False), *further]

    def take_module(self, weights: dict[str, Tensor]) -> None:
        """Let passes, compiled ones too, read the module's weights."""
        self.fc, self.blocks, self.norm = self.module.fc, list(self.module.layers), self.module.norm
        self.take_output(weights)

    def begin(self, rows: Sequence[Sequence[int]], features: Tensor) -> None:
        """See `DraftHead`."""
        self._above = None
        super().begin(rows, features)

    def run(self, tokens: Tensor, features: Tensor, *, last: Positions | None = None) -> tuple[Tensor, Tensor]:
        """Entries of `tokens` `[B, n]`, each with the `features` `[B, n, D]` of the position before it, behind the
        cache.

        Returns logits `[B, n, Vd]` of the tokens that follow (with `last` `[B, 1, Vd]`) and the predicted features `[B,
        n, D]`.
        """
        logits, predicted = self.forward(tokens, last=last, features=features)
        return logits, self.module.fed_back(predicted)

    def advance(self, rows: Sequence[Sequence[int]], done: Sequence[bool] = ()) -> tuple[Tensor, Tensor]:
        """Run the entries of the tokens that were accepted; returns next-token logits `[B, Vd]` and the last token's
        predicted feature `[B, D]`. rows: the contexts; done: which of them are over, none by default.
        """
        accepted = self._accepted(rows, done)
        logits, features = self._take(accepted, self._features)
        self._base = list(self.lengths)
        return logits[:, 0], at_each(features, [max(len(row) - 1, 0) for row in accepted])

    def step(self, tokens: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Run one drafted token a row, `[B]`, with the predicted `features` `[B, D]` before it; returns logits `[B,
        Vd]`, feature `[B, D]`.
        """
        logits, predicted = self.run(tokens.unsqueeze(1), features.unsqueeze(1))
        self.keep([[0]] * len(tokens))
        return logits[:, 0], predicted[:, 0]

    def branch(self, tokens: Tensor, features: Tensor, above: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run one level of a tree: `tokens` `[B, w]`, each with its parent's `features` `[B, w, D]`.

        Returns logits `[B, w, Vd]` and predicted features `[B, w, D]`. above: `[B, w]`, each node's parent among the
        nodes of the level before; None for the first level. Only the new level runs: it sees the context and its
        ancestors, whose entries are in the cache.
        """
        B, w = tokens.shape
        # own: [B, w, m], what each node sees among the m nodes of all levels so far: what its parent sees, and itself.
        own = torch.eye(w, dtype=torch.bool, device=self.device).expand(B, w, w)
        if above is not None:
            assert self._above is not None
            lineage = self._above.gather(1, above.unsqueeze(-1).expand(-1, -1, self._above.shape[-1]))
            own = torch.cat((lineage, own), -1)
        self._above = own
        result = self.run(tokens, features)
        self.keep([range(w)] * B)
        return result

    def rewind(self) -> None:
        """Drop every entry made of a predicted feature."""
        super().rewind()
        self._above = None

    def _take(self, rows: list[list[int]], features: Tensor) -> tuple[Tensor, Tensor]:
        """Run and keep entries of true features; returns logits behind each row's last entry `[B, 1, Vd]` and features
        `[B, n, D]`.
        """
        width = features.shape[1]
        result = self.run(padded(rows, width, self.device), features, last=[max(len(row) - 1, 0) for row in rows])
        self.keep([range(len(row)) for row in rows])
        return result

    @property
    def sees_ancestors(self) -> bool:
        """See `CachedModel`; a level of a tree sees the levels before it."""
        return self._above is None

    def _bases(self) -> list[int]:
        return self.lengths if self._above is None else self._base

    def _own(self, n: int, parents: Parents | None) -> Tensor | None:
        return super()._own(n, parents) if self._above is None else self._above

    @torch.inference_mode()
    def entry(self, tokens: Tensor, features: Tensor | None) -> tuple[Tensor, Tensor]:
        """See `LlamaModel.entry`."""
        assert features is not None
        return self.module.entry(F.embedding(tokens, self.embedding), features)

    @torch.inference_mode()
    def _hidden(self, tokens: Tensor, step: Step, features: Tensor | None) -> Tensor:
        x, reads = self.entry(tokens, features)
        view = self.view(step)
        for index, block in enumerate(self.blocks):
            x = self.block(index, block, x, view, None if index else reads)
        return x

    @torch.inference_mode()
    def _logits(self, hidden: Tensor) -> Tensor:
        return self.head(self.module.read_out(hidden))


def head_config(target: Any, drafted: Tensor | None = None) -> Any:
    """The configuration of a head for a target with this configuration: a Llama of one layer with the target's sizes.

    drafted: `[Vd]`, the tokens that it can draft, None: all. vLLM, which knows no such key, then drafts among all.
    """
    own = {} if drafted is None else {"specrig": {"drafted": drafted.tolist()}}
    return LlamaConfig(
        **own,
        **layer_like(target.get_text_config(decoder=True)),
        num_hidden_layers=1,
        architectures=["EagleLlamaForCausalLM"],
    )


def initialise(folder: Path, target: Any, seed: int) -> None:
    """Write an untrained head for a target with this configuration."""
    config = head_config(target)
    save(folder, config, random_tensors(config, seed, deviation=0.15))


load, save, random_tensors = EagleHead.load, EagleHead.save, EagleHead.random_tensors
