"""The keys of `corpus:` in a study's `training:`, which say what text is gathered. No torch here."""

from __future__ import annotations

from pydantic import Field

from specrig.settings import Settings


class CorpusSizes(Settings):
    """Most characters of training text a task; code and summarization have fewer if the installed sources end."""

    code: int = Field(default=900_000, ge=2_000)
    """Functions of the standard library and of the packages that `limits` names."""
    summarization: int = Field(default=900_000, ge=2_000)
    """Docstrings of installed packages, with their first lines as the summary."""
    translation: int = Field(default=600_000, ge=2_000)
    """Dates, amounts and names in English with their German, Czech, Turkish or Chinese forms, from the Unicode CLDR."""
    creative_writing: int = Field(default=800_000, ge=2_000)
    """Short stories from a grammar of heroes, places and treasures."""


class Limits(Settings):
    """Which installed sources become text, and how long a text may be; the defaults suit a context of 512 tokens."""

    packages: tuple[str, ...] = ()
    """Distributions whose functions become code texts, besides the standard library; missing ones are skipped."""
    body: int = Field(default=800, ge=120)
    """Longest body of a function (code), in characters."""
    excerpt: int = Field(default=150, ge=40)
    """Longest excerpt of a docstring to summarize, in characters; an example holds up to four."""


class Corpus(Settings):
    """What text is gathered for training, and how much is held out."""

    characters: CorpusSizes = CorpusSizes()
    """Most characters of training text for each task."""
    limits: Limits = Limits()
    """Which installed sources become text, and how long a text may be."""
    heldout_share: float = Field(default=0.1, gt=0, lt=0.5)
    """Share of files (code, summarization) and entity combinations (translation, creative writing) never trained on."""
    heldout_texts: int = Field(default=32, ge=1)
    """Number of held-out texts of each task, on which the losses are computed."""
    prompts: int = Field(default=64, ge=1)
    """Number of held-out prompts of each task, which studies decode."""
