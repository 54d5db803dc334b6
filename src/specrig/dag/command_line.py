"""What a user gave after `--config`, as it was written: Snakemake reads `study=2024_01` as the number 202401."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

NAMES = ("study", "pairs", "tasks", "engines")
"""Keys of a study that hold names."""


def with_names_as_written(config: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """The config with the names that these words of a command line give it, as text."""
    written: dict[str, Any] = {}
    after_option = False
    for word in words:
        if word.startswith("-"):
            option, _, word = word.partition("=")
            after_option = option in ("--config", "-C")
        name, sign, value = word.partition("=")
        if after_option and sign and name in NAMES:
            written[name] = yaml.load(value, yaml.BaseLoader)
    return {**config, **written}
