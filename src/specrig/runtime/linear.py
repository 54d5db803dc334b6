"""A linear layer: compiled code (`runtime.compiled`) multiplies a few rows, where there is some for this processor; torch
multiplies more rows, as of prompts. Whole passes are compiled apart (`runtime.decode_pass`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the name everyone uses)

from specrig.runtime import compiled

Compiled = Literal["auto", "always", "never"]
DraftWeights = Literal["model", "int8"]
SMALL = 1 << 14
"""Weights with fewer elements are torch's: calling other code would cost more than it saves."""


class KernelChoice:
    """What computes in this process. There is one, `kernel_choice`, for target, draft and heads alike."""

    def __init__(self) -> None:
        self.compiled: Compiled = "auto"
        """Whether decode passes run in compiled code (`runtime.decode_pass`); auto: where that is faster. never: single
        products do not either.
        """
        self.draft_weights: DraftWeights = "model"
        """How decode passes of drafts and heads multiply their weights: as they are, or rounded to 8 bits."""
        self.draft_weights_of: dict[str, DraftWeights] = {}
        """What each draft and head that was loaded does."""

    def pin(self, *, compiled: Compiled = "auto", draft_weights: DraftWeights = "model") -> None:
        """For the weights and models to come."""
        self.compiled, self.draft_weights = compiled, draft_weights
        self.draft_weights_of.clear()

    def compiles(self, layer: Linear) -> bool:
        """Whether compiled code multiplies a few rows with this layer's weight."""
        large = layer.weight.numel() >= SMALL
        return large and self.compiled != "never" and compiled.supports_weight(layer.weight, layer.bias)

    def rounds(self, layer: Linear) -> bool:
        """Whether a draft or head multiplies this layer's weight rounded to 8 bits: where the process asks for it and the
        processor can.
        """
        asked = self.draft_weights == "int8" and layer.weight.dtype == torch.bfloat16
        return asked and self.compiles(layer) and compiled.supports_eight_bits()

    def record(self) -> dict[str, dict[str, str]]:
        """For an environment's record: draft or head -> its weights."""
        return {"draft_weights": dict(self.draft_weights_of)}


@cache
def multiplies_bfloat16() -> bool:
    """Whether oneDNN multiplies bfloat16 on this processor. Where it does not (AVX2 alone), torch's own product of many
    rows takes eight times as long as widening both sides to float32 first.
    """
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


kernel_choice = KernelChoice()


class Linear:
    """`x @ weight.T + bias`."""

    __slots__ = ("bias", "blocks", "in_place", "outputs", "weight", "widens", "width")

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, few_rows: bool = True) -> None:
        """weight: `[out, in]`; bias: `[out]`. few_rows: whether passes outside `decode_pass` multiply it; else its compiled
        layout is not made here.
        """
        self.weight, self.bias = weight, bias
        self.outputs, self.width = weight.shape
        self.in_place = weight.device.type == "cuda" and bias is None  # see `add_product`
        self.widens = weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and not multiplies_bfloat16()
        self.blocks: Tensor | None = None
        """The weight as compiled code reads it, for up to `MAX_TOKENS` rows; None: torch multiplies them."""
        if few_rows:
            self.compile()

    def compile(self) -> None:
        """Let compiled code multiply a few rows from now on, where it can."""
        if self.blocks is None and kernel_choice.compiles(self):
            self.blocks = compiled.to_blocks(self.weight)

    def __call__(self, x: Tensor) -> Tensor:
        """`[..., in]` -> `[..., out]`."""
        if self.blocks is not None and x.numel() <= compiled.MAX_TOKENS * self.width:
            return compiled.product(x, self.blocks, self.bias, self.outputs)
        if self.widens and x.numel() > self.width:
            bias = None if self.bias is None else self.bias.float()
            return F.linear(x.float(), self.weight.float(), bias).to(x.dtype)
        return F.linear(x, self.weight, self.bias)

    def select_outputs(self, index: Tensor) -> Linear:
        """A layer with the outputs `index` `[n]` only."""
        return Linear(self.weight[index].contiguous(), None if self.bias is None else self.bias[index])

    def rounded(self, name: str) -> Linear:
        """Return this layer of a draft or head, in 8 bits where `KernelChoice.rounds`: it then multiplies up to `MAX_TOKENS`
        rows, which are rounded too. name: of the draft or head, in the record.
        """
        rounds = kernel_choice.rounds(self)
        if rounds or name not in kernel_choice.draft_weights_of:
            kernel_choice.draft_weights_of[name] = "int8" if rounds else "model"
        if not rounds:
            return self
        found = copy.copy(self)
        found.blocks = compiled.to_eight_bits(self.weight)
        return found


def add_product(residual: Tensor, layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`residual + layer(x)`, `[..., out]`. On a GPU that decodes `residual` itself takes the sum, inside the product's
    kernel.
    """
    if isinstance(layer, Linear) and layer.in_place:
        residual.view(-1, residual.shape[-1]).addmm_(x.reshape(-1, x.shape[-1]), layer.weight.t())
        return residual
    return residual + layer(x)


class Float32Linear(Linear):
    """A layer that multiplies in float32 whatever the precision of its input. It keeps a float32 copy of the weight."""

    __slots__ = ()

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """weight: `[out, in]` and bias: `[out]` of any precision."""
        super().__init__(weight.float(), None if bias is None else bias.float())

    def __call__(self, x: Tensor) -> Tensor:
        """`[..., in]` -> `[..., out]` in float32."""
        return super().__call__(x.float())
