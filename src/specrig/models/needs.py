"""What an architecture needs to be speculated with, read off its config.json before any weight is read. No torch here.

Rejected drafts are rolled back by cutting keys and values, and a tree's siblings stand at one position. So every layer
must be attention over keys and values of single tokens, and positions must come from outside. What no key tells is
found when the model is loaded (`runtime.agreement`), which asks the model itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specrig.runtime import rotary

LAYER_KEYS = ("layer_types", "layers_block_type", "block_types", "_block_types", "hybrid_override_pattern")
"""Keys that name each layer's kind, the first that is there counts."""
ATTENTION = {"full_attention", "sliding_attention", "chunked_attention", "attention", "moe", "mlp", "*", "-", "E"}
"""Kinds of layers that keep keys and values, or nothing (single letters: in a pattern such as `M*M-`)."""
STATE = re.compile(
    r"mamba|ssm_|state_size|conv_kernel|conv_l_cache|conv1d|_conv_|lru_width|linear_(num|key|attn)|lstm|rescale_every"
)
"""In the name of a key that sizes or treats a recurrent state."""
HEADS = (
    "num_attention_heads n_head n_heads num_heads attention_heads num_attention_groups encoder_attention_heads".split()
)
POSITIONS = re.compile(r"position|rope|rotary|n_ctx|max_seq_len|max_target_length")
"""In the name of a key that says how positions enter, or how many there are."""


HEADS_OF_TARGETS = re.compile(
    r"Eagle|Medusa|Hydra|DFlash|MLPSpeculator|DraftModel|DSpark|NextN|MultiTokenPrediction", re.IGNORECASE
)
"""In the name of the architecture of a head that drafts inside a target."""
KINDS_OF_HEADS = {"medusa", "hydra", "eagle", "rest", "layer_skip", "mlp_speculator"}
"""Their `model_type`, where they have one of their own."""


def head(config: dict[str, Any]) -> str | None:
    """What a config.json calls the head that it is of; None: it is of a model."""
    names = [name for name in config.get("architectures") or () if HEADS_OF_TARGETS.search(name)]
    own = config.get("model_type") in KINDS_OF_HEADS and config["model_type"]
    medusa = "Medusa" if "medusa_num_heads" in config else None
    return next(filter(None, (*names, config.get("speculators_model_type"), own, medusa)), None)


def quantized(config: dict[str, Any]) -> str | None:
    """How the weights of a model with this config.json are quantized, e.g. `gptq, 4 bits`; None: they are not."""
    for key in ("quantization_config", "compression_config", "quantization"):
        for described in (config, text_config(config)):
            noted = described.get(key)
            if isinstance(noted, dict) and noted:
                method = noted.get("quant_method") or ("mlx" if key == "quantization" else "a method it does not name")
                if isinstance(four := noted.get("load_in_4bit"), bool):
                    method = f"{method}, {4 if four else 8} bits"
                elif isinstance(bits := noted.get("bits"), int | float):
                    method = f"{method}, {bits:g} bits"
                return str(method)
    return None


def unreadable(config: dict[str, Any]) -> str | None:
    """Why transformers' own code cannot give a model of this config.json its numbers; None: it can."""
    if (how := quantized(config)) is not None:
        if how.startswith("mlx"):
            return f"its weights are quantized ({how}), which MLX alone reads; take the model that they were made from"
        return (
            f"its weights are quantized ({how}), and this engine computes with plain numbers; take the model that they were "
            "made from, or an engine that reads them (vllm, sglang)"
        )
    kind = config.get("model_type")
    if not isinstance(kind, str):
        return "its config.json names no model_type; take the config.json that its authors publish"
    known = causal_models()
    if known and kind not in known:
        code = config.get("auto_map")
        if code:
            return (
                f"its architecture {kind!r} is code of its own ({', '.join(sorted(map(str, code)))} in auto_map), which is not "
                "run: it could do anything on this machine; take a model that transformers knows, or serve it "
                "(`servers:`)"
            )
        return (
            f"transformers {version('transformers')} knows no language model of type {kind!r}; a newer transformers may, else "
            "take another model"
        )
    scaled, read = {*map(rotary.type_of, rotary.scalings(text_config(config)))}, rotary_types()
    if read and (others := sorted(scaled - read)):
        old = "; su is an old name of longrope: write that in its config.json" if "su" in others else ""
        return (
            f"its rotary positions are scaled by {others[0]!r}, which transformers {version('transformers')} does not know "
            f"(of {', '.join(sorted(read))}){old or '; a newer transformers may, else take another model'}"
        )
    return None


