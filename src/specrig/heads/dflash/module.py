"""The DFlash head: a few layers that fill a block of masks in one pass (2602.06036, section 3).

    tokens     x0  x1  x2  x3                 context: prompt and output so far, x3 not yet run by the target
    features   h0  h1  h2                     h = norm(fc(states of some of the target's layers))
    block                  x3  [m]  [m]  [m]  -> x4, x5 and x6, by the masks

The block runs through the layers as tokens of a Qwen3 do, but inside it attention goes both ways. In each layer the
context's keys and values are made of the features alone, by the layer's own projections: they are written to the cache
once, without a pass. Embedding and LM head are the target's. Nothing of a block is kept.

Checkpoint (what vLLM loads as `dflash`): config.json of a Qwen3 with `block_size` and `dflash_config`: `mask_token_id`
and `target_layer_ids` (j is the state after layer j, from 0); model.safetensors with `fc.weight` `[D, F D]` (low
first), `hidden_norm.weight`, `norm.weight` and a Qwen3's `layers.*`; no embedding, no LM head. Which tokens it can
draft, where not all, stands under `specrig` as in EAGLE's, or in `d2t` beside an LM head of its own, as in EAGLE-3's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the name everyone uses)
from transformers import PreTrainedConfig, Qwen3Config

from specrig.heads.checkpoint import check_vocabulary
from specrig.heads.dflash import choose_target_layers
from specrig.heads.draft_head import DraftHead
from specrig.heads.layer import layer_like, mask_token
from specrig.heads.shapes import dflash_config, first_drafting, read_target_layers
from specrig.runtime.device import on_device
from specrig.runtime.layer import DecoderLayer, Product
from specrig.runtime.linear import Linear
from specrig.runtime.model import CachedModel
from specrig.runtime.pointwise import rotate
from specrig.runtime.types import Parents

if TYPE_CHECKING:
    from pathlib import Path


class DFlashLayers(nn.Module):
    """What the head computes, when it drafts and while it learns; embedding and LM head are the target's."""

    def __init__(
        self, fc: Product, layers: Iterable[DecoderLayer], context: Product, feature_norm: Tensor, norm: Tensor
    ) -> None:
        """context: keys and values of all layers of the same features, [L · 2 · K · d, D]."""
        super().__init__()
        self.fc: Any = fc
        self.layers: Any = nn.ModuleList(layers)
        self.context = context
        self.eps: Any = self.layers[0].eps
        self.feature_norm, self.norm = feature_norm, norm

    def fuse(self, states: Tensor) -> Tensor:
        """The target's states (auxiliary hidden states), joined, `[B, n, F D]` -> features `[B, n, D]`."""
        return F.rms_norm(self.fc(states), self.feature_norm.shape, self.feature_norm, self.eps)

    def keys_values(self, features: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Of features `[B, n, D]` keys, not rotated yet, and values of each layer, `[B, n, K, d]` each."""
        d = self.layers[0].head_width
        parts = self.context(features).unflatten(-1, (len(self.layers), 2, -1, d)).unbind(2)
        for layer, (keys, values) in zip(self.layers, (part.unbind(2) for part in parts), strict=True):
            yield keys if layer.k_norm is None else F.rms_norm(keys, (d,), layer.k_norm, self.eps), values

    def read_out(self, x: Tensor) -> Tensor:
        """The residual stream behind the last layer as the LM head reads it."""
        return F.rms_norm(x, self.norm.shape, self.norm, self.eps)


class DFlashHead(DraftHead):
    """The head with its cache of the context's features. B rows, D hidden width, Vd the head's vocabulary."""

    kind: ClassVar[str] = "dflash"
    title: ClassVar[str] = "DFlash head"
    config_class: ClassVar[type[PreTrainedConfig]] = Qwen3Config
    consecutive: ClassVar[bool] = True
    states: Tensor
    """`[B, k, D]` after the norm, that the last draft was read from."""

    def _check(self, tensors: dict[str, Tensor], target: CachedModel) -> None:
        super()._check(tensors, target)
        self.target_layers = read_target_layers(self.config, target.layers)
        self.mask_id: int = dflash_config(self.config)["mask_token_id"]
        self.first = first_drafting(self.config)
        if "d2t" in tensors:
            check_vocabulary(torch.arange(len(tensors["d2t"])) + tensors["d2t"], self.config.vocab_size, "d2t")

    def take_weights(self, weights: dict[str, Tensor]) -> None:
        """Build the layers from the checkpoint's tensors."""
        layers = [DecoderLayer.of(weights, f"layers.{index}.", self.config) for index in range(self.layers)]
        parts = [f"layers.{index}.self_attn.{part}_proj" for index in range(self.layers) for part in "kv"]
        biases = [weights[f"{part}.bias"] for part in parts if f"{part}.bias" in weights]
        bias = torch.cat(biases) if biases else None
        context = Linear(torch.cat([weights[f"{part}.weight"] for part in parts]), bias)
        norms = weights["hidden_norm.weight"], weights["norm.weight"]
        self.module = DFlashLayers(Linear(weights["fc.weight"]), layers, context, *norms)
        self.blocks, self.norm = layers, self.module.norm
        if (masks := weights.get("mask_embedding")) is not None:
            self.embedding = self.embedding.index_copy(0, torch.tensor([self.mask_id]).to(masks.device), masks[None])
        self.take_output(weights)

    @torch.inference_mode()
    def fuse(self, aux_hidden_states: Tensor) -> Tensor:
        """See `DFlashLayers`."""
        return self.module.fuse(aux_hidden_states)

    def draft(self, rows: Sequence[Sequence[int]], done: Sequence[bool], k: int) -> Tensor:
        """Keep the features of the tokens that were accepted and run a block; returns the logits `[B, k, Vd]` of k
        tokens.

        rows: the contexts; done: which of them are over, whose logits mean nothing.
        """
        self._take(self._accepted(rows, done), self._features)
        self._base = list(self.lengths)
        width = k + self.first
        block = on_device([[row[-1], *[self.mask_id] * (width - 1)] for row in rows], self.device)
        logits, hidden = self.forward(block, last=[range(self.first, width)] * len(rows))
        self.states = hidden[:, self.first : width]
        return logits

    @torch.inference_mode()
    def _take(self, rows: list[list[int]], features: Tensor) -> None:
        """Keep the first of the features `[B, n, D]` of each row, as many as `rows[b]` has tokens."""
        n, start = features.shape[1], max(self.lengths)
        self._check_room(start + n)
        at: slice | Tensor = slice(start, start + n)
        if not self.cache.aligned:
            at = on_device(self.lengths, self.device).unsqueeze(1) + torch.arange(n, device=self.device)
        cos, sin = self.cos[at].unsqueeze(-2), self.sin[at].unsqueeze(-2)
        for index, (keys, values) in enumerate(self.module.keys_values(features)):
            self.cache.write(index, rotate(keys, cos, sin).transpose(1, 2), values.transpose(1, 2), at, start + n)
        self.keep([range(len(row)) for row in rows])

    @property
    def sees_ancestors(self) -> bool:
        """See `CachedModel`; all of a block see each other."""
        return False

    def _own(self, n: int, parents: Parents | None) -> Tensor:
        """All of a block see each other."""
        return torch.ones((n, n), dtype=torch.bool, device=self.device).expand(self.cache.batch_size, n, n)


def head_config(target: Any, layers: int = 2, k: int = 7, drafted: Tensor | None = None) -> Any:
    """The configuration of a head of so many layers for a target with this configuration: a Qwen3 with its sizes.

    k: tokens that it learns to draft at once. drafted: `[Vd]`, the tokens that it can draft, None: all; vLLM then
    drafts among all. Raises DecodingError for a target of one layer.
    """
    text = target.get_text_config(decoder=True)
    like = layer_like(text)
    config = Qwen3Config(
        **({} if drafted is None else {"specrig": {"drafted": drafted.tolist()}}),
        **{"head_dim": text.hidden_size // text.num_attention_heads} | like,
        num_hidden_layers=layers,
        architectures=["DFlashDraftModel"],
        block_size=k + 1,
        num_target_layers=text.num_hidden_layers,
    )
    config.dflash_config = {
        "mask_token_id": mask_token(config),
        "target_layer_ids": [layer - 1 for layer in choose_target_layers(text.num_hidden_layers)],
    }
    return config


def initialise(folder: Path, target: Any, seed: int) -> None:
    """Write an untrained head for a target with this configuration."""
    config = head_config(target)
    save(folder, config, random_tensors(config, seed, deviation=0.15))


load, save, random_tensors = DFlashHead.load, DFlashHead.save, DFlashHead.random_tensors
