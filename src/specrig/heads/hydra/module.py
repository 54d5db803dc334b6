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
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the name everyone uses)
from transformers import PreTrainedConfig

from specrig.heads import markov
from specrig.heads.checkpoint import Shapes, check_vocabulary, faults, load_head, normal, write
from specrig.heads.draft_head import shared
from specrig.heads.markov import MarkovBias, biased
from specrig.heads.measured import rates
from specrig.runtime.device import Stopwatch
from specrig.runtime.linear import Linear
from specrig.runtime.model import CachedModel
from specrig.runtime.replay import Replay, eager
from specrig.runtime.types import DecodingError

if TYPE_CHECKING:
    from pathlib import Path


class HydraConfig(PreTrainedConfig):
    """config.json of a head folder; transformers knows no such model."""

    model_type = "hydra"


class HydraHeads:
    """K heads on one target, with a stopwatch over their passes."""

    def __init__(self, config: Any, tensors: dict[str, Tensor], target: CachedModel) -> None:
        """`tensors`: see the module; they take the target's device and precision. Raises DecodingError where they do
        not fit.
        """
        _check(config, tensors, target)
        drafted = tensors.get("token_map")
        self.vocabulary: Tensor | None = None if drafted is None else drafted.to(target.device)
        """`[Vd]` the target's tokens that the logits are of; None: of all."""
        weights = {
            name: tensor.to(target.device, target.dtype) for name, tensor in tensors.items() if name != "token_map"
        }
        self.target = target
        self.count: int = config.num_heads
        self.embedding, output = shared(target)
        self.output = output if self.vocabulary is None else output.select_outputs(self.vocabulary)
        # W_i x + b_i and R_i x read the same input, so they are one matrix product.
        self.blocks = []
        for head in range(self.count):
            bias = weights[f"heads.{head}.linear.bias"]
            both = [weights[f"heads.{head}.{part}.weight"] for part in ("linear", "res_connection")]
            self.blocks.append(Linear(torch.cat(both), torch.cat((bias, torch.zeros_like(bias)))))
        self.bias = MarkovBias.of(weights, self.tokens)
        """Of the token before; None: there is none."""
        self.accuracy: list[list[float]] = rates(config, "accuracy")
        """Per head, by rank: how often the token that came was its choice of that rank, given the tokens before. Empty:
        not measured.
        """
        self.watch = Stopwatch(target.device)
        self.replay = Replay(target.device) if target.device.type == "cuda" else None

    @property
    def tokens(self) -> int:
        """Vd, how many tokens they can draft."""
        return self.target.vocab_size if self.vocabulary is None else len(self.vocabulary)

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """The target's ids of tokens of the heads' vocabulary, of any shape."""
        return draft_ids if self.vocabulary is None else self.vocabulary[draft_ids]

    def embed(self, tokens: Tensor) -> Tensor:
        """The target's embeddings `[..., D]` of `tokens` `[...]`."""
        return F.embedding(tokens, self.embedding)

    @torch.inference_mode()
    def __call__(self, inputs: Tensor, head: int, tokens: Tensor) -> Tensor:
        """Inputs `[B, m, (head + 2) D]` of m nodes of one level, and their tokens `[B, m]`, -> logits `[B, m, Vd]` of
        their children.
        """
        function = partial(self._logits, head)
        run = eager(function) if self.replay is None else self.replay.recorded(head, function, [inputs])
        mark = self.watch.start()
        (logits,) = run([inputs])
        self.watch.stop(inputs.shape[1], mark)
        return biased(logits[..., : self.tokens], self.bias, tokens)  # what is padding for the target is never offered

    def _logits(self, head: int, inputs: Tensor) -> tuple[Tensor]:
        inner, residual = self.blocks[head](inputs).chunk(2, -1)
        return (self.output(residual + F.silu(inner)),)

    def pass_totals(self) -> dict[int, tuple[int, float]]:
        """Bare passes: nodes run -> (calls, seconds)."""
        return self.watch.totals()


def heads_config(
    *,
    hidden: int,
    vocabulary: int,
    heads: int,
    drafted: int | None = None,
    markov_rank: int = 0,
    measured: dict[str, Any] | None = None,
) -> HydraConfig:
    """The configuration of K = `heads` heads; `drafted`: so many tokens can be drafted, None: all; `measured`: see
    `HydraHeads.accuracy`.
    """
    return HydraConfig(
        hidden_size=hidden,
        vocab_size=vocabulary,
        truncated_vocab_size=drafted or vocabulary,
        num_heads=heads,
        **markov.noted(markov_rank),
        **({"specrig": measured} if measured else {}),
    )


def shapes(config: Any) -> Shapes:
    """Tensor names of a checkpoint and their shapes."""
    D = config.hidden_size
    reduced = config.truncated_vocab_size < config.vocab_size
    found = markov.shapes(config) | ({"token_map": (config.truncated_vocab_size,)} if reduced else {})
    for head in range(config.num_heads):
        found |= {f"heads.{head}.{part}.weight": (D, (head + 2) * D) for part in ("linear", "res_connection")}
        found[f"heads.{head}.linear.bias"] = (D,)
    return found


def random_tensors(config: Any, seed: int, deviation: float = 0.15) -> dict[str, Tensor]:
    """Weights of untrained heads: all normal."""
    return normal(shapes(config), seed, deviation)


def initialise(folder: Path, target: Any, seed: int) -> None:
    """Write untrained heads for a target with this configuration."""
    text = target.get_text_config(decoder=True)
    config = heads_config(hidden=text.hidden_size, vocabulary=text.vocab_size, heads=4)
    save(folder, config, random_tensors(config, seed))


def save(folder: Path, config: Any, tensors: dict[str, Tensor]) -> None:
    """Write config.json and model.safetensors (fp32)."""
    write(folder, config, tensors, shapes(config))


def load(folder: Path, target: CachedModel) -> HydraHeads:
    """Read a folder of heads of this target. Raises DecodingError where it holds none that fit."""
    return load_head("Hydra heads", folder, HydraConfig, partial(HydraHeads, target=target))


def _check(config: Any, tensors: dict[str, Tensor], target: CachedModel) -> None:
    missing = [
        name
        for name in ("hidden_size", "vocab_size", "truncated_vocab_size", "num_heads")
        if getattr(config, name, None) is None
    ]
    if missing:
        raise DecodingError(f"not a configuration of Hydra heads: it lacks {', '.join(missing)}")
    if config.hidden_size != target.hidden_size:
        raise DecodingError(
            f"the heads are for a hidden size of {config.hidden_size}, the target's is {target.hidden_size}"
        )
    if config.vocab_size != target.config.vocab_size:
        raise DecodingError(f"the heads are for {config.vocab_size} tokens, the target has {target.config.vocab_size}")
    if wrong := faults(tensors, shapes(config)):
        raise DecodingError("not Hydra heads of one layer each: " + wrong)
    if (drafted := tensors.get("token_map")) is not None:
        check_vocabulary(drafted, target.vocab_size, "token_map")
