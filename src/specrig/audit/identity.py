"""Temperature 0: a lossless method emits the autoregressive tokens, one by one. Where it does not, how close was the call?

Floating-point sums depend on how many tokens a pass holds, so two tokens whose logits agree to the last digits may swap. Such a
divergence is a numerical tie only if the target's own logits for the two tokens lie within a stated tolerance; else it is a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specrig.measurement.records import Record

TIE_TOLERANCE = {"float32": 1e-3, "float16": 3e-2, "bfloat16": 2.5e-1}
"""Largest gap between the two logits that counts as a tie: some hundred units in the last place of logits around 10."""

Logits = Callable[[Sequence[int]], Sequence[float]]
"""The target's logits after a sequence of token ids."""


def tie_tolerance(dtype: str) -> float:
    """The `TIE_TOLERANCE` of a target's precision; of one that is not listed that of float32, the strictest.

    Of weights quantized as GGUF has them (Q4_1, Q8_0, …) that of bfloat16: llama.cpp rounds what it multiplies with them to 8 bits too.
    """
    if dtype.startswith("Q"):
        return TIE_TOLERANCE["bfloat16"]
    return TIE_TOLERANCE.get(dtype, TIE_TOLERANCE["float32"])


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place where a method's greedy output leaves the baseline's."""

    prompt_id: str
    position: int
    expected: int | None
    found: int | None
    expected_logit: float
    found_logit: float

    @property
    def gap(self) -> float:
        """How much the target prefers the expected token; infinite when one output simply ends early."""
        return self.expected_logit - self.found_logit

    def describe(self) -> str:
        """For people."""
        return (
            f"{self.prompt_id}: token {self.position} is {self.found} instead of {self.expected} "
            f"(logits {self.found_logit:.5g} and {self.expected_logit:.5g}, gap {self.gap:.2g})"
        )


def first_divergence(record: Record, prompt: Sequence[int], logits: Logits) -> Divergence | None:
    """Compare a record's output with its baseline's, lengths included; None when they are the same."""
    found, expected = record.run.tokens, record.baseline.tokens
    if found == expected:
        return None
    at = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), min(len(found), len(expected)))
    ours = found[at] if at < len(found) else None
    theirs = expected[at] if at < len(expected) else None
    if ours is None or theirs is None:
        return Divergence(record.prompt_id, at, theirs, ours, float("inf"), float("-inf"))
    scores = logits([*prompt, *expected[:at]])
    return Divergence(record.prompt_id, at, theirs, ours, float(scores[theirs]), float(scores[ours]))
