"""The config.json that a GGUF header means. Every key of the architecture and every tensor is known here, or the file
is refused by its name.

Meanings and defaults of keys, and what no key says, are those of llama.cpp (`src/models/*.cpp`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from specrig.models.gguf.header import Header

KEYS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
"""Keys that every architecture has (after its name and a point) -> keys of config.json. `attention.key_length`,
`vocab_size` and those of the rotary positions have rules of their own below."""
NEUTRAL = {
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "embedding_scale": 1.0,
    "expert_count": 0,
    "expert_used_count": 0,
    "logit_scale": 1.0,
    "pooling_type": 0,
    "residual_scale": 1.0,
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_log_multiplier": 0.0,
    "use_parallel_residual": False,
}
"""Keys with the value at which they change nothing; with another one the file is refused."""
HARMLESS = {"rope.scaling.finetuned", "rope.scaling.original_context_length", "tensor_data_layout"}
"""Keys that say how the model was made, or matter only beside others that are read."""
WHOLE = ("token_embd.weight", "output_norm.weight")
"""Tensors outside the layers that every file has; `output.weight` besides where the head is not the embedding."""
ATTENTION = "attn_norm attn_q attn_k attn_v attn_output"
DENSE = "ffn_norm ffn_gate ffn_up ffn_down"
FACTORS = "rope_freqs.weight"
"""By what each rotary frequency is divided."""
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
"""The same beyond, and up to, the length that the model was first trained for."""
LLAMA3_CONTEXT = 8192
"""`original_max_position_embeddings` of Llama 3: factors say only its ratios to two other numbers."""


@dataclass(frozen=True)
class Architecture:
    """How files of one architecture are read.

    model_type: transformers' name; layer: the tensors of a layer, without `.weight`; biases: those with a bias; keys:
    more of them -> keys of config.json; constants: what no key says; further: adds what needs a rule.
    """

    model_type: str
    layer: str
    biases: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    further: Callable[[_Keys, dict[str, Any]], None] | None = None


class _Keys:
    """The keys of a header's architecture, which notes those that are asked for."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.prefix = f"{header.architecture}."
        self._unread = {name for name in header.keys if name.startswith(self.prefix)}

    def get(self, name: str, default: Any = None) -> Any:
        """A key's value. A list of one number for each layer is that number, where all are equal."""
        self._unread.discard(self.prefix + name)
        value = self.header.keys.get(self.prefix + name, default)
        if isinstance(value, list) and name != "attention.sliding_window_pattern":
            if len(set(value)) != 1:
                raise self.header.refusal(
                    f"{self.prefix}{name} differs from layer to layer ({str(value)[:60]}), which is not read; name a "
                    "folder in Hugging Face format instead"
                )
            value = value[0]
        return value

    def need(self, name: str) -> Any:
        """The same, of a key without which there is no model."""
        if (value := self.get(name)) is None:
            raise self.header.refusal(f"the header lacks {self.prefix}{name}; convert the model again")
        return value

    def unread(self) -> list[str]:
        """Keys that nobody asked for and that may change the model."""
        left = []
        for name in sorted(self._unread):
            short = name.removeprefix(self.prefix)
            if short not in HARMLESS and not (short in NEUTRAL and self.header.keys[name] == NEUTRAL[short]):
                left.append(f"{name} = {str(self.header.keys[name])[:60]}")
        return left


def _llama(keys: _Keys, config: dict[str, Any]) -> None:
    names = keys.header.tensors
    config["attention_bias"] = "blk.0.attn_q.bias" in names
    config["mlp_bias"] = "blk.0.ffn_up.bias" in names


