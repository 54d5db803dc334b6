"""Medusa heads: each predicts one further token from the model's last hidden state alone (Cai et al., 2401.10774,
section 2.1.1).

The LM head reads token t + 1 from the hidden state h of position t (after the final norm). Head i, counted from 0,
reads token t + 2 + i from the same h: LM_i(h + SiLU(W_i h + b_i)). One call drafts all positions; no head knows what
another head chose.

Checkpoint (what vLLM loads): config.json of model type "medusa" and model.safetensors with `blocks.{i}.layers.0.weight`
`[D, D]`, `.bias` `[D]` and `lm_heads.{i}.weight` `[Vd, D]`; its authors' names and further residual layers, each x +
SiLU(W x + b), are read too (`heads.layouts`). With `original_lm_head` one `lm_head.weight` `[Vd, D]`
serves all heads. With `projections` the model's own LM head does, behind a `projections.{i}.weight` P_i `[D, D]` of
each head: LM(P_i (h + SiLU(W_i h + b_i))). With a reduced vocabulary (`truncated_vocab_size` Vd < V) `token_map` `[Vd]`
int64 says which of the target's tokens each place stands for. With `markov_rank` there is a bias of the token before
(`heads.markov`). VLLM knows neither projections nor the bias. D hidden width, V vocabulary, Vd the heads', K heads.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the name everyone uses)
from transformers import PreTrainedConfig

from specrig.heads.draft_head import shared
from specrig.heads.markov import biased
from specrig.heads.measured import rates
from specrig.heads.medusa.depth_heads import DepthHeads
from specrig.runtime.layer import Product
from specrig.runtime.linear import Linear
from specrig.runtime.model import CachedModel, of_vocabulary


class MedusaConfig(PreTrainedConfig):
    """config.json of a head folder; transformers knows no such model, vLLM does."""

    model_type = "medusa"


class MedusaHead(nn.Module):
    """One head without its LM head, when it drafts and while it learns."""

    def __init__(self, layers: Iterable[Product], projection: Product | None = None) -> None:
        super().__init__()
        self.layers = list(layers)
        self.projection: Any = projection

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states `[..., D]` -> states that an LM head reads, `[..., D]`."""
        for layer in self.layers:
            hidden = hidden + F.silu(layer(hidden))
        found: Tensor = hidden if self.projection is None else self.projection(hidden)
        return found


class MedusaHeads(DepthHeads):
    """See the module."""

    kind: ClassVar[str] = "medusa"
    title: ClassVar[str] = "Medusa heads"
    config_class: ClassVar[type[PreTrainedConfig]] = MedusaConfig
    keys: ClassVar[tuple[str, ...]] = ("hidden_size", "vocab_size", "num_heads")

    def __init__(self, config: Any, tensors: dict[str, Tensor], target: CachedModel) -> None:
        super().__init__(config, tensors, target)
        self.first: list[float] = rates(config, "first")
        """`accuracy` of the model's own LM head and token t + 1."""

    @classmethod
    def configured(cls, keys: dict[str, Any], target: CachedModel) -> Any:
        """See `Checkpoint`; its authors leave the sizes to the model."""
        sizes = {"hidden_size": target.hidden_size, "vocab_size": target.config.vocab_size}
        return cls.config_class.from_dict(sizes | keys)

    def take_weights(self, weights: dict[str, Tensor]) -> None:
        """Build the heads from the checkpoint's tensors."""
        layers = range(getattr(self.config, "num_hidden_layers", None) or 1)

        def product(name: str) -> Linear:
            return Linear(weights[f"{name}.weight"], weights.get(f"{name}.bias")).rounded(self.title)

        def each(part: str) -> list[Linear | None]:
            names = [f"{part}.{head}" for head in range(self.count)]
            return [product(name) if f"{name}.weight" in weights else None for name in names]

        self.heads = [
            MedusaHead([product(f"blocks.{head}.layers.{index}") for index in layers], projection)
            for head, projection in enumerate(each("projections"))
        ]
        self.outputs = [output for output in each("lm_heads") if output is not None]
        """LM heads: one each, or one for all."""
        if "lm_head.weight" in weights:
            self.outputs = [product("lm_head")]
        elif not self.outputs:
            _, output = shared(self.target)
            output = output if self.vocabulary is None else output.select_outputs(self.vocabulary)
            self.outputs = [output.rounded(self.title)]

    @torch.inference_mode()
    def __call__(self, hidden: Tensor, count: int) -> Tensor:
        """Hidden states `[B, D]` of positions t -> logits `[B, count, Vd]` of tokens t + 2 … t + 1 + count."""
        logits = self.run(count, partial(self._logits, count), hidden, count)
        # What is padding for the model is never offered.
        return logits[..., : self.target.vocab_size] if self.vocabulary is None else logits

    def biased(self, logits: Tensor, head: int, tokens: Tensor) -> Tensor:
        """Of logits `[B, K, Vd]` those of a head, `[B, m, Vd]`, each behind one of the tokens `[B, m]`."""
        return biased(logits[:, head : head + 1].expand(-1, tokens.shape[1], -1), self.markov, tokens)

    def widened(self, logits: Tensor) -> Tensor:
        """Logits `[..., Vd]` as ones of all the model's tokens, `[..., V]`: minus infinity for those that the heads
        cannot draft.
        """
        if self.vocabulary is None:
            return of_vocabulary(logits, self.target.vocab_size)
        every = logits.new_full((*logits.shape[:-1], self.target.vocab_size), -torch.inf)
        return every.index_copy_(-1, self.vocabulary, logits)

    def _logits(self, count: int, hidden: Tensor) -> tuple[Tensor]:
        states = torch.stack([head(hidden) for head in self.heads[:count]], 1)  # [B, count, D]
        if len(self.outputs) == 1:
            return (self.outputs[0](states),)
        logits = [output(state) for output, state in zip(self.outputs, states.unbind(1), strict=False)]
        return (torch.stack(logits, 1),)


def heads_config(*, shared: bool = False, projections: bool = False, **sizes: Any) -> Any:
    """See `DepthHeads.make_config`. shared: one LM head for all. projections: see `Medusa.projections`."""
    noted: dict[str, Any] = {"projections": True} if projections else {}  # others read the config too
    return MedusaHeads.make_config(
        **sizes,
        **noted,
        architectures=["MedusaModel"],
        num_hidden_layers=1,
        medusa_fc_bias=True,
        original_lm_head=shared,
    )


def initialise(folder: Path, model: Any, seed: int) -> None:
    """Write untrained heads for a model with this configuration."""
    text = model.get_text_config(decoder=True)
    config = heads_config(hidden=text.hidden_size, vocabulary=text.vocab_size, heads=4)
    save(folder, config, random_tensors(config, seed))


shapes, random_tensors = MedusaHeads.shapes, MedusaHeads.random_tensors
load, save = MedusaHeads.load, MedusaHeads.save
