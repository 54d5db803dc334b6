"""Checks that the folders for results and reports can be written."""

from __future__ import annotations

import os

from specrig.study.problems import Problems
from specrig.study.study import Study


def check_folders(study: Study, problems: Problems) -> None:
    """Add a problem for the results or the reports folder if it cannot be made or written."""
    for key, folder in (("results", study.root), ("reports", study.report.parent)):
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not existing.is_dir():
            problems.key([key], f"{existing} is a file, no folder", "choose another folder, e.g. --config results=PATH")
        elif not os.access(existing, os.W_OK | os.X_OK):
            problems.key(
                [key],
                f"{existing} cannot be written",
                f"change its permissions, or choose another, e.g. --config {key}=PATH",
            )
