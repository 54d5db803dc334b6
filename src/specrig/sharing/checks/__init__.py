"""What a publication's files must say of each other. No model, GPU or reference is needed: docs/publishing.md has a
list.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from specrig.measurement.records import Record


class Located(NamedTuple):
    """A record of a publication and its location, `<file>:<line>`."""

    location: str
    record: Record

    def says(self, what: str) -> str:
        """A difference in this record, for readers."""
        return f"{self.location}: cell {self.record.cell.slug}, prompt {self.record.prompt_id}, {what}"


def majority(values: Iterable[str]) -> tuple[str, int]:
    """The most frequent value, of several the first in order, and how often it is there."""
    from collections import Counter

    counted = Counter(values)
    return min(counted.items(), key=lambda entry: (-entry[1], entry[0]))
