"""What failed leaves a name, which rules have among a job's params: so the next run measures such cells again.

No torch here. Nothing that measures imports this file, so a change here makes no result stale.
"""

from __future__ import annotations

import json
from pathlib import Path

INDEX = "index.json"
FAILED = ".failed-"
"""Added to the name of a cell or point that has failed, with the number of its failures."""


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
