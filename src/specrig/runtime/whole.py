"""Loading a model whole. Where a checkpoint lacks tensors, transformers fills them with random numbers and only warns."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def load_whole(source: str, **options: Any) -> Any:
    """`AutoModelForCausalLM.from_pretrained(source, **options)`, of a folder whose weights have 8 bits (`eight_bits`) too.
    Raises ValueError where tensors are missing, and what transformers raises.
    """
    from safetensors.torch import load_file
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM

    from specrig.runtime.eight_bits import is_rounded, restored

    options["output_loading_info"] = True
    weights = Path(source).expanduser() / "model.safetensors"
    if weights.is_file() and is_rounded(weights.parent):
        config = AutoConfig.from_pretrained(source)
        kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        model, found = kind.from_pretrained(None, config=config, state_dict=restored(load_file(weights)), **options)
    else:
        model, found = AutoModelForCausalLM.from_pretrained(source, **options)
    if lacking := sorted(found["missing_keys"]):
        raise ValueError(f"it lacks {', '.join(lacking[:3])}{' and more' if len(lacking) > 3 else ''}")
    return model
