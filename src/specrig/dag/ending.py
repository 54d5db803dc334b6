"""What a run ends with: the answer of its study, where report and results are, and the cells that failed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from specrig.files import write_atomically

KEEP_FAILED = "SPECRIG_KEEP_FAILED"
"""Variable with which a run whose cells failed ends with exit code 0; `specrig run --keep-failed` sets it."""


ENDING = "ending.txt"
"""File in a study's folder with what its last run ended with, for a run that has nothing to do."""


def end(root: Path, report: Path, failed: Mapping[str, str]) -> str:
    """What `ending` says, kept in the study's folder."""
    text = ending(root, report, failed)
    write_atomically(root / ENDING, text + "\n")
    return text


def ending(root: Path, report: Path, failed: Mapping[str, str]) -> str:
    """That plain decoding failed the audit, where it did; a line for each engine and pair; the paths of report and
    results; the cells that failed (`failed_cells`). Only the paths where the run made no tables.
    """
    table, audit = root / "tables" / "speedup.csv", root / "audit" / "records.csv"
    lines = []
    if table.is_file():
        from specrig.report.audit_tables import baseline_warning  # pandas, which planning does without
        from specrig.report.conclusions import in_short
        from specrig.tables import read_table

        warning = baseline_warning(read_table(audit)) if audit.is_file() else ""
        lines = [warning] if warning else []
        lines += in_short(read_table(table))
    lines += [f"Report: {report}", f"Results: {root}"]
    if failed:
        lines.append(f"Not measured ({len(failed)}), the next run tries again:")
        lines += [f"  {name}: {reason}" for name, reason in failed.items()]
    return "\n".join(lines)


def failed_cells(root: Path) -> dict[str, str]:
    """Name of each cell and point of traffic that failed in the study's last run -> why, in one line."""
    if not (root / "study.json").is_file():
        return {}
    from specrig.report.study_data import read_study

    study = read_study(root)
    reasons = {
        f"{job.engine}/{job.pair}/{job.method}/{slug}": reason
        for job in study.jobs
        for slug, reason in job.failed.items()
    }
    return {name: " ".join(reason.split()) for name, reason in (reasons | study.under_load[1]).items()}


def exit_code(failed: Mapping[str, str]) -> int:
    """1 where cells of the finished study failed, unless the user keeps such studies (`KEEP_FAILED`); else 0."""
    return int(bool(failed) and os.environ.get(KEEP_FAILED) != "1")
