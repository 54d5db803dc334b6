"""Loading a model whole. Where a checkpoint lacks tensors, transformers fills them with random numbers and only warns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specrig.runtime.types import SCALE

BESIDE = re.compile(r"vision|visual|audio|mtp|nextn|eh_proj|shared_head|rotary_emb\.inv_freq|\.attn\.(masked_)?bias$")
"""In the name of a tensor that is no part of the language model, so that leaving it out changes nothing."""


def named_ends(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The ids that end a text as a config.json or generation_config.json names them; None: it names none.

    Raises ValueError for what are no ids.
    """
    ends = config.get("eos_token_id")
    if ends is None:
        return None
    listed = tuple(ends) if isinstance(ends, list) else (ends,)
    if not all(type(end) is int for end in listed):
        raise ValueError(f"eos_token_id is {str(ends)[:80]}, no ids of tokens; correct it")
    return tuple(end for end in listed if end >= 0)


def load_whole(source: str, **options: Any) -> Any:
    """`AutoModelForCausalLM.from_pretrained(source, **options)`, of a folder whose weights have 8 bits (`eight_bits`) too.
    Raises ValueError where tensors are missing or would be left out, and what transformers raises.
    """
    from safetensors.torch import load_file
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, GenerationConfig

    from specrig.runtime.eight_bits import restored

    # Decoding reads none of the model's own settings, and transformers refuses some that others have written.
    options |= {"output_loading_info": True, "generation_config": GenerationConfig()}
    if is_rounded(folder := Path(source)):
        config, tensors = AutoConfig.from_pretrained(source), restored(load_file(folder / "model.safetensors"))
        kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        model, found = kind.from_pretrained(None, config=config, state_dict=tensors, **options)
    else:
        model, found = AutoModelForCausalLM.from_pretrained(source, **options)
    if lacking := sorted(found["missing_keys"]):
        raise ValueError(f"it lacks {', '.join(lacking[:3])}{' and more' if len(lacking) > 3 else ''}")
    unread = () if "gguf_file" in options else found["unexpected_keys"]
    text = model.config.get_text_config(decoder=True)
    mtp_layers = range(getattr(text, "num_nextn_predict_layers", None) or 0)  # numbered behind the model's own
    mtp = tuple(f"model.layers.{text.num_hidden_layers + number}." for number in mtp_layers)
    if left_out := sorted(name for name in unread if not (BESIDE.search(name) or name.startswith(mtp))):
        raise ValueError(f"nothing in it reads {', '.join(left_out[:3])}{' and more' if len(left_out) > 3 else ''}")
    return model


def is_rounded(folder: Path) -> bool:
    """Whether the folder has a model.safetensors with matrices of 8 bits, which no other program knows."""
    from safetensors import safe_open

    weights = folder / "model.safetensors"
    if not weights.is_file():
        return False
    with safe_open(weights, "pt") as file:
        return any(name.endswith(SCALE) for name in file.keys())  # noqa: SIM118 - it is no mapping
