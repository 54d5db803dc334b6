"""What a run ends with: the answer of its study, and where report and results are."""

from __future__ import annotations

from pathlib import Path


def ending(root: Path, report: Path) -> str:
    """That plain decoding failed the audit, where it did; a line for each engine and pair; the paths of report and results.
    Only the paths where the run made no tables.
    """
    table, audit = root / "tables" / "speedup.csv", root / "audit" / "records.csv"
    found = []
    if table.is_file():
        from specrig.report.audit_tables import baseline_warning
        from specrig.report.conclusions import in_short
        from specrig.tables import read_table

        warning = baseline_warning(read_table(audit)) if audit.is_file() else ""
        found = [warning] if warning else []
        found += in_short(read_table(table))
    return "\n".join([*found, f"Report: {report}", f"Results: {root}"])
