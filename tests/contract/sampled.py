"""Whether what a method yields above temperature 0 follows the target's own distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specrig.audit.distribution import conditionals, exact_distribution
from specrig.audit.exact import ExactTest, bonus_tokens, run_tests
from specrig.decoding.loop import generate
from specrig.decoding.types import Drafter, Generation
from specrig.runtime.model import CachedModel

PROMPT, LENGTH, K, TEMPERATURE = [3, 5, 3, 5], 4, 3, 1.6
"""A temperature that is neither 0 nor 1, where nothing cancels out; at a lower one more tokens are rare."""
BATCHES, ROWS = 4, 256
"""Each flaw that `test_variants` plants has a p-value below 1e-11 in so many samples. Seen with a chance of 80 %: a bias
of .15 in total variation at one of the tokens, the same whenever the same token comes before; of .09 at all of them.
"""
FALSE_ALARM = 1e-6
"""Of so few samples a chi-squared is only roughly one far out: a right method can have 7e-5, and .7 of six times as many."""


def outcome_test(lab: Any, drafter: Drafter) -> ExactTest:
    """The first four tokens that `drafter` yields after PROMPT."""
    found: list[Generation] = []
    for batch in range(BATCHES):
        seeds = range(batch * ROWS, (batch + 1) * ROWS)
        prompts = [PROMPT] * ROWS
        found += generate(
            lab.target, drafter, prompts, k=K, max_new_tokens=LENGTH, temperature=TEMPERATURE, seeds=seeds
        )
    tokens = [generation.tokens for generation in found]
    return judged(lab.target, tokens, bonus_tokens(found)[:, :LENGTH])


def judged(target: CachedModel, tokens: Sequence[Sequence[int]], bonus: NDArray[np.bool_] | None = None) -> ExactTest:
    """The audit's tests of sampled continuations of PROMPT `[n, LENGTH]`. bonus: which of them are bonus tokens."""
    continuations = np.array(tokens)
    return run_tests(
        continuations,
        conditionals(target, PROMPT, tokens, TEMPERATURE),
        exact_distribution(target, PROMPT, 3, TEMPERATURE),
        np.zeros(continuations.shape, dtype=bool) if bonus is None else bonus,
    )
