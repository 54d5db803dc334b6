"""Token identity at temperature 0: where two outputs part, how close the call was, and whether rounding explains it."""

from __future__ import annotations

import pytest
import torch

from specrig.audit.identity import DIGITS, Answer, first_divergence, spacing, summary, units_of


def test_the_first_divergence_is_found_with_both_logits() -> None:
    calls: list[list[int]] = []

    def logits(tokens: object) -> list[float]:
        calls.append(list(tokens))  # type: ignore[call-overload]
        return [0.0, 1.0, 2.5, 2.4999]

    divergence = first_divergence(Answer("p", [5, 3, 9], [5, 2, 9]), [7, 8], logits, "float32")
    assert divergence is not None
    assert calls == [[7, 8, 5]]
    assert (divergence.position, divergence.expected, divergence.found) == (1, 2, 3)
    assert divergence.gap == pytest.approx(1e-4)


def test_a_truncated_output_is_no_match() -> None:
    """A comparison that zips two outputs, and so ends with the shorter one, would pass this one."""
    divergence = first_divergence(Answer("p", [5, 3], [5, 3, 9]), [7], lambda _: [0.0] * 10, "bfloat16")
    assert divergence is not None
    assert divergence.gap == float("inf") and not divergence.tie
    assert first_divergence(Answer("p", [5, 3], [5, 3]), [7], lambda _: [0.0] * 10, "bfloat16") is None


@pytest.mark.parametrize("dtype", DIGITS)
def test_spacing_is_the_precisions_own(dtype: str) -> None:
    kind = getattr(torch, dtype)
    for value in (1.0, 1.7, 2.0, 21.5, -300.0):
        near = torch.tensor([abs(value)], dtype=kind)
        # The next larger number.
        behind = (near.view(torch.int16 if kind.itemsize == 2 else torch.int32) + 1).view(kind)
        assert spacing(dtype, value) == float(behind) - float(near)
    assert spacing(dtype, 0.01) == spacing(dtype, 1.0)


def test_a_tie_is_a_matter_of_the_precisions_units() -> None:
    """Logits of 20 and 20.4 are three bfloat16 units apart, which rounding may swap, and far too many of float32; 20
    and 22 are sixteen.
    """
    near, far = [0.0, 20.0, 20.4], [0.0, 20.0, 22.0]
    for scores, dtype, expected in ((near, "bfloat16", True), (far, "bfloat16", False), (near, "float32", False)):
        divergence = first_divergence(Answer("p", [1], [2]), [0], lambda _, scores=scores: scores, dtype)
        assert divergence is not None and divergence.tie is expected
    tie, failure = (
        first_divergence(Answer("p", [1], [2]), [0], lambda _, s=scores: s, "bfloat16") for scores in (near, far)
    )
    assert tie is not None and failure is not None
    assert summary([tie], 4) == (
        "3 of 4 outputs identical (75 %), 1 differ at numerical ties (at most 3.2 bfloat16 units apart in float32; up "
        "to 8 pass)"
    )
    assert "1 differ otherwise; p: token 0 is 1 instead of 2" in summary([tie, failure], 4)


def test_quantized_weights_are_judged_as_bfloat16_and_what_is_unheard_of_as_float32() -> None:
    assert units_of("Q4_1") == "bfloat16" and units_of("float16") == "float16"
    assert units_of("unheard of") == "float32"
