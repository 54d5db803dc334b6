"""Opt-in patch of speculative sampling in vLLM's CPU build, a plugin of vLLM (`vllm.general_plugins`).

Up to 0.32 the CPU build expands each request's temperature, top-k and top-p to its draft tokens with a native kernel
that drops the result, so that above temperature 0 the target's logits are divided by uninitialised memory (vLLM issue
55005). The patch replaces that function by the same expansion in torch, in every process of vLLM, where the environment
variable says so.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

VARIABLE = "SPECRIG_VLLM_CPU_SAMPLING"
PATCHED = "patched"


def choose(patched: bool) -> None:
    """Take the patched sampler, or the shipped one, in engines that start from now on in this process and its children."""
    os.environ[VARIABLE] = PATCHED if patched else "stock"
    from vllm.v1.sample import rejection_sampler

    rejection_sampler.expand_batch_to_tokens = _shipped()
    register()


def register() -> None:
    """Patch where the environment variable says so; vLLM calls this when one of its processes starts."""
    if os.environ.get(VARIABLE) != PATCHED:
        return
    from vllm.v1.sample import rejection_sampler

    _shipped()
    rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens


def expand_batch_to_tokens(
    x: Tensor, cu_num_tokens: Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Tensor:
    """Repeat each request's value for each of its draft tokens: x `[B]` -> `[num_tokens]`.

    cu_num_tokens: cumulative counts of draft tokens, `[B]`. Values equal to `replace_from` become `replace_to`.
    """
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    values = x.masked_fill(x == replace_from, replace_to)
    return values.repeat_interleave(counts.long(), output_size=num_tokens)


def _shipped() -> object:
    """VLLM's own function, kept on its module before it is first replaced."""
    from vllm.v1.sample import rejection_sampler

    if not hasattr(rejection_sampler, "_shipped_expand_batch_to_tokens"):
        rejection_sampler._shipped_expand_batch_to_tokens = rejection_sampler.expand_batch_to_tokens
    return rejection_sampler._shipped_expand_batch_to_tokens
