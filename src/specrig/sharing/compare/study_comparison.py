"""Two studies compared. Everything is computed from their records, on first use; `render` shows it.

With common cells: each of them is tested for a change of its speedup relative to that of the median cell, and of its
acceptance length. With n tests at 5 % some n / 20 would be positive without any change, so the tests of one kind are
judged as one family by Holm's procedure: the chance of even one false alarm among them is at most `LEVEL`.

Without common cells nothing is a change: a speedup on one pair of models does not predict that on another. Then the
methods that both ran are listed with their speedup on each pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd

from specrig.analysis.cells import IDENTITY, Identity, identity, row_dicts, row_identity
from specrig.analysis.changes import CellChange, Change, Changes, MeanChange, changes
from specrig.analysis.disturbance import disturbed
from specrig.audit.multiple_testing import holm_failures
from specrig.measurement.records import Record, Run
from specrig.results.labels import BASELINES, method_order
from specrig.results.machine import commit, machine
from specrig.results.study_data import StudyData
from specrig.results.summary import MEAN, acceptance_summary, speedup_summary
from specrig.sharing.compare.setup_differences import (
    BOTH,
    NEITHER,
    ROUNDING,
    SPEED,
    SetupDifference,
    differences,
    whole_differences,
)
from specrig.sharing.compare.sources import ComparisonError

LEVEL = 0.05
"""Chance that a family of tests finds any change where nothing changed."""
NOISE = "run-to-run variation (nothing that was recorded differs)"
SUMMARY = ["engine", "pair", "temperature", "batch_size", "method", "variant", "k"]
"""The columns that identify a row of a summary over tasks."""


@dataclass(frozen=True, slots=True)
class ComparedStudy:
    """One of the two studies. name: "A" or "B". path: as the user wrote it."""

    name: str
    path: str
    study: StudyData

    @property
    def environment(self) -> dict[str, Any]:
        """environment.json of the first job that has one."""
        return next((job.environment for job in self.study.jobs if job.environment), {})

    @property
    def description(self) -> str:
        """Study, machine, day, code and size in one line."""
        days = sorted(
            {str(job.environment["captured"])[:10] for job in self.study.jobs if job.environment.get("captured")}
        )
        code = commit(self.environment)
        parts = [
            f"study {self.study.name}",
            machine(self.environment),
            f"measured {days[0]}" if days else "",
            f"code {code}" if code else "",
            f"{len(self.study.cells)} cells",
            f"{self.study.replicates} runs" if self.study.replicates > 1 else "one run",
        ]
        return ", ".join(filter(None, parts))

    def values(self, name: str) -> list[Any]:
        """The different values that the cells have of one part of a cell's identity, in order of first appearance."""
        return list(dict.fromkeys(getattr(records[0].cell, name) for records in self.study.cells.values()))


@dataclass(frozen=True, slots=True)
class CellComparison:
    """One cell of both studies. a, b: its rows of the tables of cells. disturbed: in A, in B.

    speedup_changed, acceptance_changed: beyond chance. explanation: what can explain the change; empty without one.
    """

    change: CellChange
    a: dict[str, Any]
    b: dict[str, Any]
    speedup_changed: bool
    acceptance_changed: bool
    disturbed: tuple[bool, bool]
    explanation: str

    @property
    def changed(self) -> bool:
        """Whether anything changed beyond chance."""
        return self.speedup_changed or self.acceptance_changed


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    """A pair of models in one of the studies. tokens_per_s: of plain decoding, over the common tasks."""

    study: str
    engine: str
    pair: str
    tokens_per_s: float = field(compare=False)

    @property
    def title(self) -> str:
        """Study, pair and, where it is not the native one, engine."""
        return f"{self.study} {self.pair}" + (f" ({self.engine})" if self.engine != "native" else "")


@dataclass(frozen=True, slots=True)
class MethodSpeedups:
    """One method at one setting. on: pair -> its row of `speedup_summary` with τ, at its fastest variant and best k."""

    temperature: float
    batch_size: int
    method: str
    on: Mapping[MeasuredPair, dict[str, Any]]

    @property
    def setting(self) -> str:
        """Temperature and batch size in words."""
        return f"temperature {self.temperature:g}, batch size {self.batch_size}"


