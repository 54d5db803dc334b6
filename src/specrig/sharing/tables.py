"""Compare a published table with the same table recomputed, number by number."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd

from specrig.analysis.cells import IDENTITY, row_dicts
from specrig.sharing.manifest import PublicationError

KEYS = ["id", *IDENTITY, "source", "scorer"]
"""The columns that identify a row; those are used that both tables have."""
TOLERANCE = 1e-9
"""Numbers with a smaller relative difference count as equal, because another processor may sum in another order."""


def compare_tables(published: Path, recomputed: Path) -> tuple[list[str], list[str]]:
    """(what differs in rows and in columns that both have, the columns that only one has) of two CSV files."""
    theirs, ours = _read(published), _read(recomputed)
    columns = [str(column) for column in theirs if column in ours]
    alone = [str(column) for column in [*theirs, *ours] if column not in columns]
    keys = [key for key in KEYS if key in columns]
    if not (_identify(theirs, keys) and _identify(ours, keys)):  # nothing names the rows: their places do
        keys = ["row"]
        for frame in (theirs, ours):
            frame["row"] = [str(number) for number in range(1, len(frame) + 1)]
    rows, recomputed_rows = _by_key(theirs, keys), _by_key(ours, keys)
    differences = [f"row {_named(keys, key)}: the records do not give it" for key in rows if key not in recomputed_rows]
    differences += [f"row {_named(keys, key)}: not published" for key in recomputed_rows if key not in rows]
    differences += [
        f"row {_named(keys, key)}, column {column}: published {row[column] or 'nothing'}, "
        f"the records give {recomputed_rows[key][column] or 'nothing'}"
        for key, row in rows.items()
        if key in recomputed_rows
        for column in columns
        if not _same(row[column], recomputed_rows[key][column])
    ]
    return differences, alone


def _read(path: Path) -> pd.DataFrame:
    """A CSV file as a table of text, without any conversion."""
    try:
        return pd.read_csv(path, dtype=str, keep_default_na=False)
    except (ValueError, OSError) as error:
        raise PublicationError(f"{path}: not a table ({error}); restore the file") from error


def _identify(frame: pd.DataFrame, keys: list[str]) -> bool:
    """Whether no two rows have the same values of `keys`."""
    return bool(keys) and not frame.duplicated(keys).any()


def _by_key(frame: pd.DataFrame, keys: list[str]) -> dict[tuple[str, ...], dict[str, Any]]:
    """Values of `keys` -> row."""
    return {tuple(str(row[key]) for key in keys): row for row in row_dicts(frame)}


def _named(keys: list[str], key: tuple[str, ...]) -> str:
    return ", ".join(f"{name} {value}" for name, value in zip(keys, key, strict=True) if value)


def _same(one: str, other: str) -> bool:
    if one == other:
        return True
    try:
        return math.isclose(float(one), float(other), rel_tol=TOLERANCE, abs_tol=1e-12)
    except ValueError:
        return False
