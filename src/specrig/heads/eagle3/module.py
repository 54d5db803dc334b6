"""The EAGLE-3 head: one decoder layer on three of the target's residual streams (Li et al., 2503.01840, section 3).

It differs from EAGLE's head in what it reads and in what it predicts. It reads the target's residual stream after a
low, a middle and a high layer; `fc` turns the three vectors of position t into one vector g of width D. The layer's
residual stream is g, and its attention reads the normed embedding of token t + 1 beside the normed g. The output a need
not resemble any state of the target: the head's own norm and LM head turn it into the distribution of token t + 2, and
a itself, before that norm, is used as the next position's g.

    features   g0  g1  g2           g = fc(low, middle, high), true, from target passes
    entries    g0+x1  g1+x2  g2+x3  -> a3, and LM head(norm(a3)) drafts x4; then a3+x4 -> a4 and so on

Cache and rounds are EAGLE's (`heads.eagle`).

Checkpoint (what vLLM loads): config.json of a Llama, mostly with one layer, and
`eagle_config.eagle_aux_hidden_state_layer_ids` (see `read_aux_layers`), model.safetensors with `fc.weight` `[D, 3D]`
(low first), `midlayer.*` with `self_attn.{q,k,v}_proj.weight` `[., 2D]` (embedding first), `norm.weight`,
`lm_head.weight` `[Vd, D]`; further layers `layers.{1, …}.*` are a Llama's. With a reduced vocabulary
(`draft_vocab_size` Vd < V) `d2t` `[Vd]` int64: draft token i is the target's token i + d2t[i]. Logits stay those of the
Vd tokens: to draft one costs what a vocabulary of Vd costs, and only ids are mapped. Published heads have it otherwise
too (`heads.layouts`): with `norm_before_residual` the layer's residual stream is the normed g; EAGLE-3.1 has a norm on
each of the target's streams (`fc_norm.{0, 1, 2}.weight`) and feeds norm(a) back (`norm_output`); with `norm_before_fc`
one norm of the joined streams comes before `fc` (`input_norm.weight`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from specrig.heads.checkpoint import check_vocabulary
from specrig.heads.eagle import module as eagle
from specrig.heads.eagle.module import EagleHead, EagleLayers
from specrig.heads.eagle3 import choose_aux_layers
from specrig.heads.shapes import read_aux_layers
from specrig.runtime.layer import DecoderLayer, Product
from specrig.runtime.linear import Linear
from specrig.runtime.model import CachedModel

if TYPE_CHECKING:
    from pathlib import Path


class Eagle3Layers(EagleLayers):
    """What the head computes, when it drafts and while it learns; embedding and LM head aside."""

    def __init__(self, fc: Product, layers: Iterable[DecoderLayer], eps: float, norms: Sequence[Tensor]) -> None:
        """norms: of the embedding, of the feature, and of what the LM head reads."""
        super().__init__(fc, layers, eps)
        self.embedding_norm, self.feature_norm, self.norm = norms
        self.normed_residual = False
        """Whether the layer's residual stream is the normed feature (`norm_before_residual`)."""
        self.joined_norm: Tensor | None = None
        """Of all the target's states that `fc` reads, joined (`norm_before_fc`)."""
        self.state_norms: Sequence[Tensor] | nn.ParameterList = ()
        """Of each of them (`fc_norm`)."""

    def fuse(self, states: Tensor) -> Tensor:
        """The target's three residual streams (auxiliary hidden states), joined, `[..., 3D]` -> features `[..., D]`."""
        found: Tensor = self.fc(self.fused(states))
        return found

    def fused(self, states: Tensor) -> Tensor:
        """Those streams as `fc` reads them."""
        states = self.normed(states, self.joined_norm)
        if not len(self.state_norms):
            return states
        parts = zip(states.chunk(len(self.state_norms), -1), self.state_norms, strict=True)
        return torch.cat([self.normed(part, norm) for part, norm in parts], -1)

    def entry(self, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """See `EagleLayers`: the residual stream carries the features; attention reads the token too."""
        normed = self.normed(features, self.feature_norm)
        reads = torch.cat((self.normed(embedded.to(features.dtype), self.embedding_norm), normed), -1)
        return normed if self.normed_residual else features, reads


class Eagle3Head(EagleHead):
    """The head with its cache, its LM head, and the target's embedding. Rows share one set of aux layers."""

    kind: ClassVar[str] = "eagle3"
    title: ClassVar[str] = "EAGLE-3 head"
    module: Eagle3Layers

    def _check(self, tensors: dict[str, Tensor], target: CachedModel) -> None:
        super()._check(tensors, target)
        self.target_layers = read_aux_layers(self.config, target.layers)
        if "d2t" in tensors:
            check_vocabulary(torch.arange(len(tensors["d2t"])) + tensors["d2t"], self.config.vocab_size, "d2t")

    def take_weights(self, weights: dict[str, Tensor]) -> None:
        """Build the layers from the checkpoint's tensors."""
        names = "midlayer.input_layernorm", "midlayer.hidden_norm", "norm"
        norms = [weights[f"{name}.weight"] for name in names]
        self.module = Eagle3Layers(Linear(weights["fc.weight"]), self.layers_of(weights, "midlayer"), self.eps, norms)
        self.module.normed_residual = bool(getattr(self.config, "norm_before_residual", False))
        if not self.module.normed_residual:
            self.entry_norms = norms[0], norms[1]  # compiled code then makes what the layer reads
        self.module.joined_norm = weights.get("input_norm.weight")
        self.module.state_norms = [weights[name] for name in sorted(weights) if name.startswith("fc_norm.")]
        self.module.norms_output = bool(getattr(self.config, "norm_output", False))
        self.take_module(weights)

    @torch.inference_mode()
    def fuse(self, aux_hidden_states: Tensor) -> Tensor:
        """See `Eagle3Layers`: `[B, n, 3D]` -> `[B, n, D]`."""
        return self.module.fuse(aux_hidden_states)

    @torch.inference_mode()
    def entry(self, tokens: Tensor, features: Tensor | None) -> tuple[Tensor, Tensor]:
        """See `LlamaModel.entry`."""
        assert features is not None
        x, reads = super().entry(tokens, features)
        return x.clone() if x is features else x, reads  # the layer may overwrite its residual stream


def head_config(target: Any, draft_vocabulary: int | None = None, norms: bool = False) -> Any:
    """The configuration of a head for a target with this configuration, of so many of its tokens (None: of all).

    norms: EAGLE-3.1's. Raises DecodingError for a target of fewer than three layers.
    """
    config = eagle.head_config(target)
    config.architectures = ["LlamaForCausalLMEagle3"]
    config.tie_word_embeddings = False
    config.draft_vocab_size = draft_vocabulary or config.vocab_size
    layers = choose_aux_layers(target.get_text_config(decoder=True).num_hidden_layers)
    if norms:
        config.fc_norm = config.norm_output = True
    config.eagle_config = {"eagle_aux_hidden_state_layer_ids": list(layers), "use_aux_hidden_state": True}
    return config


def initialise(folder: Path, target: Any, seed: int) -> None:
    """Write an untrained head for a target with this configuration."""
    config = head_config(target)
    save(folder, config, random_tensors(config, seed, deviation=0.15))


load, save, random_tensors = Eagle3Head.load, Eagle3Head.save, Eagle3Head.random_tensors
