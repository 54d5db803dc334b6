"""The layouts in which heads are read, as their authors and the trainers of others write them: `LAYOUTS`.

A checkpoint of any of them becomes one of ours: its config.json gets our keys, its tensors our names (`heads.shapes`).
No torch here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from specrig.heads.shapes import Shapes, as_object
from specrig.runtime.types import DecodingError

Config = Mapping[str, Any]
IGNORED = re.compile(r"^(t2d|verifier_(norm|lm_head)\.weight|(.*\.)?rotary_emb\.(inv_freq|(cos|sin)_cached))$")
"""Tensors that say nothing new: what `d2t` reaches, parts of the target, tables of rotary positions."""
PREFIX = re.compile(
    r"^(model|draft_model|ea_layer)\.(?=fc|midlayer|layers|norm|embed_tokens|hidden_norm|lm_head|d2t|t2d)"
)


@dataclass(frozen=True, slots=True)
class Layout:
    """One way of writing a head."""

    kind: str
    """What it is of: a key of `contents.TITLES`."""
    writers: str
    """Who writes it, as the documentation's table has it."""
    applies: Callable[[Config], bool]
    """Whether a config.json is of this layout; of a kind's layouts the first one that applies is taken."""
    names: tuple[tuple[str, str], ...] = ()
    """Pattern of a tensor's name -> what our name has in its place."""
    keys: Callable[[Config, Shapes | None], dict[str, Any]] = lambda config, _: dict(config)
    """Our config.json, of its own and of its tensors' shapes under our names; None: these are not known yet."""


def _nested(config: Config, **own: Any) -> dict[str, Any]:
    """Our configuration of one by speculators, which keeps the layer's in `transformer_layer_config`."""
    inner = config.get("transformer_layer_config")
    if not isinstance(inner, dict):
        raise DecodingError("its config.json has no transformer_layer_config: it is not of speculators")
    kept = (
        "draft_vocab_size", "target_hidden_size", "eagle_aux_hidden_state_layer_ids", "norm_before_fc", "fc_norm",
        "norm_output", "mask_token_id", "block_size", "quantization_config", "specrig",
    )  # fmt: skip
    outer = {key: config[key] for key in kept if config.get(key) is not None}
    return {**inner, **outer, **own}


def _flat(config: Config, _: Shapes | None) -> dict[str, Any]:
    """EAGLE-3's authors', SGLang's and SpecForge's: `norm_before_fc` may stand in `eagle_config`."""
    nested = as_object(config.get("eagle_config"))
    return {**config, **{key: nested[key] for key in ("norm_before_fc", "fc_norm", "norm_output") if key in nested}}


def _medusa(config: Config, shapes: Shapes | None) -> dict[str, Any]:
    """Medusa's keys have several names, and its authors leave the sizes to the base model: the tensors have them."""
    found = dict(config)
    for key, ours in (("medusa_num_heads", "num_heads"), ("medusa_num_layers", "num_hidden_layers")):
        if key in config:
            found[ours] = config[key]
    if shapes is None:
        return found
    blocks = [re.fullmatch(r"blocks\.(\d+)\.layers\.(\d+)\.weight", name) for name in shapes]
    places = [(int(match[1]), int(match[2])) for match in blocks if match]
    if places:  # authors' files hold more heads than some of their configurations say
        listed, heads = found.get("num_heads"), 1 + max(head for head, _ in places)
        if isinstance(listed, int) and listed > heads:
            raise DecodingError(
                f"its config.json says that there are {listed} heads, its weights have {heads}; take both from one place"
            )
        found["num_heads"] = heads
        found["num_hidden_layers"] = 1 + max(index for _, index in places)
        widths = [shape[0] for name, shape in shapes.items() if name.endswith(".weight") and name.startswith("blocks.")]
        found.setdefault("hidden_size", widths[0])
        found["medusa_fc_bias"] = any(name.startswith("blocks.") and name.endswith(".bias") for name in shapes)
    found["original_lm_head"] = "lm_head.weight" in shapes
    rows = next((shape[0] for name, shape in shapes.items() if name.startswith("lm_head")), None)
    if rows is not None and "token_map" not in shapes and not config.get("vocab_size"):
        found["vocab_size"] = rows
    return found


def _made_by_speculators(kind: str) -> Callable[[Config], bool]:
    return lambda config: config.get("speculators_model_type") == kind


def _otherwise(config: Config) -> bool:
    return "speculators_model_type" not in config


_FIRST = (r"^layers\.0\.", "midlayer.")
LAYOUTS = (
    Layout(
        "eagle",
        "vLLM's `EAGLEConfig`",
        lambda config: isinstance(config.get("model"), dict),
        keys=lambda config, _: {**config["model"], **{key: config[key] for key in ("specrig",) if key in config}},
    ),
    Layout("eagle", "EAGLE's authors (also EAGLE-2), HASS, vLLM, SGLang", _otherwise),
    Layout(
        "eagle",
        "speculators up to 0.3 (`eagle`)",
        _made_by_speculators("eagle"),
        (
            (r"^fusion_fc\.", "fc."),
            (r"^transformer\.", "layers.0."),
            (r"^embedding_layernorm\.", "embedding_norm."),
            (r"^pre_lm_head_layernorm\.", "norm."),
        ),
        lambda config, _: _nested(config),
    ),
    Layout("eagle3", "EAGLE-3's authors, vLLM, SGLang, SpecForge, NeMo, ModelOpt", _otherwise, (_FIRST,), _flat),
    Layout(
        "eagle3",
        "speculators (`eagle3`)",
        _made_by_speculators("eagle3"),
        (_FIRST,),
        # What vLLM takes where an old converter has not written it.
        lambda config, _: _nested(config, norm_before_residual=config.get("norm_before_residual", True)),
    ),
    Layout("p_eagle", "P-EAGLE's authors, vLLM", _otherwise, (_FIRST,), _flat),
    Layout(
        "p_eagle",
        "speculators (`peagle`)",
        _made_by_speculators("peagle"),
        (_FIRST,),
        lambda config, _: _nested(config, norm_before_residual=config.get("norm_before_residual", False)),
    ),
    Layout(
        "dflash",
        "DFlash's authors, vLLM, SGLang",
        _otherwise,
        keys=lambda config, _: {"model_type": "qwen3", **config},
    ),
    Layout(
        "dflash",
        "speculators (`dflash`)",
        _made_by_speculators("dflash"),
        keys=lambda config, _: _nested(
            config,
            dflash_config={
                "mask_token_id": config.get("mask_token_id"),
                "target_layer_ids": [layer - 1 for layer in config.get("aux_hidden_state_layer_ids") or ()],
                "sample_from_anchor": config.get("sample_from_anchor", False),
            },
        ),
    ),
    Layout(
        "medusa",
        "Medusa's authors (`medusa_lm_head.pt`, `.safetensors`), vLLM",
        _otherwise,
        (
            (r"^medusa_heads?\.", ""),
            (r"^(\d+)\.(\d+)\.linear\.", r"blocks.\1.layers.\2."),
            (r"^(\d+)\.\d+\.(weight)$", r"lm_heads.\1.\2"),
        ),
        _medusa,
    ),
    Layout("hydra", "SpecRig", _otherwise),
)


def renamed(layout: Layout, theirs: str) -> str | None:
    """Our name of a tensor in a checkpoint of this layout; None: it says nothing new."""
    found = PREFIX.sub("", theirs)
    if IGNORED.match(found):
        return None
    for pattern, ours in layout.names:
        found = re.sub(pattern, ours, found)
    return found
