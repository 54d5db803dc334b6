"""Cells to measure again: the records of disturbed cells get another name, and what failed leaves a name.

Rules have these names among a job's params, so that the next run measures such cells again. No torch here. Nothing that
measures imports this file, so a change here makes no result stale.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from specrig.files import write_atomically
from specrig.measurement.attempts import other_attempts

INDEX = "index.json"
DISTURBED = ".disturbed-"
"""Added with a number to the name of a quarantined file of records."""
FAILED = ".failed-"
"""Added to the name of a cell or point that has failed, with the number of its failures."""


def quarantine_disturbed(folder: Path, slugs: Iterable[str]) -> None:
    """Rename the record files of some cells to `<slug>.jsonl.disturbed-<number>`, so that they are measured again.

    The attempts that did not count are renamed too. The cells leave the index first, so that it never names a missing
    file.
    """
    index, names = folder / INDEX, list(slugs)
    if index.is_file():
        content = json.loads(index.read_text(encoding="utf-8"))
        content["cells"] = {slug: entry for slug, entry in content["cells"].items() if slug not in names}
        write_atomically(index, json.dumps(content, indent=1))
    for slug in names:
        path = folder / f"{slug}.jsonl"
        for attempt in (*other_attempts(path).values(), path):
            attempt.replace(_quarantined(path))


def disturbed_names(folder: Path) -> list[str]:
    """Names of the files in a folder of records that `quarantine_disturbed` renamed; a job's param, as below."""
    return sorted(path.name for path in folder.glob(f"*{DISTURBED}*"))


def count_failures(folder: Path) -> None:
    """Count, in an empty file each, how often the cells or points that a job's index calls failed have failed."""
    for slug in json.loads((folder / INDEX).read_text(encoding="utf-8"))["failed"]:
        before = [*folder.glob(f"{slug}{FAILED}*")]
        (folder / f"{slug}{FAILED}{1 + max((_number(path) for path in before), default=0)}").touch()
        for path in before:
            path.unlink()


def failed_names(folder: Path) -> list[str]:
    """Names of the files that `count_failures` wrote; a job's param, as below.

    Each failure changes a name, so the next run measures again. A success changes none, so the run after it does not.
    """
    return sorted(path.name for path in folder.glob(f"*{FAILED}*"))


def _number(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def _quarantined(path: Path) -> Path:
    return path.with_name(f"{path.name}{DISTURBED}{1 + len(list(path.parent.glob(f'{path.name}{DISTURBED}*')))}")
