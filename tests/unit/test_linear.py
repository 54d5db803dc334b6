"""Which kernel computes a product, and who says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from specrig.decoding import linear
from specrig.decoding.linear import Choice, Linear, reorderable


@pytest.fixture(autouse=True)
def choice(monkeypatch: pytest.MonkeyPatch) -> Iterator[Choice]:
    found = Choice()
    monkeypatch.setattr(linear, "choice", found)
    yield found


def test_the_faster_kernel_is_taken_once_for_each_shape(choice: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    times = {(256, 128): 0.5, (128, 256): 0.97, (128, 128): 2.0}
    asked = []

    def timed(weight: torch.Tensor) -> dict[linear.Kernel, list[float]]:
        asked.append(tuple(weight.shape))
        return {"plain": [times[tuple(weight.shape)]] * 3, "reordered": [1.0] * 3}

    monkeypatch.setattr(linear, "timed", timed)
    if not reorderable(torch.randn(128, 128)):
        pytest.skip("this build of torch has no reordered weights")
    found = [choice.of(torch.randn(shape)) for shape in (*times, *times)]
    assert found == ["plain", "reordered", "reordered"] * 2  # 3 % faster is noise
    assert asked == list(times)
    assert choice.record() == {"float32 256x128": "plain", "float32 128x256": "reordered", "float32 128x128": "reordered"}
    choice.pin("plain")
    assert choice.of(torch.randn(128, 256)) == "plain"
    choice.pin(None)
    assert choice.of(torch.randn(128, 256)) == "reordered"
    assert asked == list(times)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_kernels_give_the_product(choice: Choice, dtype: torch.dtype) -> None:
    weight, bias, x = torch.randn(256, 128).to(dtype), torch.randn(256).to(dtype), torch.randn(2, 3, 128).to(dtype)
    expected = F.linear(x.double(), weight.double(), bias.double())
    for kernel in ("plain", "reordered"):
        choice.pin(kernel)  # type: ignore[arg-type]
        layer = Linear(weight, bias)
        assert layer.packed == (kernel == "reordered" and reorderable(weight))
        torch.testing.assert_close(layer(x).double(), expected, atol=0.3 if dtype == torch.bfloat16 else 1e-4, rtol=0.02)


def test_what_is_timed_is_every_kernel_at_every_row_count() -> None:
    if not reorderable(torch.randn(128, 128)):
        pytest.skip("this build of torch has no reordered weights")
    found = linear.timed(torch.randn(128, 128))
    assert {kernel: len(seconds) for kernel, seconds in found.items()} == {"plain": 3, "reordered": 3}
    assert all(0 < seconds < 60 for times in found.values() for seconds in times)
