"""Loading a model whole. Where a checkpoint lacks tensors, transformers fills them with random numbers and only warns."""

from __future__ import annotations

from typing import Any


def load_whole(source: str, **options: Any) -> Any:
    """`AutoModelForCausalLM.from_pretrained(source, **options)`. Raises ValueError where tensors are missing, and what
    transformers raises.
    """
    from transformers import AutoModelForCausalLM

    model, found = AutoModelForCausalLM.from_pretrained(source, output_loading_info=True, **options)
    if lacking := sorted(found["missing_keys"]):
        raise ValueError(f"it lacks {', '.join(lacking[:3])}{' and more' if len(lacking) > 3 else ''}")
    return model
