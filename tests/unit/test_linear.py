"""Torch and compiled code multiply alike, and who says which of them does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from specrig.runtime import compiled, linear
from specrig.runtime.linear import KernelChoice, Linear


@pytest.fixture(autouse=True)
def kernel_choice(monkeypatch: pytest.MonkeyPatch) -> Iterator[KernelChoice]:
    found = KernelChoice()
    monkeypatch.setattr(linear, "kernel_choice", found)
    yield found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("few_rows", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 4, 5, 9, 13, 16, 40])
@pytest.mark.parametrize("bias", [torch.randn(256), None], ids=["bias", "no bias"])
def test_torch_and_compiled_code_give_the_product(
    dtype: torch.dtype, few_rows: bool, rows: int, bias: torch.Tensor | None
) -> None:
    outputs = 256 if bias is not None else 251  # a last block that is not whole
    weight, bias, x = (
        torch.randn(outputs, 128).to(dtype),
        None if bias is None else bias.to(dtype),
        torch.randn(rows, 128).to(dtype),
    )
    layer = Linear(weight, bias, few_rows=few_rows)
    assert (layer.blocks is not None) == (few_rows and compiled.supports_weight(weight, bias))
    expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    for shape in ((rows, 128), (1, rows, 128)):
        found = layer(x.view(shape)).double()
        torch.testing.assert_close(
            found.view(rows, -1), expected, atol=0.3 if dtype == torch.bfloat16 else 1e-4, rtol=0.02
        )


@pytest.mark.parametrize("rows", [1, 3, 8, 40, 100])
@pytest.mark.parametrize("bias", [torch.randint(-9, 9, (256,)).bfloat16(), None], ids=["bias", "no bias"])
def test_a_head_multiplies_in_eight_bits_where_that_is_asked_for(
    kernel_choice: KernelChoice, rows: int, bias: torch.Tensor | None
) -> None:
    """Whole numbers up to 127 need no rounding, so their product is exact."""
    if not compiled.supports_eight_bits():
        pytest.skip("this processor has no instructions for products of 8 bits")
    outputs = 256 if bias is not None else 251  # a last block that is not whole
    weight, x = (torch.randint(-127, 128, (n, 128)).bfloat16() for n in (outputs, rows))
    weight[:, 0] = x[:, 1] = 127  # the highest of each output, and of each row
    layer = Linear(weight, bias)
    assert layer.rounded("a head") is layer, "nobody asked for it"
    kernel_choice.pin(draft_weights="int8")
    rounded = layer.rounded("a head")
    assert kernel_choice.record()["draft_weights"] == {"a head": "int8"}
    expected = x.float() @ weight.float().T + (0 if bias is None else bias.float())
    for found in (rounded(x), layer(x)):
        torch.testing.assert_close(found, expected.bfloat16(), atol=0.5, rtol=0.01)
    assert torch.equal(rounded(x / 1000 + 1), layer(x / 1000 + 1)) == (rows > compiled.MAX_TOKENS)
    kernel_choice.pin(compiled="never", draft_weights="int8")
    assert layer.rounded("a head") is layer and kernel_choice.record()["draft_weights"] == {"a head": "model"}