def _gemma(keys: _Keys, config: dict[str, Any], *, period: int, layers_of_27b: int, window: int) -> None:
    """Sliding windows in all but each `period`-th layer, and the scale of attention, which no key says."""
    layers = config["num_hidden_layers"]
    pattern = keys.get("attention.sliding_window_pattern", period)
    window = keys.get("attention.sliding_window", window)
    if isinstance(pattern, list):
        slides = [bool(layer) for layer in pattern[:layers]]
    else:
        slides = [pattern == 0 or layer % pattern < pattern - 1 for layer in range(layers)]
    if len(slides) != layers:
        raise keys.header.refusal(
            f"{keys.prefix}attention.sliding_window_pattern has {len(slides)} layers, the model {layers}; convert it "
            "again"
        )
    if not window:
        slides = [False] * layers
    config["layer_types"] = ["sliding_attention" if slide else "full_attention" for slide in slides]
    config["sliding_window"] = window or config["max_position_embeddings"]
    width = config["hidden_size"] // config["num_attention_heads"]
    config["query_pre_attn_scalar"] = width if layers == layers_of_27b else config["head_dim"]


def _gemma2(keys: _Keys, config: dict[str, Any]) -> None:
    _gemma(keys, config, period=2, layers_of_27b=46, window=4096)
    config["attn_logit_softcapping"] = keys.get("attn_logit_softcapping", 50.0)
    config["final_logit_softcapping"] = keys.get("final_logit_softcapping", 30.0)


def _gemma3(keys: _Keys, config: dict[str, Any]) -> None:
    _gemma(keys, config, period=6, layers_of_27b=62, window=0)
    config["final_logit_softcapping"] = keys.get("final_logit_softcapping") or None
    config["attn_logit_softcapping"] = None
    local = {"rope_type": "default", "rope_theta": keys.get("rope.freq_base_swa", 10_000.0)}
    config["rope_parameters"] = {"full_attention": config["rope_parameters"], "sliding_attention": local}


def _phi3(keys: _Keys, config: dict[str, Any]) -> None:
    config["sliding_window"] = keys.get("attention.sliding_window") or None
    rope, original = config["rope_parameters"], keys.get("rope.scaling.original_context_length")
    if rope["rope_type"] not in ("default", "longrope"):
        raise keys.header.refusal(
            f"{keys.prefix}rope.scaling.type {rope['rope_type']} is not read for this architecture; name a folder in "
            "Hugging Face format instead"
        )
    if config["head_dim"] != config["hidden_size"] // config["num_attention_heads"]:
        raise keys.header.refusal(f"{keys.prefix}attention.key_length {config['head_dim']} does not fit its width")
    del config["head_dim"]  # its config has none
    config["original_max_position_embeddings"] = original or config["max_position_embeddings"]