class StudyComparison:
    """Study A compared with study B."""

    def __init__(self, a: ComparedStudy, b: ComparedStudy) -> None:
        """Raises ComparisonError where neither a cell nor a method at one temperature and batch size ran in both."""
        self.a, self.b = a, b
        if not self.common and not self.methods:
            raise ComparisonError(
                f"{a.path} and {b.path} have no cell in common, nor a method that ran in both at one temperature and "
                f"batch size: {_spread(a)} against {_spread(b)}"
            )

    @cached_property
    def common(self) -> list[str]:
        """The names of the cells that both measured."""
        return [name for name in self.a.study.cells if name in self.b.study.cells]

    @cached_property
    def identical(self) -> list[str]:
        """The common cells with identical records, times included: measured once, and copied."""
        return [name for name in self.common if _runs(self.a.study.cells[name]) == _runs(self.b.study.cells[name])]

    @cached_property
    def unmatched(self) -> tuple[list[str], list[str]]:
        """The names of the cells that A alone, and that B alone, measured."""
        ours, theirs = self.a.study.cells, self.b.study.cells
        return [name for name in ours if name not in theirs], [name for name in theirs if name not in ours]

    @cached_property
    def differences(self) -> list[SetupDifference]:
        """What differs besides results: between common jobs, or between the studies as wholes."""
        compare = differences if self.common else whole_differences
        return compare(self.a.study, self.b.study)

    @cached_property
    def changes(self) -> Changes:
        """What changed in the common cells that draft."""
        return changes(self.a.study.cells, self.b.study.cells)

    @cached_property
    def cells(self) -> list[CellComparison]:
        """Every common cell that drafts, in A's order."""
        speed = _beyond_chance([change.relative for change in self.changes.cells])
        length = _beyond_chance([change.length for change in self.changes.cells])
        tables = [_by_identity(side.study.table) for side in (self.a, self.b)] if self.common else []
        found = []
        for change, faster, longer in zip(self.changes.cells, speed, length, strict=True):
            a, b = (table[identity(change.cell)] for table in tables)
            marks = (bool(a["_disturbed"]), bool(b["_disturbed"]))
            why = self._explanation(change, faster, longer, marks) if faster or longer else ""
            found.append(CellComparison(change, a, b, faster, longer, marks, why))
        return found

    @cached_property
    def means(self) -> list[tuple[MeanChange, bool]]:
        """(the change of a setting's mean over tasks, whether it is beyond chance), for settings that draft."""
        found = self.changes.means
        return list(zip(found, _beyond_chance([change.relative for change in found]), strict=True))

    @cached_property
    def coverage(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """((how many of A's intervals of speedup hold B's estimate, of how many), the same with A and B exchanged)."""
        return (
            _coverage([(cell.a, cell.b) for cell in self.cells]),
            _coverage([(cell.b, cell.a) for cell in self.cells]),
        )

    @cached_property
    def plain_decoding(self) -> float:
        """Speed of plain decoding in B / in A: geometric mean over the common cells, in tokens/s; NaN if not known."""
        ratios = np.array([cell.b["baseline_tokens_per_s"] / cell.a["baseline_tokens_per_s"] for cell in self.cells])
        logs = np.log(ratios[np.isfinite(ratios) & (ratios > 0)])
        return float(np.exp(logs.mean())) if len(logs) else float("nan")

    @cached_property
    def tasks(self) -> list[str]:
        """The tasks that both measured, in A's order."""
        return [task for task in self.a.study.tasks if task in self.b.study.tasks]

    @cached_property
    def disjoint(self) -> list[tuple[str, list[Any], list[Any]]]:
        """(part of a cell's identity, A's values, B's values) wherever the two share not one value."""
        found = ((name, self.a.values(name), self.b.values(name)) for name in IDENTITY)
        return [(name, ours, theirs) for name, ours, theirs in found if not set(ours) & set(theirs)]

    @cached_property
    def methods(self) -> list[MethodSpeedups]:
        """Without common cells: the methods that both ran at one temperature and batch size, in the order of tables."""
        if self.common:
            return []
        found: dict[tuple[Any, ...], dict[MeasuredPair, dict[str, Any]]] = {}
        for pair, row in [*self._summary(self.a), *self._summary(self.b)]:
            on = found.setdefault((row["temperature"], row["batch_size"], row["method"]), {})
            # The table has a method once: of several variants (trees of two shapes, say) the fastest.
            if pair not in on or on[pair][MEAN] < row[MEAN]:
                on[pair] = row
        both = {key: on for key, on in found.items() if {pair.study for pair in on} == {"A", "B"}}
        order = method_order(key[-1] for key in both)
        keys = sorted(both, key=lambda key: (*key[:-1], order.index(key[-1])))
        return [
            MethodSpeedups(temperature, size, method, both[temperature, size, method])
            for temperature, size, method in keys
        ]

    @cached_property
    def pairs(self) -> list[MeasuredPair]:
        """Every pair of A, then every pair of B, on which a method of `methods` ran."""
        found = dict.fromkeys(pair for row in self.methods for pair in row.on)
        return sorted(found, key=lambda pair: pair.study)

    @property
    def first_setting(self) -> list[MethodSpeedups]:
        """Those of `methods` at the lowest temperature and its smallest batch."""
        return [row for row in self.methods if row.setting == self.methods[0].setting]

    @cached_property
    def order_agreement(self) -> tuple[MeasuredPair, MeasuredPair, int, int] | None:
        """(pair of A, pair of B, couples of methods in the same order by speedup, all couples), for the two pairs with
        the most methods: lossless drafting methods at the first setting. None where two pairs share fewer than two.
        """
        best: tuple[MeasuredPair, MeasuredPair, int, int] | None = None
        ours, theirs = ([pair for pair in self.pairs if pair.study == name] for name in "AB")
        for one, other in product(ours, theirs):
            speeds = [
                (row.on[one][MEAN], row.on[other][MEAN])
                for row in self.first_setting
                if row.method not in BASELINES
                and all(pair in row.on and reliable(row.on[pair]) for pair in (one, other))
            ]
            couples = list(combinations(speeds, 2))
            same = sum((left[0] - right[0]) * (left[1] - right[1]) > 0 for left, right in couples)
            if couples and (best is None or len(couples) > best[3]):
                best = (one, other, same, len(couples))
        return best

    def _explanation(self, change: CellChange, faster: bool, longer: bool, disturbed: tuple[bool, bool]) -> str:
        """What can explain that a cell changed: the differences that touch what changed, the nearest ones first."""
        own = [
            each
            for each in self.differences
            if change.cell.method_key in each.methods and each.effect != NEITHER and each.concerns(change.cell.task)
        ]
        same = change.agreement.pairs > 0 and change.agreement.rounds == change.agreement.pairs
        effects = (SPEED, ROUNDING, BOTH) if same or not longer else (BOTH, ROUNDING)
        # The same rounds in both: neither models nor prompts can have done it, whatever their digests are.
        names = [
            each.what
            for effect in effects
            for each in own
            if each.effect == effect and not (same and each.effect == BOTH and each.what != "code")
        ]
        if faster:
            names = [*(f"disturbed in {side}" for side, sign in zip("AB", disturbed, strict=True) if sign), *names]
        return ", ".join(names) or NOISE

    def _summary(self, side: ComparedStudy) -> list[tuple[MeasuredPair, dict[str, Any]]]:
        """(pair, row of the summary) of each method and variant, over the common tasks, or over all if none are."""
        study, tasks = side.study, self.tasks or side.study.tasks
        cells = study.table[study.table["task"].isin(tasks)]
        if cells.empty:
            return []
        audit = study.audit()
        lengths = acceptance_summary(cells, study.records, tasks, audit)
        names = [name for name in map(str, lengths.columns) if name.startswith("mean_")]
        summary = speedup_summary(cells, study.records, tasks, audit).merge(
            lengths[[*SUMMARY, *names]], on=SUMMARY, how="left"
        )
        plain = cells[cells["batch_size"] == 1].groupby(["engine", "pair"])["baseline_tokens_per_s"]
        rates = {key: float(np.exp(np.log(rates.dropna().astype(float)).mean())) for key, rates in plain}
        rows = row_dicts(summary.dropna(subset=[MEAN]))
        keys = [(row["engine"], row["pair"]) for row in rows]
        return [
            (MeasuredPair(side.name, *key, rates.get(key, float("nan"))), row)
            for key, row in zip(keys, rows, strict=True)
        ]


def reliable(row: Mapping[str, Any]) -> bool:
    """Whether a speedup may be called the fastest: lossless, not failed by the audit, not disturbed."""
    return bool(row["lossless"]) and not row["failed"] and not row["disturbed"]


def _beyond_chance(changes: Sequence[Change]) -> list[bool]:
    """Which of a family of changes are beyond chance by Holm's procedure at `LEVEL`; untestable changes are not."""
    values = np.array([change.p_value for change in changes], dtype=float)
    known = np.isfinite(values)
    found = np.zeros(len(values), dtype=bool)
    found[known] = holm_failures(values[known].tolist(), LEVEL)
    return [bool(each) for each in found]


def _coverage(couples: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> tuple[int, int]:
    triples = [(one["speedup_low"], other["speedup"], one["speedup_high"]) for one, other in couples]
    known = [triple for triple in triples if np.isfinite(triple).all()]
    return sum(low <= estimate <= high for low, estimate, high in known), len(known)


def _by_identity(table: pd.DataFrame) -> dict[Identity, dict[str, Any]]:
    frame = table.assign(_disturbed=disturbed(table), variant=table["variant"].fillna(""))
    return {row_identity(row): row for row in row_dicts(frame)}


def _runs(records: Sequence[Record]) -> dict[tuple[str, int, int], tuple[Run, Run]]:
    return {(each.prompt_id, each.replicate, each.repeat): (each.run, each.baseline) for each in records}


def _spread(side: ComparedStudy) -> str:
    labels = {"pair": "pairs", "method": "methods", "temperature": "temperatures", "batch_size": "batch sizes"}
    return "; ".join(f"{label} {listed(side.values(name))}" for name, label in labels.items())


def listed(values: Sequence[Any]) -> str:
    """Values behind commas, numbers without needless zeros."""
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
