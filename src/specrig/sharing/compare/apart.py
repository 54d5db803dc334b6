"""Two studies without a common cell, side by side: nothing can be called a change, but each method has a place on each
pair.

Another target costs another pass and accepts other drafts, so a speedup on one pair is no prediction of that on
another. What may be read across pairs is how far each method gets on its own pair, and which method is ahead of which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

from specrig.analysis.cells import IDENTITY, row_dicts
from specrig.results.labels import BASELINES, method_order
from specrig.results.study_data import StudyData
from specrig.results.summary import MEAN, acceptance_summary, speedup_summary
from specrig.sharing.compare.comparison import Comparison, Side
from specrig.sharing.compare.setup_differences import Difference, whole_differences
from specrig.sharing.compare.sources import ComparisonError

SETTING = ("temperature", "batch_size")
"""What a method must have in common to stand in one row."""


@dataclass(frozen=True, slots=True)
class Place:
    """A column: one pair of one study. side: "A" or "B". tokens_per_s: of plain decoding, over the tasks that are
    shown.
    """

    side: str
    engine: str
    pair: str
    tokens_per_s: float = field(compare=False)


@dataclass(frozen=True, slots=True)
class Held:
    """One method at one setting. values: place -> its row of `summary.speedup_summary` with τ, at its fastest variant
    and best k.
    """

    temperature: float
    batch_size: int
    method: str
    values: Mapping[Place, dict[str, Any]]


class Apart:
    """A and B side by side: everything is computed from their records, on first use."""

    def __init__(self, a: Side, b: Side) -> None:
        """Raises ComparisonError where no method ran in both at one temperature and batch size."""
        self.a, self.b = a, b
        if not self.rows:
            raise ComparisonError(
                f"{a.where} and {b.where} have no cell in common, nor a method that ran in both at one temperature and batch size: "
                f"{_spread(a.study)} against {_spread(b.study)}"
            )

    @cached_property
    def tasks(self) -> list[str]:
        """The tasks that both measured, in A's order."""
        return [task for task in self.a.study.tasks if task in self.b.study.tasks]

    @cached_property
    def apart(self) -> list[tuple[str, list[Any], list[Any]]]:
        """(what a cell is named by, A's values, B's values) wherever the two share not one value."""
        found = []
        for name in IDENTITY:
            ours, theirs = (values(side.study, name) for side in (self.a, self.b))
            if not set(ours) & set(theirs):
                found.append((name, ours, theirs))
        return found

    @cached_property
    def differences(self) -> list[Difference]:
        """What differs between the studies as wholes, besides results."""
        return whole_differences(self.a.study, self.b.study)

    @cached_property
    def places(self) -> list[Place]:
        """Every pair of A, then every pair of B."""
        found = dict.fromkeys(place for row in self.rows for place in row.values)
        return sorted(found, key=lambda place: place.side)

    @cached_property
    def rows(self) -> list[Held]:
        """Methods that both ran at the same temperature and batch size, in the order of tables."""
        found: dict[tuple[Any, ...], dict[Place, dict[str, Any]]] = {}
        for letter, side in (("A", self.a), ("B", self.b)):
            for place, row in self._summary(letter, side.study):
                held = found.setdefault((*(row[name] for name in SETTING), row["method"]), {})
                # The table has a method once: of several variants (trees of two shapes, say) the fastest.
                if place not in held or held[place][MEAN] < row[MEAN]:
                    held[place] = row
        both = {key: held for key, held in found.items() if {place.side for place in held} == {"A", "B"}}
        order = method_order(key[-1] for key in both)
        return [
            Held(key[0], key[1], key[2], both[key])
            for key in sorted(both, key=lambda key: (*key[:-1], order.index(key[-1])))
        ]

    @cached_property
    def agreement(self) -> tuple[Place, Place, int, int] | None:
        """(A's place, B's place, pairs of methods in the same order by speedup, all pairs) for the two places with the
        most methods.

        Lossless drafting methods at the coldest, smallest setting. None where two places share fewer than two.
        """
        first = [
            row
            for row in self.rows
            if (row.temperature, row.batch_size) == (self.rows[0].temperature, self.rows[0].batch_size)
        ]
        best: tuple[Place, Place, int, int] | None = None
        for one in [place for place in self.places if place.side == "A"]:
            for other in [place for place in self.places if place.side == "B"]:
                speeds = [
                    (row.values[one][MEAN], row.values[other][MEAN])
                    for row in first
                    if row.method not in BASELINES
                    and all(place in row.values and fair(row.values[place]) for place in (one, other))
                ]
                pairs = list(combinations(speeds, 2))
                same = sum((left[0] - right[0]) * (left[1] - right[1]) > 0 for left, right in pairs)
                if pairs and (best is None or len(pairs) > best[3]):
                    best = (one, other, same, len(pairs))
        return best

    def _summary(self, letter: str, study: StudyData) -> list[tuple[Place, dict[str, Any]]]:
        """(place, row of the summary) of each method and variant of a study, over the common tasks (without any: over
        all).
        """
        tasks = self.tasks or study.tasks
        cells = study.table[study.table["task"].isin(tasks)]
        if cells.empty:
            return []
        audit = study.audit()
        lengths = acceptance_summary(cells, study.records, tasks, audit)
        names = [name for name in map(str, lengths.columns) if name.startswith("mean_")]
        keys = ["engine", "pair", "temperature", "batch_size", "method", "variant", "k"]
        summary = speedup_summary(cells, study.records, tasks, audit).merge(
            lengths[[*keys, *names]], on=keys, how="left"
        )
        found = []
        for row in row_dicts(summary.dropna(subset=[MEAN])):
            own = cells[
                (cells["engine"] == row["engine"]) & (cells["pair"] == row["pair"]) & (cells["batch_size"] == 1)
            ]
            plain = np.log(own["baseline_tokens_per_s"].dropna().to_numpy(dtype=float))
            rate = float(np.exp(plain.mean())) if len(plain) else float("nan")
            found.append((Place(letter, row["engine"], row["pair"], rate), row))
        return found


def compared(a: Side, b: Side) -> Comparison | Apart:
    """The comparison of two studies: cell by cell where they share cells, else side by side. Raises ComparisonError."""
    return Comparison(a, b) if any(name in b.study.cells for name in a.study.cells) else Apart(a, b)


def fair(row: Mapping[str, Any]) -> bool:
    """Whether a value may be called fast: lossless, not failed by the audit, not disturbed."""
    return bool(row["lossless"]) and not row["failed"] and not row["disturbed"]


def values(study: StudyData, name: str) -> list[Any]:
    """The different values that a study's cells have of one part of a cell's identity, in order of first appearance."""
    return list(dict.fromkeys(getattr(records[0].cell, name) for records in study.cells.values()))


def _spread(study: StudyData) -> str:
    return "; ".join(
        f"{label} {', '.join(f'{value:g}' if isinstance(value, float) else str(value) for value in values(study, name))}"
        for name, label in (
            ("pair", "pairs"),
            ("method", "methods"),
            ("temperature", "temperatures"),
            ("batch_size", "batch sizes"),
        )
    )
