"""Damaged files of a results folder, in words. Importing this loads no pandas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specrig.errors import first_line
from specrig.measurement.records import RecordError, made_again


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise RecordError, with the path and the fix, for every error that a damaged file causes within."""
    try:
        yield
    except RecordError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise RecordError(f"{path}: damaged ({first_line(error)}); {made_again(path)}") from error
