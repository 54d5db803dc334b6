"""The one reader and writer of the tables that a study makes, as CSV files: names stay text, whatever they look like."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from specrig.files import write_atomically

TEXTS = frozenset(
    [
        *["id", "engine", "pair", "method", "variant", "label", "task", "test", "finding", "ks"],
        *["scorer", "note", "reference", "reason", "loop"],
        *["side", "digest", "verdict", "source", "target", "draft", "hardware", "precision", "metric", "cell"],
        *["command", "reported_speedup", "reported_conditions", "reported_task"],
    ]
)
"""The columns that hold text in every table; of any other column pandas says what it holds."""


def read_table(file: Path) -> pd.DataFrame:
    """The table in a CSV file. In a column of `TEXTS`, `007`, `NA` and `true` are names, and an empty entry is an empty text;
    in another column it is a missing number.

    Raises OSError and, for what is no table, ValueError.
    """
    header = pd.read_csv(file, nrows=0).columns
    kinds = {name: str for name in header if name in TEXTS}
    empty = {name: [""] for name in header if name not in TEXTS}
    return pd.read_csv(file, dtype=kinds, keep_default_na=False, na_values=empty)


def table_text(frame: pd.DataFrame) -> str:
    """A table as the text of a CSV file, which `read_table` reads back."""
    return str(frame.to_csv(index=False))


def write_table(file: Path, frame: pd.DataFrame) -> None:
    """Write a table as a CSV file, whole or not at all."""
    write_atomically(file, table_text(frame))
