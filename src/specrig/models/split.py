"""A target that is larger than a GPU: its layers lie on several, which work one after another. Importing this loads no
torch.

All but the layers lies on the first GPU: embedding, final norm and LM head, so that logits and hidden states are made
where drafts and heads are. accelerate carries the residual stream from one GPU to the next. No GPU and no host ever
holds the whole model.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from specrig.models.pair import ModelError, PairFiles

if TYPE_CHECKING:
    import torch

INSTALL = "pip install 'specrig[split]'"


def devices_of(pair: PairFiles, device: str) -> list[str]:
    """Where a pair's target lies: as many GPUs as its row says (`tensor_parallel`), on a processor that alone.

    Raises ModelError where there are fewer, or where accelerate is missing.
    """
    count = pair.tensor_parallel
    if count == 1 or device == "cpu":
        return [device]
    if find_spec("accelerate") is None:
        raise ModelError(f"pair {pair.name}: a target on {count} GPUs (tensor_parallel) needs accelerate: `{INSTALL}`")
    if (found := gpus_here()) < count:
        raise ModelError(
            f"pair {pair.name}: its target is to lie on {count} GPUs (tensor_parallel) and this process sees {found}; "
            "lower the number in the pair's row, or give the job more (CUDA_VISIBLE_DEVICES)"
        )
    return [f"cuda:{number}" for number in range(count)]


def gpus_here() -> int:
    """How many GPUs this process sees."""
    import torch

    return torch.cuda.device_count()


def empty(config: Any, dtype: torch.dtype) -> Any:
    """A `…ForCausalLM` of this configuration whose weights take no memory; its buffers, such as tables of angles, have
    their values.
    """
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.tie_weights()
    return model


def device_map(model: Any, devices: Sequence[str], beside: int = 0) -> dict[str, torch.device]:
    """Name of a module of a `…ForCausalLM` -> its device; together they hold all its weights. The model may be `empty`.

    beside: bytes of other models on the first device, which then gets so many fewer. Raises ModelError for a model
    whose layers are in no list.
    """
    import torch
    from torch import nn

    torch_devices = [torch.device(device) for device in devices]
    layers: int = model.config.get_text_config(decoder=True).num_hidden_layers
    name = next(
        (name for name, part in model.named_modules() if isinstance(part, nn.ModuleList) and len(part) == layers), None
    )
    if name is None:
        raise ModelError(f"{type(model).__name__} keeps its {layers} layers in no list that GPUs could share")
    found: dict[str, torch.device] = {}
    above, prefix = model, ""
    for step in name.split("."):
        own = [*above.named_parameters(recurse=False), *above.named_buffers(recurse=False), *above.named_children()]
        found |= {prefix + part: torch_devices[0] for part, _ in own if part != step}
        above, prefix = getattr(above, step), f"{prefix}{step}."
    sizes = [_bytes(layer) for layer in above]
    counts = shares(sizes, _bytes(model) - sum(sizes) + beside, len(torch_devices))
    assigned = [device for device, count in zip(torch_devices, counts, strict=True) for _ in range(count)]
    return found | {f"{prefix}{index}": device for index, device in enumerate(assigned)}


def shares(sizes: Sequence[int], first: int, parts: int) -> list[int]:
    """How many of the layers, whose bytes are `sizes`, each of the GPUs gets, in order, if the first also holds `first`
    bytes.

    Each takes layers until it is nearest to an even share of what it and those after it have to hold. The first has
    none where what else it holds exceeds that.

    >>> shares([1] * 8, 2, 2)
    [3, 5]
    """
    counts, at, rest = [], 0, first + sum(sizes)
    for part in range(parts):
        share, held = rest / (parts - part), first if part == 0 else 0
        count = 0
        while at < len(sizes) and (part == parts - 1 or held + sizes[at] / 2 <= share):
            held, count, at = held + sizes[at], count + 1, at + 1
        counts.append(count)
        rest -= held
    return counts


def _bytes(module: Any) -> int:
    return sum(weight.numel() * weight.element_size() for weight in module.parameters())