ARCHITECTURES = {
    "llama": Architecture("llama", f"{ATTENTION} {DENSE}", further=_llama),  # Mistral's files too
    "qwen2": Architecture("qwen2", f"{ATTENTION} {DENSE}", biases="attn_q attn_k attn_v"),
    "qwen3": Architecture("qwen3", f"{ATTENTION} attn_q_norm attn_k_norm {DENSE}", constants={"attention_bias": False}),
    "qwen3moe": Architecture(
        "qwen3_moe",
        f"{ATTENTION} attn_q_norm attn_k_norm ffn_norm ffn_gate_inp ffn_gate_exps ffn_up_exps ffn_down_exps",
        keys={
            "expert_count": "num_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "moe_intermediate_size",
        },
        constants={"attention_bias": False, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
    ),
    "gemma2": Architecture(
        "gemma2",
        f"{ATTENTION} post_attention_norm {DENSE} post_ffw_norm",
        constants={"hidden_activation": "gelu_pytorch_tanh"},
        further=_gemma2,
    ),
    "gemma3": Architecture(
        "gemma3_text",
        f"{ATTENTION} attn_q_norm attn_k_norm post_attention_norm {DENSE} post_ffw_norm",
        constants={"hidden_activation": "gelu_pytorch_tanh"},
        further=_gemma3,
    ),
    "phi3": Architecture("phi3", "attn_norm attn_qkv attn_output ffn_norm ffn_up ffn_down", further=_phi3),
}
"""llama.cpp's name of an architecture -> how it is read. A new entry needs a test against llama.cpp on a file of it."""


def config_of(header: Header) -> dict[str, Any]:
    """The config.json that the header means, without the ids of special tokens. Raises ModelError for an architecture,
    a key or a tensor that is not known here, and for a tensor that is missing.
    """
    if header.keys.get("general.type") == "adapter":
        raise header.refusal(
            "an adapter (LoRA), which runs only inside its model: merge the two (llama.cpp's `llama-export-lora`) and name "
            "the merged file"
        )
    if (kind := ARCHITECTURES.get(header.architecture)) is None:
        raise header.refusal(
            f"GGUF files of the architecture {header.architecture!r} are not read, those of "
            f"{', '.join(sorted(ARCHITECTURES))} are; name a folder in Hugging Face format or a hub id instead"
        )
    keys = _Keys(header)
    config: dict[str, Any] = {"model_type": kind.model_type}
    config |= {ours: keys.need(theirs) for theirs, ours in {**KEYS, **kind.keys}.items()}
    for theirs, ours in KEYS.items():
        if config[ours] <= 0:
            raise header.refusal(f"{keys.prefix}{theirs} is {config[ours]}, no size; convert the model again")
    config |= kind.constants
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    if heads % kv_heads:
        raise header.refusal(
            f"{heads} heads of attention do not share {kv_heads} of keys and values; convert the model again"
        )
    config["head_dim"] = keys.get("attention.key_length", config["hidden_size"] // heads)
    if keys.get("attention.value_length", config["head_dim"]) != config["head_dim"]:
        raise header.refusal(f"{keys.prefix}attention.value_length is not its key_length, which is not read")
    config["tie_word_embeddings"] = "output.weight" not in header.tensors
    expected = _expected(header, kind, config["num_hidden_layers"])
    config["rope_parameters"] = _rotary(keys, config, expected)
    if kind.further is not None:
        kind.further(keys, config)
    _check_tensors(header, expected)
    config["vocab_size"] = header.rows
    if keys.get("vocab_size", header.rows) != header.rows:
        raise header.refusal(
            f"{keys.prefix}vocab_size says {keys.get('vocab_size')}, token_embd.weight has {header.rows} rows; convert "
            "the model again"
        )
    if unread := keys.unread():
        raise header.refusal(
            f"the key {unread[0]} is not known here{_more(unread)}, so the model could come out different; name a folder "
            "in Hugging Face format or a hub id instead"
        )
    return config


def _expected(header: Header, kind: Architecture, layers: int) -> set[str]:
    """The tensors of the architecture; of biases that a model may have or not, those that the file has."""
    names = {f"{tensor}.weight" for tensor in kind.layer.split()} | {f"{tensor}.bias" for tensor in kind.biases.split()}
    if kind.model_type == "llama":
        for part, tensors in (("attn_q", ATTENTION.split()[1:]), ("ffn_up", DENSE.split()[1:])):
            if f"blk.0.{part}.bias" in header.tensors:
                names |= {f"{tensor}.bias" for tensor in tensors}
    return {f"blk.{layer}.{name}" for layer in range(layers) for name in names} | {
        *WHOLE,
        *({"output.weight"} & header.tensors.keys()),
    }


def _check_tensors(header: Header, expected: set[str]) -> None:
    """Raise ModelError unless the file has exactly these tensors."""
    if missing := sorted(expected - header.tensors.keys()):
        raise header.refusal(
            f"it lacks the tensor {missing[0]}{_more(missing)}, which its architecture {header.architecture} has; "
            "convert the model again"
        )
    if unread := sorted(header.tensors.keys() - expected):
        raise header.refusal(
            f"the tensor {unread[0]} is not known here{_more(unread)}, so the model could come out different; name a "
            "folder in Hugging Face format or a hub id instead"
        )


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def _rotary(keys: _Keys, config: dict[str, Any], expected: set[str]) -> dict[str, Any]:
    """`rope_parameters`: base, rotated share of a head and scaling. Tensors that it reads are added to `expected`."""
    header, kind = keys.header, keys.get("rope.scaling.type") or "linear"  # llama.cpp's default
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": keys.get("rope.freq_base", 10_000.0)}
    if (width := keys.get("rope.dimension_count", config["head_dim"])) != config["head_dim"]:
        if config["model_type"] != "phi3":
            raise header.refusal(
                f"{keys.prefix}rope.dimension_count {width} of heads of {config['head_dim']} is not read for this "
                "architecture; name a folder in Hugging Face format instead"
            )
        rope["partial_rotary_factor"] = width / config["head_dim"]
    factor = keys.get("rope.scaling.factor", keys.get("rope.scale_linear", 1.0)) or 1.0
    context = keys.get("rope.scaling.original_context_length", config["max_position_embeddings"])
    if LONG in header.tensors and SHORT in header.tensors:
        expected |= {LONG, SHORT}
        return rope | {
            "rope_type": "longrope",
            "long_factor": header.values(LONG),
            "short_factor": header.values(SHORT),
            "original_max_position_embeddings": context,
            "attention_factor": keys.get("rope.scaling.attn_factor", 1.0),
        }
    if kind not in ("none", "linear", "yarn"):
        raise header.refusal(
            f"{keys.prefix}rope.scaling.type {kind!r} without the tensors {LONG} and {SHORT} is not read; convert the "
            "model again"
        )
    if FACTORS in header.tensors:
        expected.add(FACTORS)
        if factor != 1.0:
            raise header.refusal(f"{FACTORS} beside {keys.prefix}rope.scaling.factor {factor:g} is not read")
        return rope | _llama3(header, rope["rope_theta"], width)
    if kind == "none" or factor == 1.0:
        return rope
    rope |= {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        rope["original_max_position_embeddings"] = context
        rope["beta_fast"] = keys.get("rope.scaling.yarn_beta_fast", 32.0)
        rope["beta_slow"] = keys.get("rope.scaling.yarn_beta_slow", 1.0)
        rope["attention_factor"] = (0.1 * math.log(factor) + 1.0) * keys.get("rope.scaling.attn_factor", 1.0)
    return rope


def _llama3(header: Header, theta: float, width: int) -> dict[str, Any]:
    """Llama 3's scaling that gives the factors of `rope_freqs.weight`; nothing where all of them are 1. Raises ModelError
    for factors that are not of its form.

    A frequency f (turns over LLAMA3_CONTEXT positions) is kept from `high_freq_factor` on, divided by `factor` below
    `low_freq_factor`, and in between divided by 1 / ((1 - s) / factor + s), where s is its place between the two.
    """
    factors = header.values(FACTORS)
    turns = [LLAMA3_CONTEXT * theta ** (-2 * index / width) / (2 * math.pi) for index in range(len(factors))]
    if len(factors) == width // 2 and max(factors) == min(factors) == 1.0:
        return {}
    for factor in dict.fromkeys([max(factors), 8.0, 32.0, 16.0, 4.0]):
        places = [(1 / each - 1 / factor) / (1 - 1 / factor) for each in factors] if factor > 1 else []
        between = [(turn, place) for turn, place in zip(turns, places, strict=False) if 1e-4 < place < 1 - 1e-4]
        kept = [turn for turn, place in zip(turns, places, strict=False) if place >= 1 - 1e-4]
        divided = [turn for turn, place in zip(turns, places, strict=False) if place <= 1e-4]
        if len(between) > 1:
            (first, low_place), (last, high_place) = between[0], between[-1]
            if low_place == high_place:
                continue
            span = (first - last) / (low_place - high_place)
            low = last - high_place * span
        elif between:  # one point: of the lines through it one that keeps the bounds on either side
            (turn, place) = between[0]
            low = max([*divided, *((turn - place * each) / (1 - place) for each in kept[-1:]), 0.0])
            span = (turn - low) / place
        else:
            low = max(divided, default=0.0)
            span = min(kept, default=2 * low) - low
        found = {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": low + span,
            "original_max_position_embeddings": LLAMA3_CONTEXT,
        }
        if span > 0 and len(factors) == width // 2 and _gives(found, turns, factors):
            return found
    raise header.refusal(
        f"the factors in {FACTORS} are not those of Llama 3's scaling, the only one that is read; name a folder in "
        "Hugging Face format instead"
    )


def _gives(scaling: dict[str, Any], turns: list[float], factors: list[float]) -> bool:
    low, high, factor = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["factor"]
    for turn, expected in zip(turns, factors, strict=True):
        place = min(max((turn - low) / (high - low), 0.0), 1.0)
        if not math.isclose(1 / ((1 - place) / factor + place), expected, rel_tol=1e-4):
            return False
    return True
