"""What tensors a checkpoint of each kind of head has, and whether it fits a target: from its configuration alone.

No torch here: a plan asks before anything is loaded. `config` is a configuration of transformers or anything else with
its attributes. D hidden width, V the target's vocabulary, Vd the head's, N the target's states that a head reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from specrig.heads.base import BIAS
from specrig.runtime.types import DecodingError

Shapes = dict[str, tuple[int, ...]]
"""Tensor name -> shape."""
FAULTS = 6
"""So many tensors that do not fit are named."""
VARIANTS = "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"
"""Keys by which an EAGLE-3 head says that its norms sit elsewhere than the paper's."""
ROTARY_BY_LENGTH = "dynamic", "longrope", "su"
"""Scalings of rotary positions that depend on the text's length: a head's cache would hold keys of several of them."""


@dataclass(frozen=True, slots=True)
class Fits:
    """Of the target that a head is to fit; None: its files do not say."""

    hidden: int | None
    vocabulary: int | None
    layers: int | None


def faults(tensors: Mapping[str, tuple[int, ...]], shapes: Shapes, optional: Shapes | None = None) -> str:
    """What is missing, superfluous or of another shape; empty when all is right. optional: may be there."""
    every = shapes | (optional or {})
    wrong = [f"{name} is missing" for name in shapes if name not in tensors]
    wrong += [f"{name} does not belong there" for name in tensors if name not in every]
    wrong += [
        f"{name} is {list(tensors[name])} instead of {list(shape)}"
        for name, shape in every.items()
        if name in tensors and tuple(tensors[name]) != shape
    ]
    more = [f"and {len(wrong) - FAULTS} more"] if len(wrong) > FAULTS else []
    return "; ".join([*wrong[:FAULTS], *more])


def head_width(config: Any) -> int:
    """d, the width of an attention head."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def layer(config: Any, name: str, reads: int) -> Shapes:
    """Of the decoder layer `name`, whose attention projects vectors of width `reads`."""
    D, intermediate, width = config.hidden_size, config.intermediate_size, head_width(config)
    queries, keys = config.num_attention_heads * width, config.num_key_value_heads * width
    return {
        f"{name}.self_attn.q_proj.weight": (queries, reads),
        f"{name}.self_attn.k_proj.weight": (keys, reads),
        f"{name}.self_attn.v_proj.weight": (keys, reads),
        f"{name}.self_attn.o_proj.weight": (D, queries),
        f"{name}.mlp.gate_proj.weight": (intermediate, D),
        f"{name}.mlp.up_proj.weight": (intermediate, D),
        f"{name}.mlp.down_proj.weight": (D, intermediate),
        f"{name}.post_attention_layernorm.weight": (D,),
    }


def layer_extras(config: Any, name: str) -> Shapes:
    """What such a layer may have besides: biases, and norms of queries and keys (Qwen3)."""
    biases = {
        f"{part.removesuffix('weight')}bias": shape[:1]
        for part, shape in layer(config, name, 1).items()
        if part.endswith("_proj.weight")
    }
    return biases | {f"{name}.self_attn.{part}_norm.weight": (head_width(config),) for part in "qk"}


def whole_layers(config: Any, first: int) -> Shapes:
    """Of the layers from `first` on, each of which norms what it reads: a Llama's."""
    D, found = config.hidden_size, Shapes()
    for name in (f"layers.{index}" for index in range(first, config.num_hidden_layers)):
        found |= layer(config, name, D) | {f"{name}.input_layernorm.weight": (D,)}
    return found


def further_extras(config: Any, first: int) -> Shapes:
    """`layer_extras` of those."""
    extras = Shapes()
    for index in range(first, config.num_hidden_layers):
        extras |= layer_extras(config, f"layers.{index}")
    return extras


def markov(config: Any) -> Shapes:
    """Of a bias of the token before (`heads.markov`); none without `markov_rank`."""
    key, embedding, lm_head = BIAS
    rank, V = getattr(config, key, 0), config.vocab_size
    drafted = getattr(config, "truncated_vocab_size", None) or getattr(config, "draft_vocab_size", None) or V
    return {embedding: (V, rank), lm_head: (drafted, rank)} if rank else {}


