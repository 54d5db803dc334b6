"""A linear layer that uses the kernel that is fastest for a few rows on this processor.

Decoding multiplies one to a few dozen rows by large weights. Which kernel is best depends on the processor and on the
precision, so they are timed when a weight of a new shape comes: `plain` (`F.linear`), `reordered` (weights laid out
once for oneDNN) and `compiled` (`runtime.compiled`, up to 64 rows; more rows take reordered weights). Where whole
passes are compiled (`runtime.decode_pass`), these kernels still serve prompts, heads, and models of more than 1 GiB.
docs/log/decoding.md has the measurements.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Sequence
from functools import cache
from time import perf_counter
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the name everyone uses)

from specrig.runtime import compiled

Kernel = Literal["plain", "reordered", "compiled"]
Compiled = Literal["auto", "always", "never"]
DraftWeights = Literal["model", "int8"]
ROWS = (1, 8)
"""Row counts that are timed: plain decoding, and a verified chain or small tree."""
ROWS_HINT = 8
"""The row count that weights are reordered for. Measured: hints from 2 to 32 give the same layout, which is good for 1
to 200 rows.
"""
SMALL = 1 << 14
"""Weights with fewer elements stay plain: calling the reordered kernel would cost more than it saves."""
MARGIN = 0.95
"""Another kernel is taken where it needs less than this part of the time of reordered weights."""
LIMIT_S = 1.0
"""Seconds that a process spends on timing; shapes that come later are reordered, or compiled where they cannot be."""
REPEATS = 3


class KernelChoice:
    """The kernels of this process. There is one, `kernel_choice`, for target, draft and heads alike."""

    def __init__(self) -> None:
        self.compiled: Compiled = "auto"
        """Whether decode passes run in compiled code (`runtime.decode_pass`); auto: where that is faster."""
        self.draft_weights: DraftWeights = "model"
        """How decode passes of drafts and heads multiply their weights: as they are, or rounded to 8 bits where that is
        faster."""
        self.draft_weights_of: dict[str, DraftWeights] = {}
        """What each draft and head that was loaded does."""
        self.pinned: Kernel | None = None
        """The kernel of all weights; None: the faster one for each shape."""
        self.seconds: dict[tuple[torch.dtype, tuple[int, ...]], dict[Kernel, list[float]]] = {}
        """What was timed: of a weight's precision and shape, each kernel's seconds at each of `ROWS`."""
        self.kernels: dict[tuple[torch.dtype, tuple[int, ...]], Kernel] = {}
        self.rounded: dict[tuple[int, ...], bool] = {}
        """Of a shape, whether 8 bits are faster (`Linear.rounded`)."""
        self._spent = 0.0

    def pin(self, kernel: Kernel | None, *, compiled: Compiled = "auto", draft_weights: DraftWeights = "model") -> None:
        """For the weights and models to come. kernel: None chooses by timing."""
        self.pinned, self.compiled, self.draft_weights = kernel, compiled, draft_weights
        self.kernels.clear()
        self.rounded.clear()
        self.draft_weights_of.clear()

    def of(self, weight: Tensor) -> Kernel:
        """The kernel for a weight `[out, in]`."""
        if weight.numel() < SMALL or not (reorderable(weight) or compiled.supports_weight(weight, None)):
            return "plain"
        key = weight.dtype, tuple(weight.shape)
        if key not in self.kernels:
            kernel = self.pinned or self._faster(key, weight)
            self.kernels[key] = (
                kernel if kernel != "compiled" or compiled.supports_weight(weight, None) else "reordered"
            )
        return self.kernels[key]

    def rounds(self, layer: Linear) -> bool:
        """Whether a draft or head should multiply this layer's weight rounded to 8 bits: where the process asks for it,
        the processor can, and that is faster.
        """
        if self.draft_weights != "int8" or self.compiled == "never" or self.pinned not in (None, "compiled"):
            return False
        weight = layer.dense()
        if weight.dtype != torch.bfloat16 or weight.numel() < SMALL:
            return False
        if not (compiled.supports_eight_bits() and compiled.supports_weight(weight, layer.bias)):
            return False
        if self.compiled == "always" or self._spent > LIMIT_S:
            return True
        shape = tuple(weight.shape)
        if shape not in self.rounded:
            started = perf_counter()
            usual, rounded = time_layers((layer, layer.in_eight_bits()))
            self.rounded[shape] = statistics.geometric_mean(rounded) < MARGIN * statistics.geometric_mean(usual)
            self._spent += perf_counter() - started
        return self.rounded[shape]

    def record(self) -> dict[str, dict[str, str]]:
        """For an environment's record: precision and shape -> kernel, and draft or head -> its weights."""
        linear: dict[str, str] = {
            f"{str(dtype).removeprefix('torch.')} {out}x{into}": kernel
            for (dtype, (out, into)), kernel in self.kernels.items()
        }
        return {"linear": linear, "draft_weights": dict(self.draft_weights_of)}

    def _faster(self, key: tuple[torch.dtype, tuple[int, ...]], weight: Tensor) -> Kernel:
        usual: Kernel = "reordered" if reorderable(weight) else "plain"
        if key not in self.seconds:
            if self._spent > LIMIT_S:
                return "reordered" if reorderable(weight) else "compiled"
            started = perf_counter()
            self.seconds[key] = time_kernels(weight)
            self._spent += perf_counter() - started
        times = self.seconds[key]
        least: dict[Kernel, float] = {
            kernel: statistics.geometric_mean(seconds)
            for kernel, seconds in times.items()
            if kernel != "compiled" or self.compiled != "never"
        }
        fastest = min(least, key=lambda kernel: least[kernel])
        return fastest if least[fastest] < MARGIN * least[usual] else usual