@cache
def causal_models() -> frozenset[str]:
    """The `model_type`s that transformers has a …ForCausalLM of; empty where its source looks otherwise than in the versions
    that were read.
    """
    block = _source("models/auto/modeling_auto.py").partition("\nMODEL_FOR_CAUSAL_LM_MAPPING_NAMES = ")[2]
    return frozenset(re.findall(r'\(\s*"([\w.-]+)",\s*"\w+"', block.partition("\n)\n")[0]))


@cache
def rotary_types() -> frozenset[str]:
    """The ways of scaling rotary positions that transformers knows, likewise; `mrope` is what some models call none."""
    read = re.findall(r"def _validate_(\w+)_rope_parameters", _source("modeling_rope_utils.py"))
    return frozenset([*read, "mrope"] if read else [])


def _source(name: str) -> str:
    """A file of transformers, as a text: importing it would load torch. Empty where it is not there."""
    spec = find_spec("transformers")
    folders = [] if spec is None else spec.submodule_search_locations or []
    file = next((path for folder in folders if (path := Path(folder) / name).is_file()), None)
    return "" if file is None else file.read_text(encoding="utf-8")


def recurrent(config: dict[str, Any]) -> str | None:
    """Why drafts cannot be rolled back in a model with this config.json; None: as far as it shows they can."""
    text = text_config(config)
    if "vocab_size" not in text:
        return None  # too little of a config to tell anything
    kinds = next((text[key] for key in LAYER_KEYS if text.get(key)), None)
    if kinds is not None:
        others = dict.fromkeys(str(kind) for kind in _flat(kinds) if kind not in ATTENTION)
        evidence = f"layers of type {', '.join(others)}" if others else ""
    else:
        evidence = next(
            (f"{key} in its config" for key, value in text.items() if value and STATE.search(key.lower())), ""
        )
        if not any(text.get(name) for name in HEADS):
            evidence = evidence or "no attention heads in its config"
    if not evidence:
        return None
    return (
        f"it keeps more than keys and values of each token ({evidence}), which cannot be rolled back when drafts are "
        "rejected; choose a model with attention in every layer"
    )


def unmet(config: dict[str, Any]) -> str | None:
    """Why the native engine cannot decode with a model of this config.json; None: as far as it shows it can."""
    text = text_config(config)
    if (reason := recurrent(config)) is not None or "vocab_size" not in text:
        return reason
    named = text | (text.get("attn_config") or {})
    if any("alibi" in key and value for key, value in named.items()):
        how = "its attention counts distances along the cache (ALiBi)"
    elif not any(map(POSITIONS.search, named)):
        how = "its config names no positions, so it counts them along the cache itself"
    elif "local" in _flat(text.get("attention_types") or text.get("attention_layers") or ()):
        how = "its own code cuts windows along the cache (local attention)"
    else:
        return None
    return (
        f"{how}, where a tree's siblings stand behind one another; choose a model that takes its positions from "
        "outside (rotary, learned)"
    )


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a config.json that is of the language model: all of it, where the model reads text alone."""
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) else config


def _flat(kinds: Any) -> Iterator[Any]:
    """The leaves of nested lists; of a string its letters."""
    for kind in kinds:
        if isinstance(kind, list | tuple):
            yield from _flat(kind)
        else:
            yield kind