def eagle(config: Any) -> Shapes:
    """`fc` reads the embedding first, then the feature."""
    D = config.hidden_size
    return {"fc.weight": (D, 2 * D)} | layer(config, "layers.0", D) | whole_layers(config, 1)


def eagle_extras(config: Any) -> Shapes:
    """EAGLE's own `fc.bias`; norms of what `fc` and the layer read and of what the LM head reads; an embedding and an
    LM head other than the target's.
    """
    D, V = config.hidden_size, config.vocab_size
    norms = {f"{name}.weight": (D,) for name in ("embedding_norm", "layers.0.input_layernorm", "norm")}
    own = {"fc.bias": (D,), "embed_tokens.weight": (V, D), "lm_head.weight": (V, D)}
    return own | norms | layer_extras(config, "layers.0") | further_extras(config, 1)


def drafted(config: Any) -> int:
    """Vd."""
    found: int = getattr(config, "draft_vocab_size", None) or config.vocab_size
    return found


def as_object(value: Any) -> dict[str, Any]:
    """A part of a configuration; empty where it is none."""
    return value if isinstance(value, dict) else {}


def aux_ids(config: Any) -> tuple[int, ...] | None:
    """The target's layers as an EAGLE-3 head's configuration lists them; None: it lists none. Raises DecodingError for
    what is no list of layers.
    """
    nested = as_object(getattr(config, "eagle_config", None))
    listed = getattr(config, "eagle_aux_hidden_state_layer_ids", None) or next(
        (nested[key] for key in ("eagle_aux_hidden_state_layer_ids", "layer_ids") if nested.get(key)), None
    )
    if listed and not (isinstance(listed, list) and all(isinstance(layer, int) for layer in listed)):
        raise DecodingError(f"eagle_aux_hidden_state_layer_ids are {str(listed)[:60]!r}, no list of layers")
    return tuple(listed) if listed else None


