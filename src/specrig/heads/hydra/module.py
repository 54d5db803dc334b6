"""Hydra heads: Medusa heads that know what was drafted before them (Ankner et al., 2402.05109, section 3).

Head i, counted from 0, reads the hidden state h of position t (after the final norm) and the embeddings of tokens t + 1
… t + 1 + i: the last token of the context, which h itself names, and the i tokens drafted behind it. From the joined
input x, `[(i + 2) D]`, it makes the state R_i x + SiLU(W_i x + b_i), `[D]`, from which the target's own LM head reads
token t + 2 + i. So each node of a tree has children that follow from its own path, where all nodes of one of Medusa's
levels share theirs.

Checkpoint: config.json of model type "hydra" and model.safetensors with `heads.{i}.linear.weight` and
`heads.{i}.res_connection.weight` `[D, (i + 2) D]` (the hidden state first, then the tokens in their order) and
`heads.{i}.linear.bias` `[D]`. No LM head, no embedding. With `markov_rank` there is a bias (`heads.markov`). With a
reduced vocabulary (`truncated_vocab_size` Vd < V) `token_map` `[Vd]` int64 names the target's tokens that can be
drafted. D hidden width, V vocabulary, Vd the heads', K heads.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the name everyone uses)
from transformers import PreTrainedConfig

from specrig.heads.draft_head import shared
from specrig.heads.markov import biased
from specrig.heads.medusa.depth_heads import DepthHeads
from specrig.runtime.layer import Product
from specrig.runtime.linear import Linear


class HydraConfig(PreTrainedConfig):
    """config.json of a head folder; transformers knows no such model."""

    model_type = "hydra"


class HydraHead(nn.Module):
    """One head, when it drafts and while it learns. both: W_i x + b_i and R_i x, which read the same, as one product."""

    def __init__(self, both: Product) -> None:
        super().__init__()
        self.both: Any = both

    def forward(self, inputs: Tensor) -> Tensor:
        """The joined state and embeddings `[..., (i + 2) D]` -> states `[..., D]`."""
        inner, residual = self.both(inputs).chunk(2, -1)
        found: Tensor = residual + F.silu(inner)
        return found


class HydraHeads(DepthHeads):
    """See the module."""

    kind: ClassVar[str] = "hydra"
    title: ClassVar[str] = "Hydra heads"
    config_class: ClassVar[type[PreTrainedConfig]] = HydraConfig
    keys: ClassVar[tuple[str, ...]] = ("hidden_size", "vocab_size", "truncated_vocab_size", "num_heads")

    def take_weights(self, weights: dict[str, Tensor]) -> None:
        """Build the heads from the checkpoint's tensors."""
        self.embedding, output = shared(self.target)
        output = output if self.vocabulary is None else output.select_outputs(self.vocabulary)
        self.output = output.rounded(self.title)
        self.heads = []
        for head in range(self.count):
            bias = weights[f"heads.{head}.linear.bias"]
            both = [weights[f"heads.{head}.{part}.weight"] for part in ("linear", "res_connection")]
            product = Linear(torch.cat(both), torch.cat((bias, torch.zeros_like(bias))))
            self.heads.append(HydraHead(product.rounded(self.title)))

    def embed(self, tokens: Tensor) -> Tensor:
        """The target's embeddings `[..., D]` of `tokens` `[...]`."""
        return F.embedding(tokens, self.embedding)

    @torch.inference_mode()
    def __call__(self, inputs: Tensor, head: int, tokens: Tensor) -> Tensor:
        """Inputs `[B, m, (head + 2) D]` of m nodes of one level, and their tokens `[B, m]`, -> logits `[B, m, Vd]` of
        their children.
        """
        logits = self.run(head, partial(self._logits, head), inputs, inputs.shape[1])
        # What is padding for the target is never offered.
        return biased(logits[..., : self.tokens], self.markov, tokens)

    def _logits(self, head: int, inputs: Tensor) -> tuple[Tensor]:
        return (self.output(self.heads[head](inputs)),)


def initialise(folder: Path, target: Any, seed: int) -> None:
    """Write untrained heads for a target with this configuration."""
    text = target.get_text_config(decoder=True)
    config = heads_config(hidden=text.hidden_size, vocabulary=text.vocab_size, heads=4)
    save(folder, config, random_tensors(config, seed, deviation=0.15))


heads_config, shapes, random_tensors = HydraHeads.make_config, HydraHeads.shapes, HydraHeads.random_tensors
load, save = HydraHeads.load, HydraHeads.save
