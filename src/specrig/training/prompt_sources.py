"""`training.prompts`: where the requests come from that a target answers to write its training text. No torch here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from specrig.settings import Settings, as_path, from_home
from specrig.tasks.sources import is_data_file

SELF: Literal["self"] = "self"
"""The target asks itself (Magpie, arXiv:2406.08464)."""


class PromptSource(Settings):
    """One source of requests."""

    source: Annotated[str, as_path, from_home] = Field(min_length=1)
    """`self`: the target asks itself; a file of any format that tasks read, whose rows have `prompt` or a chat (`messages`,
    `conversations`, `turns`); or a hub data set (`owner/name`).
    """
    config: str | None = None
    """For a hub data set: its configuration."""
    split: str = "train"
    """For a hub data set: the split that requests come from."""
    revision: str | None = None
    """For a hub data set: its commit, branch or tag."""

    @property
    def kind(self) -> Literal["self", "file", "hub"]:
        """Who has the requests."""
        if self.source == SELF:
            return SELF
        return "file" if is_data_file(self.source) or self.source.count("/") != 1 else "hub"

    @property
    def name(self) -> str:
        """A name for the file of its texts."""
        return re.sub(r"\W+", "-", Path(self.source).stem if self.kind == "file" else self.source)


class OwnRequests(Settings):
    """How a target asks itself."""

    temperature: float = Field(default=0.95, gt=0)
    """Sampling temperature of requests."""
    top_p: float = Field(default=0.95, gt=0, le=1)
    """Only the fewest most likely tokens that have this probability together are drawn."""
    tokens: int = Field(default=160, ge=8)
    """Longest request that the target writes; longer ones are dropped. Half a sequence is the limit in any case."""
    openings: float = Field(default=0.5, ge=0, le=1)
    """Share of requests of which the first words are given, such as "Write a Python function": so kinds occur that the
    target seldom asks for by itself.
    """
    turns: float = Field(default=0.3, ge=0, lt=1)
    """Share of conversations that go on after an answer, if a sequence has room."""


ANOTHER = 1.35
"""Writing one kept sequence of own requests costs 1.35 sequences of tokens, because about one request in four is dropped."""


def relative_tokens(sources: tuple[PromptSource, ...]) -> float:
    """Tokens that writing runs through the target, in those of the sequences that are kept."""
    return 1 + (ANOTHER - 1) * sum(source.kind == SELF for source in sources) / len(sources)
