"""How long a drafter's rounds take, and what a wider target pass adds to them.

The cost of passes is measured in passes that follow one another (`runtime.pass_costs`). In a round a wider pass costs
more than that: it follows other code and a longer text, and a larger draft takes longer to make. A regression of the
rounds' times on the costs of their passes says how much more.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

MEMORY = 0.99
"""What the time of a round is worth a round later."""
DEARER = 3.0
"""The prior: a wider pass makes a round longer by so many times what passes alone say. Measured were about 2.5, on two
kinds of processor.
"""
PRIOR = 0.1
"""How much rounds must have differed in cost, as a sum of squares in plain passes, to count as much as the prior."""
STARTING_ROUNDS = 4.0
"""Rounds of the texts before that the rate of a new text begins with."""


class RoundTimes:
    """How long a drafter's rounds take, and how much longer where the target's pass is wider. For all its texts."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._covariance = self._variance = 0.0
        self._rounds = self._tokens = self._seconds = 0.0
        self.begin()

    def begin(self) -> None:
        """A new text: its rounds are compared with each other alone, since its length decides what all of them cost."""
        kept = min(1.0, STARTING_ROUNDS / self._rounds) if self._rounds else 1.0
        self._rounds, self._tokens, self._seconds = (
            kept * each for each in (self._rounds, self._tokens, self._seconds)
        )
        self._own = self._mean_cost = self._mean_time = 0.0
        self._since = self._clock()

    def learn(self, tokens: float, cost: float, own: bool) -> None:
        """A round ends here. tokens: that it emitted, a row; cost: of its target pass, in plain passes; own: whether
        this drafter drafted it.
        """
        now = self._clock()
        seconds, self._since = now - self._since, now
        self._rounds, self._tokens, self._seconds = (
            MEMORY * old + new for old, new in ((self._rounds, 1.0), (self._tokens, tokens), (self._seconds, seconds))
        )
        if own:
            seconds = min(seconds, 2 * self._mean_time) if self._own else seconds  # what interrupted it says nothing
            self._own = MEMORY * self._own + 1
            off = cost - self._mean_cost
            self._mean_cost += off / self._own
            self._mean_time += (seconds - self._mean_time) / self._own
            self._covariance = MEMORY * self._covariance + off * (seconds - self._mean_time)
            self._variance = MEMORY * self._variance + off * (cost - self._mean_cost)

    def rate(self) -> float | None:
        """Tokens emitted in the extra time that a round takes when its target pass costs one plain pass more; None before
        the first round of a text.
        """
        if not self._own or not self._seconds:
            return None
        usual = self._mean_time / self._mean_cost  # as if the whole round grew with the pass
        longer = (self._covariance + PRIOR * DEARER * usual) / (self._variance + PRIOR)
        return self._tokens / self._seconds * max(longer, usual / 4)