def eagle3(config: Any) -> Shapes:
    """`fc` reads N of the target's states, the low one first; attention the embedding first, then the feature."""
    D, Vd, reads = config.hidden_size, drafted(config), fused_width(config)
    found: Shapes = {"fc.weight": (D, reads)} | layer(config, "midlayer", 2 * D)
    found |= {f"midlayer.{name}.weight": (D,) for name in ("input_layernorm", "hidden_norm")}
    found |= {"norm.weight": (D,), "lm_head.weight": (Vd, D)} | whole_layers(config, 1)
    if getattr(config, "norm_before_fc", False):
        found["input_norm.weight"] = (reads,)
    if getattr(config, "fc_norm", False):
        states = len(aux_ids(config) or (0, 0, 0))
        found |= {f"fc_norm.{at}.weight": (reads // states,) for at in range(states)}
    if getattr(config, "target_hidden_size", D) not in (None, D):
        found["embed_tokens.weight"] = (config.vocab_size, D)
    return found


def eagle3_extras(config: Any) -> Shapes:
    """An embedding other than the target's, and which of its tokens the LM head's rows are."""
    own = {"embed_tokens.weight": (config.vocab_size, config.hidden_size), "d2t": (drafted(config),)}
    return own | layer_extras(config, "midlayer") | further_extras(config, 1)


def fused_width(config: Any) -> int:
    """Width of the target's states, joined, that `fc` reads."""
    width = getattr(config, "target_hidden_size", None) or config.hidden_size
    return width * len(aux_ids(config) or (0, 0, 0))


def p_eagle(config: Any) -> Shapes:
    """EAGLE-3's, and the states that stand for unknown ones."""
    return eagle3(config) | {"mask_hidden": (1, fused_width(config))} | markov(config)


def dflash_config(config: Any) -> dict[str, Any]:
    """What a configuration says of DFlash alone."""
    return getattr(config, "dflash_config", None) or {}


def dflash(config: Any) -> Shapes:
    """`fc` reads N of the target's states, the low one first."""
    D, reads = config.hidden_size, len(dflash_config(config).get("target_layer_ids") or ())
    found: Shapes = {"fc.weight": (D, reads * D), "hidden_norm.weight": (D,), "norm.weight": (D,)}
    found |= whole_layers(config, 0)
    for index in range(config.num_hidden_layers):
        found |= {f"layers.{index}.self_attn.{part}_norm.weight": (head_width(config),) for part in "qk"}
    return found | ({"lm_head.weight": (drafted(config), D)} if drafted(config) < config.vocab_size else {})


def dflash_extras(config: Any) -> Shapes:
    """An embedding and an LM head other than the target's, and which of its tokens that LM head's rows are."""
    D, V, Vd = config.hidden_size, config.vocab_size, drafted(config)
    own = {"embed_tokens.weight": (V, D), "lm_head.weight": (Vd, D), "d2t": (Vd,), "mask_embedding": (D,)}
    return own | further_extras(config, 0)


def depth_heads(config: Any) -> Shapes:
    """Of what belongs to no single one of several heads that each draft one depth."""
    found = getattr(config, "truncated_vocab_size", None) or config.vocab_size
    return markov(config) | ({"token_map": (found,)} if found < config.vocab_size else {})


def medusa(config: Any) -> Shapes:
    """K heads of `num_hidden_layers` residual layers; an LM head each, one for all, or the model's own behind a matrix
    of each head.
    """
    D, K, layers = config.hidden_size, config.num_heads, getattr(config, "num_hidden_layers", None) or 1
    V = getattr(config, "truncated_vocab_size", None) or config.vocab_size
    found = depth_heads(config)
    for name in (f"blocks.{head}.layers.{index}" for head in range(K) for index in range(layers)):
        found[f"{name}.weight"] = (D, D)
        if getattr(config, "medusa_fc_bias", True):
            found[f"{name}.bias"] = (D,)
    if getattr(config, "projections", False):
        return found | {f"projections.{head}.weight": (D, D) for head in range(K)}
    if getattr(config, "original_lm_head", False):
        return found | {"lm_head.weight": (V, D)}
    return found | {f"lm_heads.{head}.weight": (V, D) for head in range(K)}


def hydra(config: Any) -> Shapes:
    """Head i reads i + 2 vectors."""
    D, found = config.hidden_size, depth_heads(config)
    for head in range(config.num_heads):
        found |= {f"heads.{head}.{part}.weight": (D, (head + 2) * D) for part in ("linear", "res_connection")}
        found[f"heads.{head}.linear.bias"] = (D,)
    return found


def read_aux_layers(config: Any, layers: int) -> tuple[int, ...]:
    """The layers that an EAGLE-3 head's configuration names for a target of `layers` layers: j is the state after j
    layers. Those of the paper's code where it names none.

    vLLM and speculators count so. SpecForge, ModelOpt and NeMo name the layer whose output it is, one less: their
    default is recognised by its numbers, as by SGLang (its pull request 25454). Raises DecodingError for layers that
    the target lacks.
    """
    named = aux_ids(config)
    found = named or (2, layers // 2, layers - 3)
    if named == (1, layers // 2 - 1, layers - 4) and not getattr(config, "eagle_aux_hidden_state_layer_ids", None):
        found = tuple(layer + 1 for layer in named)
    if any(low >= high for low, high in pairwise((-1, *found, layers))):
        raise DecodingError(
            f"eagle_aux_hidden_state_layer_ids are {list(found)}, not rising ones from 0 to {layers - 1}, the layers of "
            "this target"
        )
    return found


def read_target_layers(config: Any, layers: int) -> tuple[int, ...]:
    """Likewise of a DFlash head, which counts the layer whose output it is: j is the state after j + 1 layers."""
    ids = tuple(dflash_config(config).get("target_layer_ids") or ())
    made_for = getattr(config, "num_target_layers", None)
    if made_for not in (None, layers):
        raise DecodingError(f"the head is for a target of {made_for} layers, this one has {layers}")
    if not ids or any(low >= high for low, high in pairwise((-2, *ids, layers - 1))):
        raise DecodingError(f"target_layer_ids are {list(ids)}, not rising ones from 0 to {layers - 2}")
    return tuple(layer + 1 for layer in ids)


def read_mask(config: Any) -> Any:
    """The mask token that a P-EAGLE head names; None: it names none."""
    keys = "ptd_token_id", "mask_token_id", "pard_token"
    return next((found for key in keys if (found := getattr(config, key, None)) is not None), None)


def _layer_fault(config: Any) -> str | None:
    """What of a decoder layer is another than a Llama's or Qwen3's; None: nothing."""
    rotary = as_object(getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None))
    kind = rotary.get("rope_type", rotary.get("type", "default"))
    if kind in ROTARY_BY_LENGTH:
        return f"its rotary positions depend on the text's length ({kind}), which heads do not support"
    if (part := rotary.get("partial_rotary_factor") or getattr(config, "partial_rotary_factor", None)) not in (None, 1):
        return f"rotary positions over a part of a head ({part}) are not supported in heads"
    if (act := getattr(config, "hidden_act", None) or "silu") not in ("silu", "swish"):
        return f"its MLP has {act} where heads have silu"
    if any(kind != "full_attention" for kind in _own_types(config)):
        return f"layers of {', '.join(sorted(set(_own_types(config))))} are not supported in heads"
    if (quantization := getattr(config, "quantization_config", None)) is not None:
        method = quantization.get("quant_method") or "a method without name"
        return f"its weights are quantized ({method}); take the head as it was before"
    return None


def _own_types(config: Any) -> list[str]:
    return list(getattr(config, "layer_types", None) or ())[: config.num_hidden_layers]


def _vocabulary_fault(config: Any, target: Fits) -> str | None:
    if target.vocabulary is None or config.vocab_size == target.vocabulary:
        return None
    return f"the head is for {config.vocab_size} tokens, the target has {target.vocabulary}"


def _hidden_fault(config: Any, target: Fits) -> str | None:
    reads = getattr(config, "target_hidden_size", None) or config.hidden_size
    if target.hidden is None or reads == target.hidden:
        return None
    return f"the head is for a hidden size of {reads}, the target's is {target.hidden}"


def _depth_fault(config: Any, target: Fits, on: str, *, more: bool) -> str | None:
    if target.hidden is not None and config.hidden_size != target.hidden:
        return f"the heads are for a hidden size of {config.hidden_size}, the {on}'s is {target.hidden}"
    whole = target.vocabulary
    if whole is not None and (config.vocab_size < whole or (config.vocab_size > whole and not more)):
        return f"the heads are for {config.vocab_size} tokens, the {on} has {whole}"
    return None


def misfit(kind: str, config: Any, target: Fits) -> str | None:
    """Why a head of this kind and configuration does not draft for the target, its tensors aside; None: it does."""
    if kind == "medusa":  # of a larger vocabulary the last tokens are never offered
        return _depth_fault(config, target, "model", more=True)
    if kind == "hydra":
        return _depth_fault(config, target, "target", more=False)
    wrong = _hidden_fault(config, target) or _vocabulary_fault(config, target) or _layer_fault(config)
    if wrong or kind == "eagle":
        return wrong
    try:
        if target.layers is not None:
            (read_target_layers if kind == "dflash" else read_aux_layers)(config, target.layers)
    except DecodingError as error:
        return str(error)
    if kind in ("p_eagle", "dflash"):
        key, mask = ("ptd_token_id", read_mask(config)) if kind == "p_eagle" else ("mask_token_id", None)
        mask = dflash_config(config).get(key) if kind == "dflash" else mask
        if type(mask) is not int or not 0 <= mask < config.vocab_size:
            return f"{key} is {mask}, not one of the {config.vocab_size} tokens"
    if kind == "dflash":
        own = dflash_config(config)
        others = [key for key in ("causal", "use_swa", "attention_sink_bias", "sample_from_anchor") if own.get(key)]
        if others:
            return f"a DFlash head with {', '.join(others)} in its config is not supported here"
    if getattr(config, "norm_before_fc", False) and getattr(config, "fc_norm", False):
        return "norm_before_fc and fc_norm exclude each other: one is a norm of all states joined, one of each"
    return None
