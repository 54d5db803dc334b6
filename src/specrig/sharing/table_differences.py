"""Compare two versions of a table cell by cell, of a figure or report number by number."""

from __future__ import annotations

import gzip
import math
import re
import zlib
from base64 import b64decode
from itertools import zip_longest
from pathlib import Path

import pandas as pd

from specrig.analysis.cells import IDENTITY, row_dicts
from specrig.results.summary import RENAMED_COLUMNS
from specrig.sharing.manifest import PublicationError

KEYS = ["id", *IDENTITY, "source", "scorer"]
"""The columns that identify a row; those are used that a table has."""
TOLERANCE = 1e-9
"""Numbers with a smaller relative difference count as equal, because another processor may sum in another order."""
DRAWN = 1e-4
"""Units of a figure, far below a pixel: another processor may round the last digit of a place."""
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)")
_PACKED = re.compile(r"[A-Za-z0-9+/]{200,}={0,2}")
TableDifferences = tuple[list[str], list[str]]
"""(differences, remarks), each a list of lines for readers."""


def packed_or_not(path: Path) -> Path:
    """`path`, or `<path>.gz` if that is missing."""
    return path if path.is_file() else path.with_name(f"{path.name}.gz")


def header(folder: Path, stem: str) -> list[str]:
    """The names of the columns of the published table `stem`."""
    return list(_read(packed_or_not(folder / "tables" / f"{stem}.csv")).columns)


def compare_csv(recomputed: Path, folder: Path, stem: str) -> TableDifferences:
    """What differs between the published table `stem` of `folder` and the CSV file `recomputed`.

    A column that only the published table has is a difference. A column that only the recomputed table has is a remark,
    because everything that was published is still compared.
    """
    published, ours = _read(packed_or_not(folder / "tables" / f"{stem}.csv")), _read(recomputed)
    differences = [
        f"column {name}: published, and this code does not compute it" for name in published if name not in ours
    ]
    remarks = [
        f"column {name}: this code computes it, the publication does not have it"
        for name in ours
        if name not in published
    ]
    columns = [str(name) for name in published if name in ours]
    keys = [name for name in KEYS if name in columns]
    theirs, mine = _by_key(published, keys), _by_key(ours, keys)
    if theirs is None or mine is None:  # rows without names of their own: their places name them
        theirs, mine = _by_position(published), _by_position(ours)
        keys = ["row"]
    for key in theirs.keys() - mine.keys():
        differences.append(f"row {_named(keys, key)}: published, and the records do not give it")
    for key in mine.keys() - theirs.keys():
        differences.append(f"row {_named(keys, key)}: not published, though the records give it")
    for key in [key for key in theirs if key in mine]:
        for column in columns:
            one, other = theirs[key][column], mine[key][column]
            if not _same(one, other):
                differences.append(
                    f"row {_named(keys, key)}, column {column}: published {one or 'nothing'}, "
                    f"the records give {other or 'nothing'}"
                )
    return differences, remarks


def compare_text(recomputed: Path, published: Path) -> list[str]:
    """One line for each cell in which two Markdown tables differ."""
    pairs = zip_longest(_lines(published), _lines(recomputed), fillvalue="")
    differences = []
    for number, (one, other) in enumerate(pairs, 1):
        cells = list(zip_longest(one.split(" | "), other.split(" | "), fillvalue=""))
        for theirs, ours in cells:
            if theirs != ours:
                differences.append(
                    f"line {number}: published {theirs.strip() or 'nothing'}, "
                    f"the records give {ours.strip() or 'nothing'}"
                )
    return differences


def compare_drawing(published: Path, ours: Path) -> list[str]:
    """One line for each line in which two figures or reports differ; numbers closer than `DRAWN` count as equal."""
    differences = []
    for number, (theirs, mine) in enumerate(zip_longest(_lines(published), _lines(ours), fillvalue=""), 1):
        one, other = (_PACKED.sub(_unpacked, line) for line in (theirs, mine))
        parts, again = _NUMBER.split(one), _NUMBER.split(other)
        same = len(parts) == len(again) and all(map(_drawn_alike, parts, again))
        if not same:
            at = next(
                (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
            )
            around = [text[max(0, at - 30) : at + 30].strip() or "nothing" for text in (one, other)]
            differences.append(f"line {number}: published {around[0]}, rendered {around[1]}")
    return differences


def _drawn_alike(one: str, other: str) -> bool:
    return one == other or bool(
        _NUMBER.fullmatch(one) and _NUMBER.fullmatch(other) and abs(float(one) - float(other)) <= DRAWN
    )


def _unpacked(packed: re.Match[str]) -> str:
    """The text of a drawing that a report holds packed (`documents.html`), or the text as it is."""
    try:
        return gzip.decompress(b64decode(packed[0])).decode()
    except (ValueError, OSError, EOFError, zlib.error):
        return packed[0]


def _read(path: Path) -> pd.DataFrame:
    """A CSV file as a table of text, without any conversion; columns of older versions have their present names."""
    try:
        return pd.read_csv(path, dtype=str, keep_default_na=False).rename(columns=RENAMED_COLUMNS)
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise PublicationError(f"{path}: not a table ({error}); restore the file") from error


def _by_key(frame: pd.DataFrame, keys: list[str]) -> dict[tuple[str, ...], dict[str, str]] | None:
    """Values of `keys` -> row; None where the keys do not identify every row."""
    rows = row_dicts(frame)
    found = {tuple(row[key] for key in keys): row for row in rows}
    return found if keys and len(found) == len(rows) else None


def _by_position(frame: pd.DataFrame) -> dict[tuple[str, ...], dict[str, str]]:
    return {(str(number),): row for number, row in enumerate(row_dicts(frame), 1)}


def _named(keys: list[str], key: tuple[str, ...]) -> str:
    return ", ".join(f"{name} {value}" for name, value in zip(keys, key, strict=True) if value)


def _same(one: str, other: str) -> bool:
    if one == other:
        return True
    try:
        return math.isclose(float(one), float(other), rel_tol=TOLERANCE, abs_tol=1e-12)
    except ValueError:
        return False


def _lines(path: Path) -> list[str]:
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode().split("\n")
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise PublicationError(f"{path}: cannot be read ({error}); restore the file") from error
