"""Medusa heads: each predicts one further token from the model's last hidden state alone (Cai et al., 2401.10774,
section 2.1.1).

The LM head reads token t + 1 from the hidden state h of position t (after the final norm). Head i, counted from 0,
reads token t + 2 + i from the same h: LM_i(h + SiLU(W_i h + b_i)). One call drafts all positions; no head knows what
another head chose.

Checkpoint (what vLLM loads): config.json of model type "medusa" and model.safetensors with `blocks.{i}.layers.0.weight`
`[D, D]`, `.bias` `[D]` and `lm_heads.{i}.weight` `[Vd, D]`. With `original_lm_head` one `lm_head.weight` `[Vd, D]`
serves all heads. With a reduced vocabulary (`truncated_vocab_size` Vd < V) `token_map` `[Vd]` int64 says which of the
target's tokens each place stands for. With `markov_rank` there is a bias of the token before (`heads.markov`), which
vLLM does not load. D hidden width, V vocabulary, Vd the heads', K heads.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the name everyone uses)
from transformers import PreTrainedConfig

from specrig.heads import markov
from specrig.heads.checkpoint import check_vocabulary, faults, load_head, normal, write
from specrig.heads.markov import MarkovBias, biased
from specrig.heads.measured import rates
from specrig.runtime.device import Stopwatch
from specrig.runtime.linear import Linear
from specrig.runtime.model import CachedModel
from specrig.runtime.replay import Replay, eager
from specrig.runtime.types import DecodingError

if TYPE_CHECKING:
    from pathlib import Path


class MedusaConfig(PreTrainedConfig):
    """config.json of a head folder; transformers knows no such model, vLLM does."""

    model_type = "medusa"


class MedusaHeads:
    """K heads on one model, with a stopwatch over their passes."""

    def __init__(self, config: Any, tensors: dict[str, Tensor], model: CachedModel) -> None:
        """`tensors`: see the module; they take the model's device and precision. Raises DecodingError where they do not
        fit.
        """
        _check(config, tensors, model)
        drafted = tensors.get("token_map")
        self.vocabulary: Tensor | None = None if drafted is None else drafted.to(model.device)
        """`[Vd]` the target's tokens that the logits are of; None: of all."""
        weights = {
            name: tensor.to(model.device, model.dtype) for name, tensor in tensors.items() if name != "token_map"
        }
        self.model = model
        self.count: int = config.num_heads
        # All residual blocks read the same h, so they are one matrix product. The LM heads read different states, so
        # they are not, unless one LM head serves all.
        self.blocks = Linear(
            torch.cat([weights[f"blocks.{head}.layers.0.weight"] for head in range(self.count)]),
            torch.cat([weights[f"blocks.{head}.layers.0.bias"] for head in range(self.count)]),
        )
        self.outputs = [Linear(weights[name]) for name in shapes(config) if name.startswith("lm_head")]
        self.bias = MarkovBias.of(weights, self.tokens)
        """Of the token before; None: there is none."""
        self.accuracy: list[list[float]] = rates(config, "accuracy")
        """Per head, by rank: how often the token that came was its choice of that rank. Empty where nobody has
        measured.
        """
        self.first: list[float] = rates(config, "first")
        """The same for token t + 1 and the model's own LM head."""
        self.watch = Stopwatch(model.device)
        self.replay = Replay(model.device) if model.device.type == "cuda" else None

    @torch.inference_mode()
    def __call__(self, hidden: Tensor, count: int) -> Tensor:
        """Hidden states `[B, D]` of positions t -> logits `[B, count, Vd]` of tokens t + 2 … t + 1 + count."""
        function = partial(self._logits, count)
        run = eager(function) if self.replay is None else self.replay.recorded(count, function, [hidden])
        mark = self.watch.start()
        (logits,) = run([hidden])
        self.watch.stop(count, mark)
        # What is padding for the model is never offered.
        return logits[..., : self.model.vocab_size] if self.vocabulary is None else logits

    def biased(self, logits: Tensor, head: int, tokens: Tensor) -> Tensor:
        """Of logits `[B, K, Vd]` those of a head, `[B, m, Vd]`, each behind one of the tokens `[B, m]`."""
        return biased(logits[:, head : head + 1].expand(-1, tokens.shape[1], -1), self.bias, tokens)

    def widened(self, logits: Tensor) -> Tensor:
        """Logits `[..., Vd]` as ones of all the model's tokens, `[..., V]`: minus infinity for those that the heads
        cannot draft.
        """
        if self.vocabulary is None:
            return logits
        every = logits.new_full((*logits.shape[:-1], self.model.vocab_size), -torch.inf)
        return every.index_copy_(-1, self.vocabulary, logits)

    @property
    def tokens(self) -> int:
        """How many tokens they can draft."""
        return self.model.vocab_size if self.vocabulary is None else len(self.vocabulary)

    def _logits(self, count: int, hidden: Tensor) -> tuple[Tensor]:
        B, D = hidden.shape
        # h + SiLU(W_i h + b_i) of the first `count` heads: [B, count, D].
        states = hidden.unsqueeze(1) + F.silu(self.blocks(hidden).view(B, self.count, D)[:, :count])
        if len(self.outputs) == 1:
            return (self.outputs[0](states),)
        return (torch.stack([self.outputs[head](states[:, head]) for head in range(count)], 1),)

    def pass_totals(self) -> dict[int, tuple[int, float]]:
        """Bare passes: heads run -> (calls, seconds)."""
        return self.watch.totals()


