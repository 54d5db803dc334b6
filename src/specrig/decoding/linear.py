"""A linear layer that uses the kernel that is fastest for a few rows.

Decoding multiplies one to a few dozen rows by large weights. On CPU the stock `F.linear` (MKL) is at its worst there: for the
12M-parameter target of the default study (fp32, 2 cores) all projections of one pass take 4.3 ms for 1 row and 5.2–7.0 ms for
2–5 rows, against 1.5–1.7 ms with weights reordered once for oneDNN. Verifying a few tokens then takes no longer than a plain step, as on a
GPU. `docs/log.md` has the measurements.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the name everyone uses)

ROWS_HINT = 8
"""The row count that weights are reordered for. Measured: hints from 2 to 32 give the same layout, which is good for 1 to 200 rows."""
SMALL = 1 << 17
"""Weights with fewer elements are not reordered: calling the reordered kernel would cost more than it saves."""


def reorderable(weight: Tensor) -> bool:
    """Whether this weight gains from, and this build of torch offers, the oneDNN layout."""
    return (
        weight.device.type == "cpu"
        and weight.dtype in (torch.float32, torch.bfloat16)
        and weight.numel() >= SMALL
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )


class Linear:
    """`x @ weight.T + bias` with the weight kept in the layout that is fastest here."""

    __slots__ = ("bias", "in_place", "packed", "weight", "width")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """weight: `[out, in]`; bias: `[out]`."""
        self.bias = bias
        self.width = weight.shape[1]
        self.packed = reorderable(weight)
        self.in_place = weight.device.type == "cuda" and bias is None  # see `onto`
        with torch.inference_mode():
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS_HINT) if self.packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        """`[..., in]` -> `[..., out]`."""
        if self.packed:
            result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
            return result
        return F.linear(x, self.weight, self.bias)

    def dense(self) -> Tensor:
        """The weight `[out, in]`, spread out again where it was reordered."""
        return self.weight.to_dense() if self.packed else self.weight

    def among(self, places: Tensor) -> Linear:
        """A layer of those outputs alone, `places` `[n]`."""
        return Linear(self.dense()[places].contiguous(), None if self.bias is None else self.bias[places])

    def onto(self, residual: Tensor, x: Tensor) -> Tensor:
        """`residual + self(x)`, `[..., out]`. On a GPU `residual` itself takes the sum, inside the product's kernel."""
        return self.onto_itself(residual, x) if self.in_place else residual + self(x)

    def onto_itself(self, residual: Tensor, x: Tensor) -> Tensor:
        """`onto` for a GPU: adds to `residual` in place. Only for a layer without bias whose weight is not reordered."""
        residual.view(-1, residual.shape[-1]).addmm_(x.reshape(-1, x.shape[-1]), self.weight.t())
        return residual


class Widened(Linear):
    """A layer that multiplies in float32 whatever the precision of its input. It keeps a float32 copy of the weight."""

    __slots__ = ()

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """weight: `[out, in]` and bias: `[out]` of any precision."""
        super().__init__(weight.float(), None if bias is None else bias.float())

    def __call__(self, x: Tensor) -> Tensor:
        """`[..., in]` -> `[..., out]` in float32."""
        return super().__call__(x.float())
