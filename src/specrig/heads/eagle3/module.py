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
`eagle_config.eagle_aux_hidden_state_layer_ids` (j is the stream after j layers), model.safetensors with `fc.weight`
`[D, 3D]` (low first), `midlayer.*` with `self_attn.{q,k,v}_proj.weight` `[., 2D]` (embedding first), `norm.weight`,
`lm_head.weight` `[Vd, D]`; further layers `layers.{1, …}.*` are a Llama's. With a reduced vocabulary
(`draft_vocab_size` Vd < V) `d2t` `[Vd]` int64: draft token i is the target's token i + d2t[i]. Logits stay those of the
Vd tokens: to draft one costs what a vocabulary of Vd costs, and only ids are mapped. Published heads carry `t2d` too,
the mask `[V]` of the tokens that d2t reaches.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the name everyone uses)

from specrig.heads.checkpoint import Shapes, check_vocabulary
from specrig.heads.eagle import module as eagle
from specrig.heads.eagle.module import EagleHead
from specrig.heads.eagle3 import MASKS, choose_aux_layers
from specrig.heads.layer import layer_of, layer_shapes
from specrig.runtime.linear import Linear
from specrig.runtime.model import CachedModel
from specrig.runtime.types import DecodingError

if TYPE_CHECKING:
    from pathlib import Path

_VARIANTS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
"""Keys by which a checkpoint says that its norms sit elsewhere."""


class Eagle3Head(EagleHead):
    """The head with its cache, its LM head, and the target's embedding. Rows share one set of aux layers."""

    title: ClassVar[str] = "EAGLE-3 head"
    ignored: ClassVar[tuple[str, ...]] = (*EagleHead.ignored, *MASKS)
    """Also what a P-EAGLE head (`heads.p_eagle`) has besides."""

    def _check(self, tensors: dict[str, Tensor], target: CachedModel) -> None:
        self._check_vocabulary(target)
        super()._check(tensors, target)
        if others := [name for name in _VARIANTS if getattr(self.config, name, False)]:
            raise DecodingError(
                f"an EAGLE-3 head with {', '.join(others)} in its config is of another build, not supported here"
            )
        self.target_layers = read_aux_layers(self.config, target.layers)
        if "d2t" in tensors:
            check_vocabulary(torch.arange(len(tensors["d2t"])) + tensors["d2t"], self.config.vocab_size, "d2t")

    @staticmethod
    def shapes(config: Any) -> Shapes:
        """See `Checkpoint`."""
        D, V = config.hidden_size, getattr(config, "draft_vocab_size", None) or config.vocab_size
        found: Shapes = {"fc.weight": (D, 3 * D)} | layer_shapes(config, "midlayer", 2 * D)
        found |= {f"midlayer.{name}.weight": (D,) for name in ("input_layernorm", "hidden_norm")}
        found |= {"norm.weight": (D,), "lm_head.weight": (V, D)}
        for layer in (f"layers.{index}" for index in range(1, config.num_hidden_layers)):
            found |= layer_shapes(config, layer, D) | {f"{layer}.input_layernorm.weight": (D,)}
        return found | ({"d2t": (V,)} if config.vocab_size > V else {})

    def take_weights(self, weights: dict[str, Tensor]) -> None:
        """Build the layer from the checkpoint's tensors."""
        self.fc = Linear(weights["fc.weight"])
        self.blocks = [layer_of(weights, "midlayer")]
        self.blocks += [layer_of(weights, f"layers.{index}", whole=True) for index in range(1, self.layers)]
        self.entry_norms = weights["midlayer.input_layernorm.weight"], weights["midlayer.hidden_norm.weight"]
        self.norm = weights["norm.weight"]
        rows = weights["lm_head.weight"]
        if "d2t" in weights:
            self.set_vocabulary(torch.arange(len(rows), device=self.device) + weights["d2t"])
        self.head = Linear(rows[self.order])

    @torch.inference_mode()
    def fuse(self, aux_hidden_states: Tensor) -> Tensor:
        """The target's three residual streams (auxiliary hidden states), joined, `[B, n, 3D]` -> features `[B, n, D]`."""
        fused: Tensor = self.fc(aux_hidden_states)
        return fused

    @torch.inference_mode()
    def entry(self, tokens: Tensor, features: Tensor | None) -> tuple[Tensor, Tensor]:
        """See `LlamaModel.entry`."""
        assert features is not None and self.entry_norms is not None
        x, D = features.clone(), self.hidden_size  # the layer may overwrite its residual stream
        embedding_norm, feature_norm = self.entry_norms
        embedded = F.rms_norm(F.embedding(tokens, self.embedding), (D,), embedding_norm, self.eps)
        reads = torch.cat((embedded, F.rms_norm(x, (D,), feature_norm, self.eps)), -1)
        return x, reads

    @torch.inference_mode()
    def _logits(self, hidden: Tensor) -> Tensor:
        return self.head(F.rms_norm(hidden, (self.hidden_size,), self.norm, self.eps))


def read_aux_layers(config: Any, layers: int) -> tuple[int, ...]:
    """The layers that a checkpoint names for a target of `layers` layers; those of the paper's code where it names
    none.
    """
    named = (getattr(config, "eagle_config", None) or {}).get("eagle_aux_hidden_state_layer_ids")
    found = tuple(named or (2, layers // 2, layers - 3))
    if len(found) != 3 or any(low >= high for low, high in pairwise((-1, *found, layers))):
        raise DecodingError(
            f"eagle_aux_hidden_state_layer_ids are {list(found)}, not three rising ones from 0 to {layers - 1}"
        )
    return found


def head_config(target: Any, draft_vocabulary: int | None = None) -> Any:
    """The configuration of a head for a target with this configuration, of so many of its tokens (None: of all).

    Raises DecodingError for a target of fewer than three layers.
    """
    config = eagle.head_config(target)
    config.architectures = ["LlamaForCausalLMEagle3"]
    config.tie_word_embeddings = False
    config.draft_vocab_size = draft_vocabulary or config.vocab_size
    layers = choose_aux_layers(target.get_text_config(decoder=True).num_hidden_layers)
    config.eagle_config = {"eagle_aux_hidden_state_layer_ids": list(layers), "use_aux_hidden_state": True}
    return config


def initialise(folder: Path, target: Any, seed: int) -> None:
    """Write an untrained head for a target with this configuration."""
    config = head_config(target)
    save(folder, config, random_tensors(config, seed, deviation=0.15))


load, save, random_tensors = Eagle3Head.load, Eagle3Head.save, Eagle3Head.random_tensors
