"""What a user wrote on Snakemake's command line, where Snakemake itself does not say it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

AGAIN = "SPECRIG_MEASURE_AGAIN"
"""Variable that the workflow sets for its jobs where its command line forces the rule `measure`."""
NAMES = ("study", "pairs", "tasks", "engines")
"""Keys of a study that hold names."""


def with_names_as_written(config: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """The config with the names that follow `--config` as text: Snakemake reads `study=2024_01` as the number 202401."""
    written: dict[str, Any] = {}
    for option, word in by_option(words):
        name, sign, value = word.partition("=")
        if option in ("--config", "-C") and sign and name in NAMES:
            written[name] = yaml.load(value, yaml.BaseLoader)
    return {**config, **written}


def forces_measuring(words: Sequence[str]) -> bool:
    """Whether the command line forces the rule `measure` or all rules: what is measured is then measured again."""
    options = list(by_option(words))
    forced = {word for option, word in options if option in ("--forcerun", "-R")}
    return "measure" in forced or any(word in ("--forceall", "-F") for word in words)


def by_option(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (option, word) for each word behind an option, and for `--option=word`."""
    option = ""
    for word in words:
        if word.startswith("-"):
            option, sign, word = word.partition("=")
            if not sign:
                continue
        yield option, word
