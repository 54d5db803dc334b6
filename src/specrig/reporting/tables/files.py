"""Write the tables in `results/<study>/tables` as CSV, Markdown and LaTeX."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from specrig.measurement.records import write_atomically
from specrig.reporting.tables.latex import latex
from specrig.results import grid
from specrig.results.names import TABLES
from specrig.results.study_data import read_study
from specrig.results.study_results import StudyResults

FILES = [f"{stem}.{ending}" for stem in TABLES for ending in ("csv", "md", "tex")]
"""The files that `write_tables` writes for every study."""


def write_tables(study_dir: Path, out: Path, audit: pd.DataFrame | None = None) -> list[Path]:
    """Compute the tables of `results/<study>` from its records, write `FILES` into `out`, and return their paths.

    CSV files have full precision; Markdown and LaTeX files have what readers need. audit: see `summary.audit_failures`;
    None means the study's own `audit/*.csv`, if it has any. Raises RecordError for an unreadable record.
    """
    for stem, table in StudyResults(read_study(study_dir), audit).tables.items():
        write_atomically(out / f"{stem}.csv", table.frame.to_csv(index=False))
        write_atomically(out / f"{stem}.md", grid.markdown(table.shown))
        write_atomically(out / f"{stem}.tex", latex(table.printed))
    return [out / name for name in FILES]
