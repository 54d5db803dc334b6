"""Temperature 0: does a method emit plain decoding's tokens? Where it does not, is the divergence a numerical tie?

Floating-point sums depend on how many tokens a pass holds, so two tokens whose logits agree to the last digits may
swap. In bfloat16 the last digit of a logit of 20 is worth 0.125: this happens every few dozen tokens. A divergence is a
tie if the target's logits of both tokens, computed again in float32, lie within a stated number of the precision's
units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specrig.measurement.records import Record
from specrig.measurement.traffic.records import Turn, first_answers

DIGITS = {"float32": 23, "float16": 10, "bfloat16": 7}
"""Binary digits behind the point of a precision's numbers."""
TIE_UNITS = {"float32": 1024.0, "float16": 8.0, "bfloat16": 8.0}
"""Largest gap between two logits that counts as a tie, in units of `spacing` at the larger one
(docs/audit.md).
"""

Logits = Callable[[Sequence[int]], Sequence[float] | NDArray[np.float32]]
"""The target's logits after a sequence of token ids."""


class Answer(NamedTuple):
    """An output beside the baseline's to the same prompt, both as token ids."""

    prompt_id: str
    found: list[int]
    expected: list[int]


def answer(record: Record) -> Answer:
    """A record's output and its baseline's."""
    return Answer(record.prompt_id, record.run.tokens, record.baseline.tokens)


def served_answers(turns: Sequence[Turn]) -> list[Answer]:
    """The method's answers under one load, each beside the baseline's first answer to its prompt, of which there is one."""
    first = first_answers(turns)
    return [
        Answer(request.prompt_id, request.tokens, first[request.prompt_id])
        for turn in turns
        for request in turn.requests
        if not turn.is_baseline and request.tokens and request.prompt_id in first
    ]


def units_of(dtype: str) -> str:
    """The precision in whose units a gap is counted: float32, the strictest, where `dtype` is not in `DIGITS`.

    bfloat16 for GGUF's quantized weights (Q4_1, Q8_0, …): llama.cpp rounds their factors to 8 bits too.
    """
    return "bfloat16" if dtype.startswith("Q") else dtype if dtype in DIGITS else "float32"


def spacing(dtype: str, value: float) -> float:
    """The distance of `value` to its neighbours in a precision; below 1 that at 1, since logits are sums of larger
    terms.
    """
    exponent = math.frexp(max(abs(value), 1.0))[1] - 1
    return 2.0 ** (exponent - DIGITS[units_of(dtype)])


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first position where a method's greedy output leaves the baseline's. dtype: the precision of both."""

    prompt_id: str
    position: int
    expected: int | None
    found: int | None
    expected_logit: float
    found_logit: float
    dtype: str

    @property
    def gap(self) -> float:
        """How much the target prefers the expected token; infinite when one output simply ends early."""
        return self.expected_logit - self.found_logit

    @property
    def units(self) -> float:
        """The size of the gap in units of the precision's spacing at the larger logit."""
        if math.isinf(self.gap):
            return math.inf
        return abs(self.gap) / spacing(self.dtype, max(abs(self.expected_logit), abs(self.found_logit)))

    @property
    def tie(self) -> bool:
        """Whether rounding explains it."""
        return self.units <= TIE_UNITS[units_of(self.dtype)]

    def describe(self) -> str:
        """The divergence in words."""
        return (
            f"{self.prompt_id}: token {self.position} is {self.found} instead of {self.expected} "
            f"(logits {self.found_logit:.6g} and {self.expected_logit:.6g}, {self.units:.3g} {self.dtype} units apart)"
        )


def first_divergence(answer: Answer, prompt: Sequence[int], logits: Logits, dtype: str) -> Divergence | None:
    """The first difference between an output and the baseline's, lengths included; None when they are equal."""
    prompt_id, found, expected = answer
    if found == expected:
        return None
    at = next(
        (i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), min(len(found), len(expected))
    )
    ours = found[at] if at < len(found) else None
    theirs = expected[at] if at < len(expected) else None
    if ours is None or theirs is None:
        return Divergence(prompt_id, at, theirs, ours, float("inf"), float("-inf"), dtype)
    scores = logits([*prompt, *expected[:at]])
    return Divergence(prompt_id, at, theirs, ours, float(scores[theirs]), float(scores[ours]), dtype)


def summary(divergences: Sequence[Divergence], outputs: int) -> str:
    """The finding in words: how many of the outputs are identical, how many differ at ties, and the worst failure."""
    same = outputs - len(divergences)
    parts = [f"{same} of {outputs} outputs identical ({100 * same / outputs:.0f} %)"]
    if ties := [one for one in divergences if one.tie]:
        dtype, widest = ties[0].dtype, max(one.units for one in ties)
        limit = TIE_UNITS[units_of(dtype)]
        parts.append(
            f"{len(ties)} differ at numerical ties (at most {widest:.2g} {dtype} units apart in float32; up to "
            f"{limit:g} pass)"
        )
    if failed := [one for one in divergences if not one.tie]:
        parts.append(f"{len(failed)} differ otherwise; {max(failed, key=lambda one: one.units).describe()}")
    return ", ".join(parts)