def heads_config(
    *,
    hidden: int,
    vocabulary: int,
    heads: int,
    drafted: int | None = None,
    shared: bool = False,
    markov_rank: int = 0,
    measured: dict[str, Any] | None = None,
) -> MedusaConfig:
    """The configuration of K = `heads` heads; `drafted`: so many tokens can be drafted, None: all; `shared`: one LM
    head for all; `measured`: see `MedusaHeads.accuracy`.
    """
    return MedusaConfig(
        architectures=["MedusaModel"],
        hidden_size=hidden,
        vocab_size=vocabulary,
        truncated_vocab_size=drafted or vocabulary,
        num_heads=heads,
        num_hidden_layers=1,
        medusa_fc_bias=True,
        original_lm_head=shared,
        **markov.noted(markov_rank),
        **({"specrig": measured} if measured else {}),
    )


def shapes(config: Any) -> dict[str, tuple[int, ...]]:
    """Tensor names of a checkpoint and their shapes."""
    D, V, K = config.hidden_size, _drafted(config), config.num_heads
    found = markov.shapes(config) | ({"token_map": (V,)} if config.vocab_size > V else {})
    for head in range(K):
        found |= {f"blocks.{head}.layers.0.weight": (D, D), f"blocks.{head}.layers.0.bias": (D,)}
    if config.original_lm_head:
        return found | {"lm_head.weight": (V, D)}
    return found | {f"lm_heads.{head}.weight": (V, D) for head in range(K)}


def _drafted(config: Any) -> int:
    """Vd, how many tokens the heads can draft."""
    return getattr(config, "truncated_vocab_size", None) or config.vocab_size


def random_tensors(config: Any, seed: int, deviation: float = 0.1) -> dict[str, Tensor]:
    """Weights of untrained heads: all normal."""
    return normal(shapes(config), seed, deviation)


def initialise(folder: Path, model: Any, seed: int) -> None:
    """Write untrained heads for a model with this configuration."""
    text = model.get_text_config(decoder=True)
    config = heads_config(hidden=text.hidden_size, vocabulary=text.vocab_size, heads=4)
    save(folder, config, random_tensors(config, seed))


def save(folder: Path, config: Any, tensors: dict[str, Tensor]) -> None:
    """Write config.json and model.safetensors (fp32)."""
    write(folder, config, tensors, shapes(config))


def load(folder: Path, model: CachedModel) -> MedusaHeads:
    """Read a folder of heads on this model. Raises DecodingError where it holds none that fit."""
    return load_head("Medusa heads", folder, MedusaConfig, partial(MedusaHeads, model=model))


def _check(config: Any, tensors: dict[str, Tensor], model: CachedModel) -> None:
    needed = ("hidden_size", "vocab_size", "num_heads", "original_lm_head")
    missing = [name for name in needed if getattr(config, name, None) is None]
    if missing:
        raise DecodingError(f"not a configuration of Medusa heads: it lacks {', '.join(missing)}")
    if config.hidden_size != model.hidden_size:
        raise DecodingError(
            f"the heads are for a hidden size of {config.hidden_size}, the model's is {model.hidden_size}"
        )
    expected = shapes(config)
    if wrong := faults(tensors, expected):
        raise DecodingError("not Medusa heads of one residual layer each: " + wrong)
    if (drafted := tensors.get("token_map")) is not None:
        check_vocabulary(drafted, model.vocab_size, "token_map")
