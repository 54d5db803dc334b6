"""What a message of ours says of another error, and of a damaged file."""

from __future__ import annotations

from pathlib import Path

FORCED = {"records": "measure", "traffic": "traffic"}
"""Folder of a study's results -> the rule that makes its files. They are no outputs for Snakemake, which misses none."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message that is not blank, or the error's type where the message is empty."""
    return next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)


def with_type(error: BaseException) -> str:
    """An error's type and the first line of its message."""
    kind, reason = type(error).__name__, first_line(error)
    return f"{kind}: {'no message' if reason == kind else reason}"


def made_again(path: Path) -> str:
    """The fix for a damaged file in a study's results: the commands that make it again. CONFIG is the study's config.

    Measuring keeps what is whole. The records beside an `environment.json` go with it: without it nobody knows where
    they were measured.
    """
    rule = next((FORCED[part] for part in path.parts if part in FORCED), None)
    removed = f"rm -r {path.parent}" if rule and path.name == "environment.json" else f"rm {path}"
    return f"make it again: {removed}; specrig run CONFIG" + (f" --forcerun {rule}" if rule else "")
