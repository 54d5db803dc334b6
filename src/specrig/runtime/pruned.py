"""A model with layers left out, which drafts for the whole one: it has the same weights and reads the same cache.

The residual stream passes a layer that is left out unchanged. Keys and values of the context are those that the whole
model wrote, so nothing has to be run a second time. What the pruned model writes lies behind the context, where the
whole model's next pass writes before it reads: the context is never touched (Draft & Verify, 2309.08168, section 3.1;
SWIFT, 2410.06916, section 4.1).
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from specrig.errors import first_line
from specrig.runtime.device import Stopwatch
from specrig.runtime.llama_model import LlamaModel
from specrig.runtime.model import CachedModel
from specrig.runtime.transformers_model import TransformersModel
from specrig.runtime.types import DecodingError


def prune(whole: CachedModel, skipped: Collection[int]) -> CachedModel:
    """`whole` without the layers `skipped`, numbers from 0. It shares the weights; `follow` gives it a context.

    Raises DecodingError for a layer that the model does not have, where none would be left, and where its layers cannot
    be left out.
    """
    left_out = frozenset(skipped)
    if unknown := sorted(left_out - set(range(whole.layers))):
        raise DecodingError(f"there is no layer {unknown[0]} to leave out: the model's are 0 to {whole.layers - 1}")
    if len(left_out) == whole.layers:
        raise DecodingError(f"all {whole.layers} layers are left out: keep one at least")
    thin = copy.copy(whole)
    thin.watch = Stopwatch(whole.device)
    thin.replay = None if whole.replay is None else type(whole.replay)(whole.device)
    thin.aux_layers, thin.aux_hidden_states, thin._caches = (), None, {}
    if isinstance(thin, LlamaModel):
        thin.skipped = left_out
        if thin.compiled is not None:
            thin.compiled = thin.compiled.pruned(thin)
    elif isinstance(thin, TransformersModel):
        thin.model = _without(thin.model, left_out, whole.layers, whole.device)
    else:
        raise DecodingError(f"layers of a {type(whole).__name__} cannot be left out")
    return thin


def follow(thin: CachedModel, whole: CachedModel, lengths: Sequence[int]) -> None:
    """Let `thin` continue from the cache of `whole`, whose first `lengths[b]` slots hold row b's context."""
    B = whole.cache.batch_size
    if thin._caches.get(B) is not whole.cache:  # the whole model has a new or another memory
        thin._caches[B] = whole.cache
        thin.grow_tables(whole.cache.slots)
        if thin.replay is not None:
            thin.replay.clear()
    if isinstance(thin, LlamaModel) and isinstance(whole, LlamaModel):
        thin.cos, thin.sin = whole.cos, whole.sin  # they may be of texts of another length now
    thin.cache = whole.cache.scratch(lengths)


class _Passed(nn.Module):
    """Stands where a layer was: passes the stream on, and has the layer's attributes, which some models read."""

    def __init__(self, layer: nn.Module, as_tuple: bool) -> None:
        super().__init__()
        self.__dict__["layer"], self.as_tuple = layer, as_tuple

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["layer"], name)

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Any:
        return (hidden_states,) if self.as_tuple else hidden_states


def _without(model: Any, skipped: frozenset[int], layers: int, device: torch.device) -> Any:
    """A `…ForCausalLM` like `model`, of the same weights, without these layers. Raises DecodingError where it does not
    run so.
    """
    layers_name = next(
        (name for name, part in model.named_modules() if isinstance(part, nn.ModuleList) and len(part) == layers), None
    )
    if layers_name is None:
        raise DecodingError(
            f"layer_skip: {type(model).__name__} keeps its {layers} layers in no list that they can be left out of"
        )
    returns_tuple: list[bool] = []
    hook = model.get_submodule(layers_name)[0].register_forward_hook(
        lambda *found: returns_tuple.append(isinstance(found[-1], tuple))
    )
    try:
        _probe(model, device)
    finally:
        hook.remove()
    # The modules from the root down to the list are copied, all others shared.
    thin = above = _copied(model)
    for name in layers_name.split("."):
        above._modules[name] = above = _copied(above._modules[name])
    for index in skipped:
        above._modules[str(index)] = _Passed(above._modules[str(index)], returns_tuple[0])
    try:
        _probe(thin, device)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = first_line(error)
        raise DecodingError(
            f"layer_skip: {type(model).__name__} does not run without layers {sorted(skipped)} "
            f"({type(error).__name__}: {reason}); leave out others (`skip`), or choose another method"
        ) from error
    return thin


def _copied(module: Any) -> Any:
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    own = vars(twin)
    if (
        "_old_forward" in own
    ):  # accelerate's own forward, of a split model's module, still runs the module that it was put on
        own["_old_forward"] = MethodType(own["_old_forward"].__func__, twin)
        own["forward"] = partial(own["forward"].func, twin)
    return twin


@torch.inference_mode()
def _probe(model: Any, device: torch.device) -> None:
    model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=device), use_cache=False, output_hidden_states=True)
