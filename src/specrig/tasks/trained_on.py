"""Which requests a draft or head learnt from, noted beside weights that are given away: studies do not evaluate with
them. No torch here.

A training leaves out what its own study evaluates. Weights that somebody else trained cannot know what a study will
evaluate, so they bring the list. It holds hashes, one a line: a request that is private stays so.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from specrig.seeds import number
from specrig.tasks.wording import normalized

REQUESTS = "requests.txt"
"""The file's name, in the folder of a draft or head."""


def fingerprint(request: str) -> str:
    """16 hexadecimal digits that depend on the request's words alone, not on case, spaces or punctuation."""
    return f"{number('request', normalized(request)):016x}"


def trained_on(folder: Path) -> frozenset[str]:
    """The fingerprints of the requests that the model in the folder learnt from; empty for a model without the file."""
    file = folder / REQUESTS
    return frozenset(file.read_text(encoding="utf-8", errors="replace").split() if file.is_file() else ())


def write_trained_on(folder: Path, fingerprints: Iterable[str]) -> None:
    """Write the file of a folder."""
    (folder / REQUESTS).write_text("".join(f"{each}\n" for each in sorted(set(fingerprints))), encoding="utf-8")
