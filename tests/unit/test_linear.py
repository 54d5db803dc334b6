"""Which kernel computes a product, and who says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from specrig.runtime import compiled, linear
from specrig.runtime.linear import KernelChoice, Linear, reorderable


@pytest.fixture(autouse=True)
def kernel_choice(monkeypatch: pytest.MonkeyPatch) -> Iterator[KernelChoice]:
    found = KernelChoice()
    monkeypatch.setattr(linear, "kernel_choice", found)
    yield found


def test_the_faster_kernel_is_taken_once_for_each_shape(
    kernel_choice: KernelChoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {(256, 128): 0.5, (128, 256): 0.97, (128, 128): 2.0}
    calls = []

    def timed(weight: torch.Tensor) -> dict[linear.Kernel, list[float]]:
        calls.append(tuple(weight.shape))
        return {"plain": [times[tuple(weight.shape)]] * 2, "reordered": [1.0] * 2}

    monkeypatch.setattr(linear, "time_kernels", timed)
    if not reorderable(torch.randn(128, 128)):
        pytest.skip("this build of torch has no reordered weights")
    found = [kernel_choice.of(torch.randn(shape)) for shape in (*times, *times)]
    assert found == ["plain", "reordered", "reordered"] * 2  # 3 % faster is noise
    assert calls == list(times)
    assert kernel_choice.record()["linear"] == {
        "float32 256x128": "plain",
        "float32 128x256": "reordered",
        "float32 128x128": "reordered",
    }
    kernel_choice.pin("plain")
    assert kernel_choice.of(torch.randn(128, 256)) == "plain"
    kernel_choice.pin(None)
    assert kernel_choice.of(torch.randn(128, 256)) == "reordered"
    assert calls == list(times)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernel", get_args(linear.Kernel))
@pytest.mark.parametrize("rows", [1, 2, 4, 5, 9, 13, 16, 40])
@pytest.mark.parametrize("bias", [torch.randn(256), None], ids=["bias", "no bias"])
def test_every_kernel_gives_the_product(
    kernel_choice: KernelChoice, dtype: torch.dtype, kernel: linear.Kernel, rows: int, bias: torch.Tensor | None
) -> None:
    outputs = 256 if bias is not None else 251  # a last block that is not whole
    weight, bias, x = (
        torch.randn(outputs, 128).to(dtype),
        None if bias is None else bias.to(dtype),
        torch.randn(rows, 128).to(dtype),
    )
    layer = Linear(weight, bias, kernel=kernel)
    assert layer.packed == (kernel != "plain" and reorderable(weight))
    assert (layer.blocks is not None) == (kernel == "compiled" and compiled.supports_weight(weight, bias))
    expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    for shape in ((rows, 128), (1, rows, 128)):
        found = layer(x.view(shape)).double()
        torch.testing.assert_close(
            found.view(rows, -1), expected, atol=0.3 if dtype == torch.bfloat16 else 1e-4, rtol=0.02
        )


def test_what_is_timed_is_every_kernel_at_every_row_count() -> None:
    if not reorderable(torch.randn(128, 128)):
        pytest.skip("this build of torch has no reordered weights")
    found = linear.time_kernels(torch.randn(128, 128))
    expected = {"plain", "reordered"} | (
        {"compiled"} if compiled.supports_weight(torch.randn(128, 128), None) else set()
    )
    assert {kernel: len(seconds) for kernel, seconds in found.items()} == dict.fromkeys(expected, len(linear.ROWS))
    assert all(0 < seconds < 60 for times in found.values() for seconds in times)


@pytest.mark.parametrize("rows", [1, 3, 8, 40, 100])
@pytest.mark.parametrize("bias", [torch.randint(-9, 9, (256,)).bfloat16(), None], ids=["bias", "no bias"])
def test_a_head_multiplies_in_eight_bits_where_that_is_faster(
    kernel_choice: KernelChoice, monkeypatch: pytest.MonkeyPatch, rows: int, bias: torch.Tensor | None
) -> None:
    """Whole numbers up to 127 need no rounding, so their product is exact."""
    if not compiled.supports_eight_bits():
        pytest.skip("this processor has no instructions for products of 8 bits")
    outputs = 256 if bias is not None else 251  # a last block that is not whole
    weight, x = (torch.randint(-127, 128, (n, 128)).bfloat16() for n in (outputs, rows))
    weight[:, 0] = x[:, 1] = 127  # the highest of each output, and of each row
    layer, seconds = Linear(weight, bias), {"usual": 1.0, "rounded": 0.5}
    monkeypatch.setattr(linear, "time_layers", lambda _: [[seconds["usual"]] * 2, [seconds["rounded"]] * 2])
    assert layer.rounded("a head") is layer, "nobody asked for it"
    kernel_choice.pin(None, draft_weights="int8")
    rounded = layer.rounded("a head")
    assert kernel_choice.record()["draft_weights"] == {"a head": "int8"}
    expected = x.float() @ weight.float().T + (0 if bias is None else bias.float())
    for found in (rounded(x), layer(x)):
        torch.testing.assert_close(found, expected.bfloat16(), atol=0.5, rtol=0.01)
    assert torch.equal(rounded(x / 1000 + 1), layer(x / 1000 + 1)) == (rows > compiled.MAX_TOKENS)
    choices: tuple[tuple[linear.Kernel | None, linear.Compiled, float], ...]
    choices = (None, "auto", 0.99), (None, "never", 0.5), ("plain", "auto", 0.5)
    for kernel, ours, seconds["rounded"] in choices:
        kernel_choice.pin(kernel, compiled=ours, draft_weights="int8")
        assert layer.rounded("a head") is layer and kernel_choice.record()["draft_weights"] == {"a head": "model"}
