"""The interface of scorers: each output gives statistics that can be added up, and the score is computed from their
sum.

So the score of a subset of the prompts, which intervals need, costs only a sum.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Output:
    """An output to score: the prompt, the generated text, and the reference from the data."""

    prompt: str
    text: str
    reference: str = ""


class Scorer(ABC):
    """A measure of quality, where higher is better. Its name must be that of its file."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line that says what the scorer measures, with its source."""
    library: ClassVar[str] = ""
    """Name of the module that must be installed; empty if none is needed."""
    needs_reference: ClassVar[bool] = True
    runs_code: ClassVar[bool] = False
    """Whether the scorer runs what a model wrote; it then needs `run_generated_code: true` in the study."""

    @classmethod
    def missing(cls) -> str | None:
        """The command that installs the scorer's library if it is missing, else None."""
        if not cls.library or find_spec(cls.library):
            return None
        return f"pip install {cls.library.replace('_', '-')}"

    @abstractmethod
    def statistics(self, output: Output) -> list[float]:
        """The numbers of one output, of the same count for every output; sums of them are what `combine` takes."""

    @abstractmethod
    def combine(self, totals: Sequence[float], count: int) -> float:
        """The score of `count` outputs whose statistics sum to `totals`."""


class Mean(Scorer):
    """A scorer whose score is the mean of the outputs' scores."""

    @abstractmethod
    def score(self, output: Output) -> float:
        """The score of one output."""

    def statistics(self, output: Output) -> list[float]:
        """See `Scorer`."""
        return [self.score(output)]

    def combine(self, totals: Sequence[float], count: int) -> float:
        """See `Scorer`."""
        return totals[0] / count


class Sacrebleu(Scorer):
    """A corpus score of sacrebleu: n-gram counts of all outputs are summed, and the score is computed from the sums."""

    library = "sacrebleu"

    @cached_property
    @abstractmethod
    def metric(self) -> Any:
        """The metric object of sacrebleu."""

    def statistics(self, output: Output) -> list[float]:
        """The n-gram counts of the output's first line against the reference, as sacrebleu's bootstrap sums them."""
        found: list[float] = self.metric._extract_corpus_statistics([first_line(output.text)], [[output.reference]])[0]
        return found

    def combine(self, totals: Sequence[float], count: int) -> float:
        """See `Scorer`."""
        return float(self.metric._compute_score_from_stats(list(totals)).score)


def first_line(text: str) -> str:
    """The first line that is not blank, stripped: a base model writes on after its translation."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def first_paragraph(text: str) -> str:
    """The text up to the first blank line, stripped: a base model writes on after its summary."""
    return text.strip().split("\n\n")[0].strip()
