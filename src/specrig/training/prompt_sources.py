"""`training.prompts`: where the requests come from that a target answers to write its training text. No torch here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from specrig.settings import Settings, as_path

SELF: Literal["self"] = "self"
"""The target writes the requests itself (Magpie, arXiv:2406.08464)."""
SELF_LONG: Literal["self_long"] = "self_long"
"""The target writes an article, and then requests about it."""
CORPUS: Literal["corpus"] = "corpus"
"""The study's corpus."""
WRITTEN_BY_TARGET = (SELF, SELF_LONG)
DATA_FILES = (".jsonl", ".csv", ".parquet")


class PromptSource(Settings):
    """One source of requests."""

    source: Annotated[str, as_path] = Field(min_length=1)
    """`self`: the target writes them; `self_long`: requests about articles that it writes; `corpus`: the study's
    corpus; a .jsonl, .csv or .parquet file whose rows have `prompt`, `turns` or `messages`; or a hub data set
    (`owner/name`).
    """
    share: float = Field(default=1.0, gt=0)
    """How many of the texts begin with its requests, relative to the other sources."""
    config: str | None = None
    """For a hub data set: its configuration."""
    split: str = "train"
    """For a hub data set: the split that requests come from."""
    revision: str | None = None
    """For a hub data set: its commit, branch or tag."""

    @property
    def kind(self) -> Literal["target", "corpus", "file", "hub"]:
        """Who has the requests."""
        if self.source in WRITTEN_BY_TARGET:
            return "target"
        if self.source == CORPUS:
            return "corpus"
        return "file" if Path(self.source).suffix in DATA_FILES or self.source.count("/") != 1 else "hub"


class OwnRequests(Settings):
    """How a target writes requests itself."""

    temperature: float = Field(default=0.95, gt=0)
    """Sampling temperature of requests and articles."""
    top_p: float = Field(default=0.95, gt=0, le=1)
    """Only the fewest most likely tokens that have this probability together are drawn."""
    tokens: int = Field(default=160, ge=8)
    """Longest request that the target writes; longer ones are dropped. Half a sequence is the limit in any case."""
    article: float = Field(default=0.55, gt=0, lt=1)
    """Longest article, as a share of a sequence."""
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
    own = sum(source.share for source in sources if source.kind == "target")
    return 1 + (ANOTHER - 1) * own / sum(source.share for source in sources)
