"""`reported.csv` holds figures that others reported, one row a figure, with source and conditions. No torch here.

An empty field means that the source does not say. To add a claim, add a row: the columns are those of `Claim`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from specrig.settings import Allowed, Settings
from specrig.study.problems import Problems
from specrig.study.rows import read_rows

MEASURES = ("speedup", "tokens_per_s", "ms_per_token", "acceptance_rate", "acceptance_rate_alpha", "acceptance_length")
"""Metrics that a study measures.

A claim may also give `speedup_at_acceptance_<α>` or `…_<α>_to_<α>`, which is a calculation, or `pairing`, which has no
figure.
"""
TIMED = frozenset(MEASURES[:3])
"""Metrics that depend on hardware and precision; the others are properties of the models and the text."""
AGGREGATES = ("overall", "mean")
"""Values of the column `task` that mean an average over all tasks of a benchmark."""

Figure = Annotated[float | Literal["k"] | None, BeforeValidator(lambda value: value or None)]


class Claim(Settings):
    """A row of `reported.csv`: one reported figure, or range of figures."""

    id: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9._-]+$"), Allowed("a name of letters, digits, dots, underscores and dashes")
    ]
    """The row's name, by which tables and reports call the claim."""
    source: str = Field(min_length=1)
    """Author or site, title, table, date: enough to find the figure again; what is not known is called unknown."""
    target: str = Field(min_length=1)
    """Hub id of the target, or the source's name for it; `any` for a general statement."""
    draft: str = ""
    """Hub id of the draft, or the source's name for it; `a or b` where the source names two."""
    method: str = Field(min_length=1)
    """This project's name of the method, or the source's where this project has none."""
    k: Annotated[str, Field(pattern=r"^(\d+(-\d+)?|k)?$"), Allowed("a k as `5`, `4-8` or `k`")] = ""
    """Drafted tokens a round: `5`, `4-8`, or `k` for a statement about any k."""
    task: str = ""
    """`code`, `translation`, …, with the data set in brackets: `code (HumanEval)`."""
    temperature: Annotated[
        str,
        Field(pattern=r"^(\d+(\.\d+)?)?(,? ?nucleus \d*\.\d+)?$"),
        Allowed("a temperature as `0.7`, `nucleus 0.9` or `0.7, nucleus 0.9`"),
    ] = ""
    """Sampling temperature as a number; with `nucleus p` where the source sampled from a nucleus of probability p."""
    hardware: str = ""
    """The device it was measured on, as the source names it."""
    precision: str = ""
    """Number format of the models, as the source names it."""
    batch: Annotated[str, Field(pattern=r"^\d*$"), Allowed("a batch size in digits, or nothing (`1`)")] = ""
    """Batch size: prompts decoded side by side."""
    metric: Annotated[
        str,
        Field(pattern=rf"^({'|'.join(MEASURES)}|pairing|speedup_at_acceptance_[01]\.\d+(_to_[01]\.\d+)?)$"),
        Allowed(
            f"one of {', '.join(MEASURES)}, pairing, `speedup_at_acceptance_0.6` or `speedup_at_acceptance_0.6_to_0.8`"
        ),
    ]
    """What the figure is; see `MEASURES`."""
    low: Figure = None
    """The figure, or the lower end of a range; `k` for "k times"."""
    high: Figure = None
    """The upper end of a range; equal to `low` for a single figure."""
    baseline: Annotated[float | None, BeforeValidator(lambda value: value or None), Field(gt=0)] = None
    """The source's figure for plain decoding under the same conditions, in the metric's unit."""
    note: str = ""
    """What else the source says of the figure's conditions."""

    @model_validator(mode="before")
    @classmethod
    def _baseline_of_older_tables(cls, row: Any) -> Any:
        """Older tables, also those of publications, state the baseline in the note: `baseline 14.1 ms/token`."""
        found = re.search(r"baseline ([\d.]+) ms", str(row.get("note", ""))) if isinstance(row, dict) else None
        return {"baseline": found[1], **row} if found else row

    @model_validator(mode="after")
    def _figures(self) -> Claim:
        if self.metric == "pairing":
            return self
        ends = (self.low, self.high)
        if ends != ("k", "k") and not all(isinstance(end, float) for end in ends):
            raise ValueError(f"low and high must both be numbers, or both k, not {self.low!r} and {self.high!r}")
        if ends == ("k", "k") and not self.analytic:
            raise ValueError("only a speedup_at_acceptance_… may be `k`: give the figure")
        if isinstance(self.low, float) and isinstance(self.high, float) and not 0 < self.low <= self.high:
            raise ValueError(f"low {self.low:g} and high {self.high:g} must be positive, low not above high")
        return self

    @property
    def interval(self) -> tuple[float, float] | None:
        """The claim's figures as (low, high); None for a claim without figures."""
        return (self.low, self.high) if isinstance(self.low, float) and isinstance(self.high, float) else None

    @property
    def ks(self) -> range | None:
        """The values of k that the claim speaks of; None if the source does not say."""
        if not self.k or self.k == "k":
            return None
        first, _, last = self.k.partition("-")
        return range(int(first), int(last or first) + 1)

    @property
    def analytic(self) -> bool:
        """Whether the figure was calculated from an assumed acceptance instead of measured."""
        return self.metric.startswith("speedup_at_acceptance_")

    @property
    def general(self) -> bool:
        """Whether the claim speaks of any pair instead of a named one."""
        return self.target == "any"

    @property
    def aggregate(self) -> bool:
        """Whether the figure is a mean over the tasks of a benchmark."""
        return self.task in AGGREGATES

    @property
    def acceptances(self) -> tuple[float, float] | None:
        """The α range that an analytic claim assumes."""
        found = [float(text) for text in re.findall(r"[01]\.\d+", self.metric)]
        return (found[0], found[-1]) if found else None

    @property
    def base_method(self) -> str:
        """The method without the source's additions in brackets; by this project's name if it has one."""
        name = re.sub(r" *\(.*\)", "", self.method)
        return ALIASES.get(name, name)

    @property
    def drafts(self) -> list[str]:
        """Names of the drafts that the claim speaks of: from the column `draft`, or from the method's brackets."""
        inside = re.search(r"\((.*)\)", self.method)
        text = self.draft or (inside.group(1) if inside else "")
        return [DRAFTS.get(name, name) for name in text.split(" or ") if name]

    @property
    def task_name(self) -> str:
        """The kind of task without its data set, e.g. `code`."""
        return re.sub(r" *\(.*\)", "", self.task)

    @property
    def data_set(self) -> str:
        """The data set that the source names; empty if it names none."""
        found = re.search(r"\((.*)\)", self.task)
        return found.group(1) if found else ""

    @property
    def sampling_temperature(self) -> float | None:
        """The sampling temperature; 1 if the source names only nucleus sampling, None if it says nothing."""
        number = re.match(r"\d+(\.\d+)?", self.temperature)
        return float(number.group()) if number else 1.0 if self.nucleus else None

    @property
    def nucleus(self) -> bool:
        """Whether the source sampled from a nucleus, that is from a cut distribution."""
        return "nucleus" in self.temperature


ALIASES = {"prompt_lookup": "ngram", "medusa1": "medusa", "medusa2": "medusa"}
"""Names that sources use -> this project's names of the same methods."""

DRAFTS = {"68M": "double7/vicuna-68m"}
"""Names that sources use for drafts, such as their size -> the hub ids of these drafts."""


def read_claims(file: Path, problems: Problems) -> list[Claim]:
    """Read the rows of `reported.csv` in the file's order.

    Each invalid row is left out and added to `problems`, with file, line and column.
    """
    return list(read_rows(file, Claim, problems).values())
