"""Write the tables in `results/<study>/tables` as CSV, Markdown and LaTeX."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from specrig.files import write_atomically
from specrig.report import grid
from specrig.report.grid import Grid, GridEntry
from specrig.report.items import Table
from specrig.report.latex import latex
from specrig.report.outline import tables
from specrig.report.spreadsheet import FOLDER, spreadsheet
from specrig.report.study_data import read_study
from specrig.report.study_results import DataTable, StudyResults
from specrig.tables import write_table


def file_names() -> list[str]:
    """The files that `write_tables` writes for every study."""
    return [f"{name}.{ending}" for name in tables() for ending in ("csv", "md", "tex")]


def write_tables(study_dir: Path, out: Path, audit: pd.DataFrame | None = None, *, excel: bool = False) -> list[Path]:
    """Compute the tables of `results/<study>` from its records, write `file_names` into `out`, and return their paths.

    CSV files have full precision; Markdown and LaTeX files have what readers need. audit: see `summary.audit_failures`;
    None means the study's own `audit/*.csv`, if it has any. excel: write the CSV files for spreadsheets too, into a
    folder of their own. Raises RecordError for an unreadable record.
    """
    results = StudyResults(read_study(study_dir), audit)
    for name, item in tables().items():
        table = data_table(item, results)
        write_table(out / f"{name}.csv", table.frame)
        if excel:
            write_atomically(out / FOLDER / f"{name}.csv", spreadsheet(table.frame))
        write_atomically(out / f"{name}.md", grid.markdown(table.formatted))
        write_atomically(out / f"{name}.tex", latex(table.printed))
    return [out / name for name in file_names()]


def data_table(item: Table, results: StudyResults) -> DataTable:
    """A table that has files, with its data."""
    found = item.of(results)
    if isinstance(found, DataTable):
        return found
    if not isinstance(found, pd.DataFrame):
        raise TypeError(
            f"table {item.name}: a table with a file must give a DataTable or a DataFrame, not {type(found)}"
        )
    return DataTable(found, frame_grid(item, found, results.name))


def frame_grid(item: Table, frame: pd.DataFrame, study: str) -> Grid:
    """A DataFrame as readers see it: text columns first, then numbers with two decimals (whole ones with none)."""
    texts = [name for name in frame if not pd.api.types.is_numeric_dtype(frame[name])]
    numbers = [name for name in frame if name not in texts]
    digits = {name: 0 if pd.api.types.is_integer_dtype(frame[name]) else 2 for name in numbers}
    rows = [
        [
            *(GridEntry(str(row[name])) for name in texts),
            *(GridEntry(grid.number(row[name], digits[name])) for name in numbers),
        ]
        for row in frame.to_dict("records")
    ]
    header = [str(name).replace("_", " ") for name in (*texts, *numbers)]
    label = f"tab:{study}-{item.name.replace('_', '-')}"
    return Grid(header, rows, labels=len(texts), caption=item.caption or item.file, label=label)
