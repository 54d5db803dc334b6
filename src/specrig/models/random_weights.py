"""A model of a given shape with random weights. It is made where it runs, in its dtype, a layer at a time, so that it
takes memory only once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from specrig.models import split
from specrig.runtime.decode_pass import compile_passes
from specrig.runtime.llama_model import LlamaModel
from specrig.runtime.model import CachedModel
from specrig.runtime.transformers_model import cached_model

SPREAD = 0.02
"""Standard deviation of the weights: what most models start their training from."""


def random_model(
    config: dict[str, Any], *, devices: Sequence[torch.device | str], dtype: torch.dtype, beside: int = 0
) -> CachedModel:
    """A model with random weights, ready for the native loop. config: the keys of a config.json.

    devices: where its layers lie, the first holds all else, and `beside` bytes of other models (`models.split`). Raises
    ValueError or KeyError for an architecture that transformers does not know, DecodingError for one that our cache
    cannot serve.
    """
    shape = AutoConfig.for_model(**config)
    device = torch.device(devices[0])
    torch.manual_seed(0)
    if len(devices) > 1:
        return cached_model(_split(shape, [str(device) for device in devices], dtype, beside), device=device)
    if not LlamaModel.serves(shape):
        with device:
            model = AutoModelForCausalLM.from_config(shape, dtype=dtype)
        return cached_model(model, device=device)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape, dtype=dtype)
    body = model.model
    embedding = _filled(body.embed_tokens, device)
    with device:
        rotary = type(body.rotary_emb)(shape)  # its table is computed, not drawn
    parts = SimpleNamespace(
        embed_tokens=embedding,
        norm=_filled(body.norm, device),
        rotary_emb=rotary,
        layers=_layers(body, device),
    )
    head = embedding if shape.tie_word_embeddings else _filled(model.lm_head, device)
    made = LlamaModel(SimpleNamespace(config=shape, model=parts, lm_head=head), device=device, dtype=dtype)
    compile_passes(made)
    return made


def _layers(body: Any, device: torch.device) -> Iterator[nn.Module]:
    # `LlamaModel` fuses a layer's projections into weights of its own; by the next layer this one's are free again.
    for index in range(len(body.layers)):
        yield _filled(body.layers[index], device)
        body.layers[index] = nn.Identity()


def _split(shape: Any, devices: Sequence[str], dtype: torch.dtype, beside: int) -> nn.Module:
    from accelerate import dispatch_model

    model = split.empty(shape, dtype)
    placement = split.device_map(model, devices, beside)
    for name, weight in list(model.named_parameters()):  # each once, wherever it is tied to
        device = next(device for above, device in placement.items() if f"{name}.".startswith(f"{above}."))
        above, _, own = name.rpartition(".")
        made = _drawn(own, torch.empty_like(weight, device=device, requires_grad=False))
        setattr(model.get_submodule(above), own, nn.Parameter(made, requires_grad=False))
    model.tie_weights()
    return dispatch_model(model, placement, skip_keys=model._skip_keys_device_placement)


@torch.no_grad()
def _filled(module: nn.Module, device: torch.device) -> nn.Module:
    """Give memory and values to a module that has none: matrices are drawn, norms are one, biases zero."""
    module.to_empty(device=device)
    for name, weight in module.named_parameters():
        _drawn(name, weight)
    return module


def _drawn(name: str, weight: torch.Tensor) -> torch.Tensor:
    return weight.normal_(0.0, SPREAD) if weight.dim() > 1 else weight.fill_(0.0 if name.endswith("bias") else 1.0)
