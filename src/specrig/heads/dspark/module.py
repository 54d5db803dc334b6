"""The DSpark head: DFlash's, with a bias of the token before and a confidence head (2607.05147, section 3).

    block     x3   [m]  [m]      -> x4, x5 and x6, each of them behind the one before

A block holds the last token and k - 1 masks; each of them drafts the token behind its own place (with
`sample_from_anchor: false`, as speculators writes it, a block is DFlash's). What a token drafts gets a bias of the
token before (`heads.markov`), the first one of the last token too. The confidence head reads the state that drafts a
token, and the bias's embedding of the token before: c = sigmoid(w [h; W1[x]] + b) is the chance that the target accepts
the token, those before it accepted. It does not know the token itself, so what is cut by it is cut before the token is
drawn.

Checkpoint (what vLLM loads as `dspark`): DFlash's tensors, `markov_head.markov_w1.weight` `[V, r]`,
`markov_head.markov_w2.weight` `[Vd, r]` and `confidence_head.proj.{weight,bias}` `[1, D + r]`, `[1]`; config.json of a
Qwen3 with `block_size`, `mask_token_id`, `target_layer_ids`, `markov_rank`, `markov_head_type` (vanilla alone),
`enable_confidence_head` and `confidence_head_with_markov`. One that drafts some tokens only has its own LM head and
`d2t`, as in EAGLE-3's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the name everyone uses)

from specrig.heads.base import BIAS
from specrig.heads.dflash import module as dflash
from specrig.heads.dflash.module import DFlashHead
from specrig.heads.markov import MarkovBias, biased
from specrig.heads.shapes import CONFIDENCE, CONFIDENCE_BIAS, MARKOV_W1, MARKOV_W2
from specrig.runtime.device import on_device

if TYPE_CHECKING:
    from pathlib import Path


class ConfidenceHead(nn.Module):
    """A linear read-out of a state and of the embedding of the token before, computed in float32."""

    def __init__(self, weight: Tensor, bias: Tensor, scale: float = 1.0) -> None:
        """weight: `[D + r]`, or `[D]` of a head that reads the state alone; bias: `[1]`. scale: of the weight."""
        super().__init__()
        self.weight, self.bias, self.scale = nn.Parameter(weight.float()), nn.Parameter(bias.float()), scale

    def forward(self, states: Tensor, embedded: Tensor) -> Tensor:
        """The logit `[...]` of acceptance, of states `[..., D]` and embeddings `[..., r]`."""
        if len(self.weight) > states.shape[-1]:
            states = torch.cat((states, embedded.to(states.dtype)), -1)
        return states.float() @ (self.scale * self.weight) + self.bias


class DSparkHead(DFlashHead):
    """The head with its cache. B rows, D hidden width, Vd the head's vocabulary."""

    kind: ClassVar[str] = "dspark"
    title: ClassVar[str] = "DSpark head"
    markov: MarkovBias
    confidence: ConfidenceHead | None = None

    def take_weights(self, weights: dict[str, Tensor]) -> None:
        """Build the layers and both heads from the checkpoint's tensors."""
        super().take_weights(weights)
        _, embedding, lm_head = BIAS
        bias = MarkovBias.of({embedding: weights[MARKOV_W1], lm_head: weights[MARKOV_W2]}, self.checkpoint_order)
        assert bias is not None
        self.markov = bias
        if CONFIDENCE in weights:
            confidence = ConfidenceHead(weights[CONFIDENCE][0], weights[CONFIDENCE_BIAS])
            self.confidence = confidence.requires_grad_(False)

    def draft(self, rows: Sequence[Sequence[int]], done: Sequence[bool], k: int) -> Tensor:
        """See `DFlashHead`; the first token's logits have their bias, the others get theirs when it is known."""
        logits = super().draft(rows, done, k)
        first = biased(logits[:, :1], self.markov, on_device([[row[-1]] for row in rows], self.device))
        return torch.cat((first, logits[:, 1:]), 1)

    @torch.inference_mode()
    def confidences(self, rows: Sequence[Sequence[int]], drafted: Tensor) -> Tensor:
        """The chance that each of the tokens `[B, k]` of the last draft is accepted, those before it accepted: `[B, k]`."""
        assert self.confidence is not None
        before = torch.cat((on_device([[row[-1]] for row in rows], self.device), drafted[:, :-1]), 1)
        return self.confidence(self.states, F.embedding(before, self.markov.embedding)).sigmoid()


def head_config(target: Any, layers: int = 2, k: int = 7, drafted: Tensor | None = None, markov_rank: int = 256) -> Any:
    """The configuration of a head, see `dflash.module.head_config`. markov_rank: the hidden width at most."""
    config = dflash.head_config(target, layers, k)
    config.update(config.dflash_config)
    del config.dflash_config
    config.architectures, config.block_size, config.sample_from_anchor = ["Qwen3DSparkModel"], k, True
    config.markov_rank, config.markov_head_type = min(markov_rank, config.hidden_size), "vanilla"
    config.enable_confidence_head = config.confidence_head_with_markov = True
    config.draft_vocab_size = config.vocab_size if drafted is None else len(drafted)
    return config


def initialise(folder: Path, target: Any, seed: int) -> None:
    """Write an untrained head for a target with this configuration."""
    config = head_config(target)
    save(folder, config, random_tensors(config, seed, deviation=0.15))


load, save, random_tensors = DSparkHead.load, DSparkHead.save, DSparkHead.random_tensors