def time_kernels(weight: Tensor) -> dict[Kernel, list[float]]:
    """Seconds of a product with this weight at each of `ROWS`, for each kernel."""
    kernels: list[Kernel] = ["plain", "reordered"] if reorderable(weight) else ["plain"]
    if kernel_choice.compiled != "never" and compiled.supports_weight(weight, None):
        kernels.append("compiled")
    return dict(zip(kernels, time_layers([Linear(weight, kernel=kernel) for kernel in kernels]), strict=True))


def time_layers(layers: Sequence[Linear]) -> list[list[float]]:
    """Seconds of each layer's product at each of `ROWS`: the least of `REPEATS`, which alternate. The layers have the
    same shape and precision.

    The processor's caches are overwritten before each, because a pass reads all other weights in between.
    """
    others, first = torch.zeros(8 << 20), layers[0]
    found: list[list[float]] = [[] for _ in layers]
    with torch.inference_mode():
        for rows in ROWS:
            x = torch.zeros((1, rows, first.width), dtype=first.weight.dtype)
            best = [float("inf")] * len(layers)
            for repeat in range(REPEATS + 1):
                for at, layer in enumerate(layers):
                    others += 1.0
                    started = perf_counter()
                    layer(x)
                    if repeat:  # the first call sets the kernel up
                        best[at] = min(best[at], perf_counter() - started)
            for seconds, least in zip(found, best, strict=True):
                seconds.append(least)
    return found


def reorderable(weight: Tensor) -> bool:
    """Whether torch offers the oneDNN layout for a weight here, and the weight is large enough to gain from it."""
    return (
        weight.device.type == "cpu"
        and weight.dtype in (torch.float32, torch.bfloat16)
        and weight.numel() >= SMALL
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and (weight.dtype == torch.float32 or multiplies_bfloat16())
    )


@cache
def multiplies_bfloat16() -> bool:
    """Whether oneDNN multiplies bfloat16 on this processor. Where it does not (AVX2 alone), torch's own product of many
    rows takes eight times as long as widening both sides to float32 first.
    """
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


kernel_choice = KernelChoice()


class Linear:
    """`x @ weight.T + bias` with the weight kept in the layout that is fastest here."""

    __slots__ = ("bias", "blocks", "in_place", "outputs", "packed", "weight", "widens", "width")

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, kernel: Kernel | None = None) -> None:
        """weight: `[out, in]`; bias: `[out]`; kernel: None leaves it to `kernel_choice`."""
        self.weight, self.bias = weight, bias
        self.outputs, self.width = weight.shape
        self.packed = False
        self.blocks: Tensor | None = None
        """The weight as compiled code reads it, for up to `MAX_TOKENS` rows; None: one kernel for all."""
        self.in_place = weight.device.type == "cuda" and bias is None  # see `add_product`
        self.widens = weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and not multiplies_bfloat16()
        self.set_kernel(kernel or kernel_choice.of(weight))

    def set_kernel(self, kernel: Kernel) -> None:
        """Compute with this kernel from now on. A reordered weight stays so."""
        if kernel == "compiled" and compiled.supports_weight(self.dense(), self.bias):
            self.blocks = compiled.to_blocks(self.dense())
        if kernel != "plain" and not self.packed and reorderable(self.weight):
            with torch.inference_mode():
                self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight.contiguous(), ROWS_HINT)
            self.packed = True

    def __call__(self, x: Tensor) -> Tensor:
        """`[..., in]` -> `[..., out]`."""
        if self.blocks is not None and x.numel() <= compiled.MAX_TOKENS * self.width:
            return compiled.product(x, self.blocks, self.bias, self.outputs)
        if self.packed:
            result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
            return result
        if self.widens and x.numel() > self.width:
            bias = None if self.bias is None else self.bias.float()
            return F.linear(x.float(), self.weight.float(), bias).to(x.dtype)
        return F.linear(x, self.weight, self.bias)

    def dense(self) -> Tensor:
        """The weight `[out, in]`, spread out again where it was reordered."""
        return self.weight.to_dense() if self.packed else self.weight

    def select_outputs(self, index: Tensor) -> Linear:
        """A layer with the outputs `index` `[n]` only."""
        return Linear(self.dense()[index].contiguous(), None if self.bias is None else self.bias[index])

    def rounded(self, name: str) -> Linear:
        """Return this layer of a draft or head, in 8 bits where `KernelChoice.rounds`. name: of the draft or head, in the
        record.
        """
        rounds = kernel_choice.rounds(self)
        if rounds or name not in kernel_choice.draft_weights_of:
            kernel_choice.draft_weights_of[name] = "int8" if rounds else "model"
        return self.in_eight_bits() if rounds else self

    def in_eight_bits(self) -> Linear:
        """A layer with the same weight that multiplies up to `MAX_TOKENS` rows in 8 bits; their numbers are rounded too."""
        found = copy.copy(self)
        found.blocks = compiled.to_eight_bits(self.dense())
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
