"""What a GPU does otherwise between the matrix products computes the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specrig.runtime import pointwise
from specrig.runtime.linear import Linear, add_product
from specrig.runtime.pointwise import fused, rotate, swiglu


def test_a_product_adds_itself_onto_the_residual() -> None:
    torch.manual_seed(0)
    layer, residual, x = Linear(torch.randn(6, 4)), torch.randn(2, 3, 6), torch.randn(2, 3, 4)
    expected = residual + x @ layer.weight.T
    torch.testing.assert_close(add_product(residual.clone(), layer, x), expected)
    in_place, layer.in_place = residual.clone(), True  # as on a GPU
    assert add_product(in_place, layer, x) is in_place
    torch.testing.assert_close(in_place, expected)


@pytest.mark.parametrize("n", [1, 3])
def test_compiled_arithmetic_is_the_plain_one(n: int) -> None:
    """With the compiler's front end alone: which kernels it makes of it needs a GPU."""
    torch.manual_seed(0)
    x, cos, sin = torch.randn(2, n, 3, 8), torch.randn(2, n, 1, 8), torch.randn(2, n, 1, 8)
    torch.testing.assert_close(torch.compile(rotate, backend="aot_eager")(x, cos, sin), rotate(x, cos, sin))
    torch.testing.assert_close(torch.compile(swiglu, backend="aot_eager")(x), swiglu(x))


def test_without_a_compiler_arithmetic_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(function: Any) -> Any:
        def run(*_: Any) -> Any:
            raise RuntimeError("no C compiler found")

        return run

    monkeypatch.setattr(pointwise.torch, "compile", refused)
    fused.cache_clear()
    x = torch.randn(1, 2, 6)
    with pytest.warns(UserWarning, match="swiglu runs as it is: no C compiler"):
        found = fused(swiglu, "cuda")(x)
    assert found.equal(swiglu(x)) and fused(swiglu, "cuda")(x).equal(swiglu(x))
    fused.cache_clear()
    assert fused(swiglu, "cpu") is swiglu
