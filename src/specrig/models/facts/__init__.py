"""The shapes of well-known models, shipped with the package, so that sizes, memory and pairs that cannot work are known
before anything is downloaded. No torch here.

`models.json` maps a hub id to its architecture in Hugging Face's own key names (`config`), the family of its tokenizer
(two models of one family share their vocabulary id by id; null: not known, the gate compares the files), its licence,
and what a gated model asks for.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from specrig.models.weight_files import noted_quantization

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes a parameter, by dtype."""
FOUR_NORMS = {"gemma2", "gemma3_text"}
RMS_NORM = {"llama", "mistral", "mixtral", "phi3", "qwen2", "qwen3", *FOUR_NORMS}
LAYER_NORM = {"gpt2", "gpt_neox"}
"""Architectures whose sizes are known, by their norms."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder-only architecture, from the keys of its config.json."""

    config: dict[str, Any]

    @property
    def parameters(self) -> int:
        """Number of weights, tied embeddings counted once. Agrees with transformers' own count (a test builds them
        all).

        Raises KeyError for an architecture whose sizes are not known (`shape_of` gives None for it).
        """
        config = self.config
        D, V = config["hidden_size"], config["vocab_size"]
        total = V * D * (1 if config.get("tie_word_embeddings") else 2) + self.layers * self._layer()
        if config["model_type"] == "gpt2":
            return int(total + config["max_position_embeddings"] * D + 2 * D)
        return int(total + (D if config["model_type"] in RMS_NORM else 2 * D))

    @property
    def active_parameters(self) -> int:
        """The number of weights that one token uses: in a mixture of experts only those of the experts that it is sent
        to count.
        """
        idle = self.config.get("num_local_experts", 1) - self.config.get("num_experts_per_tok", 1)
        return self.parameters - self.layers * idle * 3 * self.config["hidden_size"] * self.config["intermediate_size"]

    @property
    def layers(self) -> int:
        """Decoder layers."""
        return int(self.config["num_hidden_layers"])

    @property
    def context(self) -> int:
        """Positions that the model can address."""
        return int(self.config["max_position_embeddings"])

    def cache_bytes(self, positions: int, dtype: str) -> int:
        """Bytes of the keys and values of `positions` tokens in all layers."""
        return 2 * self.layers * self._kv_width() * positions * BYTES[dtype]

    def weight_bytes(self, dtype: str) -> int:
        """Bytes of the weights."""
        return self.parameters * BYTES[dtype]

    def _head(self) -> int:
        return int(self.config.get("head_dim") or self.config["hidden_size"] // self.config["num_attention_heads"])

    def _kv_width(self) -> int:
        return int(self.config.get("num_key_value_heads") or self.config["num_attention_heads"]) * self._head()

    def _layer(self) -> int:
        config, kind = self.config, self.config["model_type"]
        if kind not in RMS_NORM | LAYER_NORM:
            raise KeyError(kind)
        D, inner = config["hidden_size"], config["intermediate_size"]
        if kind not in RMS_NORM:  # GPT-2, GPT-NeoX: four D × D projections, two of the MLP, biases, two LayerNorms
            return int(4 * D * D + 4 * D + 2 * D * inner + inner + D + 4 * D)
        Q, K = config["num_attention_heads"] * self._head(), self._kv_width()
        experts = config.get("num_local_experts", 0)
        mlp = experts * 3 * D * inner + experts * D if experts else 3 * D * inner
        bias = Q + 2 * K if kind == "qwen2" else 0
        norms = (4 if kind in FOUR_NORMS else 2) * D
        norms += 2 * self._head() if kind in ("qwen3", "gemma3_text") else 0
        return int(2 * D * Q + 2 * D * K + bias + mlp + norms)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of one model."""

    name: str
    config: dict[str, Any]
    tokenizer: str | None = None
    licence: str = ""
    gated: str = ""
    """What its owner asks for before it can be downloaded; empty: nothing."""
    source: str = ""

    @property
    def shape(self) -> Shape:
        """Its architecture."""
        return Shape(self.config)


@cache
def models() -> dict[str, ModelFacts]:
    """Hub id -> facts."""
    content = json.loads((Path(__file__).parent / "models.json").read_text(encoding="utf-8"))
    return {name: ModelFacts(name, **entry) for name, entry in content.items()}


ENCODERS = set(
    "albert bert camembert deberta deberta-v2 distilbert electra modernbert mpnet roberta xlm-roberta".split()
)


def no_decoder(model: str, config: dict[str, Any]) -> str | None:
    """Why a model with this config cannot generate text token by token; None if it can."""
    kind, architectures = config.get("model_type", "?"), config.get("architectures") or []
    if config.get("is_encoder_decoder"):
        return f"{model}: {kind} is an encoder-decoder; SpecRig needs a decoder-only language model (…ForCausalLM)"
    causal = any("CausalLM" in name or "LMHeadModel" in name for name in architectures)
    if (
        architectures
        and not causal
        and kind not in ENCODERS
        and all("ConditionalGeneration" in name for name in architectures)
    ):
        return (
            f"{model}: {kind} ({', '.join(architectures)}) reads more than text; SpecRig takes text alone: choose its "
            "text-only sister (…ForCausalLM)"
        )
    if architectures and not causal and kind not in ENCODERS:
        return (
            f"{model}: {kind} ({', '.join(architectures)}) has no LM head, so it gives no next token and can neither draft "
            "nor verify; choose a decoder-only language model (…ForCausalLM)"
        )
    if kind in ENCODERS:
        return (
            f"{model}: {kind} ({', '.join(architectures) or 'no architecture named'}) is an encoder, it cannot "
            "generate text token by token, so it can neither draft nor verify; choose a decoder-only model "
            "(…ForCausalLM)"
        )
    return None


def impossible(target: str, draft: str | None) -> str | None:
    """Why target and draft, two hub ids, cannot work together; None where the shipped facts know no reason."""
    for model in map(known, filter(None, (target, draft))):
        reason = no_decoder(model.name, model.config) if model else None
        if reason is not None:
            return reason
    return None


OTHER_DRAFT = (
    "Choose a draft of the same family, a method without a draft model (ngram), or one that drafts from another "
    "vocabulary (draft_model in the engine native)"
)


def other_vocabulary(target: str, draft: str) -> str | None:
    """In what the vocabularies of two hub ids differ by the shipped facts; None: they do not, or nothing is known."""
    ours, theirs = known(target), known(draft)
    if ours and theirs and ours.tokenizer and theirs.tokenizer and ours.tokenizer != theirs.tokenizer:
        sizes = theirs.config["vocab_size"], ours.config["vocab_size"]
        return (
            f"the draft {draft} does not share the vocabulary of the target {target}: {sizes[0]} tokens "
            f"({theirs.tokenizer}) against {sizes[1]} ({ours.tokenizer})"
        )
    return None


def config_at_hand(model: str) -> dict[str, Any] | None:
    """A model's config by shipped facts, or by the config.json of its folder; None for one that is not here, or cannot
    be read.
    """
    if (found := known(model)) is not None:
        return found.config
    try:
        config = json.loads((Path(model).expanduser() / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return noted_quantization(Path(model).expanduser()) | config if isinstance(config, dict) else None


def shape_of(config: dict[str, Any] | None) -> Shape | None:
    """The shape of a config whose sizes are known; None for an architecture that names or combines its sizes otherwise."""
    try:
        shape = Shape(config or {})
        return shape if shape.parameters and shape.context else None
    except (KeyError, TypeError, ValueError, ArithmeticError):
        return None


def known(model: str | None) -> ModelFacts | None:
    """Facts of a hub id; None for a model that none are shipped for."""
    return models().get(model or "")
