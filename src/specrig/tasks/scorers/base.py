"""What every scorer offers: numbers an output that add up, and the score of their sum. So leaving prompts out, as intervals do, is cheap."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Output:
    """What was asked, what was written, and what the data hold against it."""

    prompt: str
    text: str
    reference: str = ""


class Scorer(ABC):
    """A measure of quality; its name is that of its file. Higher is better."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line: what it measures, with its source."""
    library: ClassVar[str] = ""
    """The module that must be installed."""
    needs_reference: ClassVar[bool] = True
    runs_code: ClassVar[bool] = False
    """Whether it executes what a model wrote: only where the study says `run_generated_code: true`."""

    @classmethod
    def missing(cls) -> str | None:
        """None, or what installs the library that it lacks."""
        if not cls.library or find_spec(cls.library):
            return None
        return f"pip install {cls.library.replace('_', '-')}"

    @abstractmethod
    def statistics(self, output: Output) -> list[float]:
        """One output's numbers; the same count of them for every output."""

    @abstractmethod
    def combine(self, totals: Sequence[float], count: int) -> float:
        """The score of `count` outputs whose statistics sum to `totals`."""


class Mean(Scorer):
    """A scorer that is a mean over outputs."""

    @abstractmethod
    def score(self, output: Output) -> float:
        """One output's score."""

    def statistics(self, output: Output) -> list[float]:
        """See `Scorer`."""
        return [self.score(output)]

    def combine(self, totals: Sequence[float], count: int) -> float:
        """See `Scorer`."""
        return totals[0] / count


class Sacrebleu(Scorer):
    """A corpus score: sentences' counts are summed before they become a score, never their scores."""

    library = "sacrebleu"

    @cached_property
    @abstractmethod
    def metric(self) -> Any:
        """Sacrebleu's metric."""

    def statistics(self, output: Output) -> list[float]:
        """Counts of matching n-grams of the first line, as sacrebleu's own bootstrap sums them."""
        found: list[float] = self.metric._extract_corpus_statistics([first_line(output.text)], [[output.reference]])[0]
        return found

    def combine(self, totals: Sequence[float], count: int) -> float:
        """See `Scorer`."""
        return float(self.metric._compute_score_from_stats(list(totals)).score)


def first_line(text: str) -> str:
    """The first line with anything on it: a base model goes on after its translation."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def first_paragraph(text: str) -> str:
    """Up to the first blank line: a base model goes on after its summary."""
    return text.strip().split("\n\n")[0].strip()
