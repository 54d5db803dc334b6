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

from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the name everyone uses)
from transformers import PreTrainedConfig

from specrig.heads.draft_head import shared
from specrig.heads.markov import biased
from specrig.heads.measured import rates
from specrig.heads.medusa.depth_heads import DepthHeads
from specrig.runtime.linear import Linear
from specrig.runtime.model import CachedModel, of_vocabulary


class MedusaConfig(PreTrainedConfig):
    """config.json of a head folder; transformers knows no such model, vLLM does."""

    model_type = "medusa"


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
        """The first residual layers of all heads read the same h, so they are one matrix product. Further ones,
        projections and LM heads read different states, so they are not, unless one LM head serves all.
        """
        first, *further = (
            [
                (f"blocks.{head}.layers.{index}.weight", f"blocks.{head}.layers.{index}.bias")
                for head in range(self.count)
            ]
            for index in range(getattr(self.config, "num_hidden_layers", None) or 1)
        )
        biases = [weights[bias] for _, bias in first if bias in weights]
        blocks = Linear(torch.cat([weights[weight] for weight, _ in first]), torch.cat(biases) if biases else None)
        self.blocks = blocks.rounded(self.title)
        self.further = [
            [Linear(weights[weight], weights.get(bias)).rounded(self.title) for weight, bias in layer]
            for layer in further
        ]
        self.projections, own = self._each(weights, "projections"), self._each(weights, "lm_heads")
        if self.projections:
            _, output = shared(self.target)
            own = [output if self.vocabulary is None else output.select_outputs(self.vocabulary)]
        elif not own:
            own = [Linear(weights["lm_head.weight"])]
        self.outputs = [output.rounded(self.title) for output in own]

    def _each(self, weights: dict[str, Tensor], part: str) -> list[Linear]:
        """The heads' own matrices of that name; empty: they have none."""
        names = [f"{part}.{head}.weight" for head in range(self.count)]
        return [Linear(weights[name]).rounded(self.title) for name in names if name in weights]

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
        B, D = hidden.shape
        # h + SiLU(W_i h + b_i) of the first `count` heads: [B, count, D].
        states = hidden.unsqueeze(1) + F.silu(self.blocks(hidden).view(B, self.count, D)[:, :count])
        for layer in self.further:
            states = states + F.silu(self._one_by_one(layer, states))
        if self.projections:
            states = self._one_by_one(self.projections, states)
        return (self.outputs[0](states) if len(self.outputs) == 1 else self._one_by_one(self.outputs, states),)

    @staticmethod
    def _one_by_one(layers: list[Linear], states: Tensor) -> Tensor:
        """Every head's state `[B, count, D]` through a matrix of its own."""
        return torch.stack([layers[head](states[:, head]) for head in range(states.shape[1])], 1)


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
