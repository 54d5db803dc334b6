"""Two studies side by side: what changed beyond chance, and what could explain it. The views show one `Comparison`.

Each cell that both measured is tested for a change of its speedup beyond that of the median cell, and of its acceptance
length. With n tests at 5 % some n / 20 would be positive without any change, so the tests of one kind are judged as one
family by Holm's procedure: the chance of even one false alarm among them is at most `LEVEL`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from specrig.analysis.cells import Identity, identity, row_dicts, row_identity
from specrig.analysis.changes import CellChange, Change, Changes, MeanChange, changes
from specrig.analysis.disturbance import disturbed
from specrig.audit.family import failures
from specrig.measurement.records import Record, Run
from specrig.results.machine import commit, machine
from specrig.results.study_data import StudyData
from specrig.sharing.compare.setup_differences import BOTH, NEITHER, ROUNDING, SPEED, Difference, differences
from specrig.sharing.compare.sources import ComparisonError

LEVEL = 0.05
"""Chance that a family of tests finds any change where nothing changed."""
NOISE = "run-to-run variation (nothing that was recorded differs)"


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two studies. where: as the user named it."""

    where: str
    study: StudyData

    @property
    def environment(self) -> dict[str, Any]:
        """environment.json of the first job that has one."""
        return next((job.environment for job in self.study.jobs if job.environment), {})

    @property
    def description(self) -> str:
        """What and when, in a line."""
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


@dataclass(frozen=True, slots=True)
class Row:
    """One cell of both studies. a, b: its rows of the tables of cells. speed, acceptance: whether it changed beyond
    chance.

    explanation: what could explain the change; empty where nothing changed.
    """

    change: CellChange
    a: dict[str, Any]
    b: dict[str, Any]
    speed: bool
    acceptance: bool
    marked: tuple[bool, bool]
    explanation: str

    @property
    def changed(self) -> bool:
        """Whether anything changed beyond chance."""
        return self.speed or self.acceptance


class Comparison:
    """A compared with B: everything is computed from their records, on first use."""

    def __init__(self, a: Side, b: Side) -> None:
        """Raises ComparisonError where no cell was measured by both."""
        self.a, self.b = a, b
        if not self.common:
            raise ComparisonError(
                f"{a.where} and {b.where} have no cell in common: {_spread(a.study)} against {_spread(b.study)}; "
                "a cell is engine, pair, method, k, task, temperature, batch size and options"
            )

    @cached_property
    def common(self) -> list[str]:
        """The names of the cells that both measured."""
        return [name for name in self.a.study.cells if name in self.b.study.cells]

    @cached_property
    def same(self) -> list[str]:
        """The names of the common cells whose records are the very same, times included: they were measured once, and
        copied.
        """
        return [name for name in self.common if _runs(self.a.study.cells[name]) == _runs(self.b.study.cells[name])]

    @cached_property
    def only(self) -> tuple[list[str], list[str]]:
        """The names of the cells that A alone, and that B alone, measured."""
        ours, theirs = self.a.study.cells, self.b.study.cells
        return [name for name in ours if name not in theirs], [name for name in theirs if name not in ours]

    @cached_property
    def differences(self) -> list[Difference]:
        """What differs besides results."""
        return differences(self.a.study, self.b.study)

    @cached_property
    def changes(self) -> Changes:
        """What changed in the common cells that draft."""
        return changes(self.a.study.cells, self.b.study.cells)

    @cached_property
    def rows(self) -> list[Row]:
        """Every common cell that drafts, in A's order."""
        speed = _beyond_chance([change.own for change in self.changes.cells])
        length = _beyond_chance([change.length for change in self.changes.cells])
        tables = [_by_identity(side.study.table) for side in (self.a, self.b)]
        rows = []
        for change, faster, longer in zip(self.changes.cells, speed, length, strict=True):
            a, b = (table[identity(change.cell)] for table in tables)
            marked = (bool(a["_disturbed"]), bool(b["_disturbed"]))
            why = self._explained(change, faster, longer, marked) if faster or longer else ""
            rows.append(Row(change, a, b, faster, longer, marked, why))
        return rows

    @cached_property
    def means(self) -> list[tuple[MeanChange, bool]]:
        """(the change of a setting's mean over tasks, whether it is beyond chance), for settings that draft."""
        found = self.changes.means
        return list(zip(found, _beyond_chance([change.own for change in found]), strict=True))

    @cached_property
    def contained(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """((how many of A's intervals of speedup hold B's estimate, of how many), the same of B's intervals and A's
        estimates).
        """
        return _contained([(row.a, row.b) for row in self.rows]), _contained([(row.b, row.a) for row in self.rows])

    @cached_property
    def plain(self) -> float:
        """How fast plain decoding was in B / in A: geometric mean over the common cells, in tokens/s; NaN if not known."""
        logs = [np.log(row.b["baseline_tokens_per_s"] / row.a["baseline_tokens_per_s"]) for row in self.rows]
        known = [log for log in logs if np.isfinite(log)]
        return float(np.exp(np.mean(known))) if known else float("nan")

    def _explained(self, change: CellChange, faster: bool, longer: bool, marked: tuple[bool, bool]) -> str:
        """What could explain that a cell changed: the differences that touch what changed, the nearest ones first."""
        own = [each for each in self.differences if change.cell.method_key in each.jobs and each.effect != NEITHER]
        own = [
            each
            for each in own
            if not each.what.startswith("prompts of ") or each.what == f"prompts of {change.cell.task}"
        ]
        same = change.agreement.pairs > 0 and change.agreement.rounds == change.agreement.pairs
        effects = (SPEED, ROUNDING, BOTH) if same or not longer else (BOTH, ROUNDING)
        # The same rounds in both: neither models nor prompts can have done it, whatever their digests say.
        names = [
            each.what for effect in effects for each in own if each.effect == effect and not (same and _of_texts(each))
        ]
        if faster:
            names = [*(f"disturbed in {side}" for side, sign in zip("AB", marked, strict=True) if sign), *names]
        return ", ".join(names) or NOISE


def _of_texts(difference: Difference) -> bool:
    return difference.effect == BOTH and difference.what != "code"


def _beyond_chance(changes: Sequence[Change]) -> list[bool]:
    """Which of a family of changes are beyond chance by Holm's procedure at `LEVEL`; changes that cannot be tested are
    not.
    """
    values = np.array([change.p_value for change in changes], dtype=float)
    known = np.isfinite(values)
    found = np.zeros(len(values), dtype=bool)
    found[known] = failures(values[known].tolist(), LEVEL)
    return [bool(each) for each in found]


def _contained(sides: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> tuple[int, int]:
    known = [
        (one, other)
        for one, other in sides
        if np.isfinite([one["speedup_low"], one["speedup_high"], other["speedup"]]).all()
    ]
    return sum(one["speedup_low"] <= other["speedup"] <= one["speedup_high"] for one, other in known), len(known)


def _by_identity(table: pd.DataFrame) -> dict[Identity, dict[str, Any]]:
    frame = table.assign(_disturbed=disturbed(table), variant=table["variant"].fillna(""))
    return {row_identity(row): row for row in row_dicts(frame)}


def _runs(records: Sequence[Record]) -> dict[tuple[str, int, int], tuple[Run, Run]]:
    return {(each.prompt_id, each.replicate, each.repeat): (each.run, each.baseline) for each in records}


def _spread(study: StudyData) -> str:
    read: list[tuple[str, Callable[[Any], str]]] = [
        ("pair", lambda cell: cell.pair),
        ("method", lambda cell: cell.method),
    ]
    cells = [records[0].cell for records in study.cells.values()]
    return " and ".join(f"the {name}s {', '.join(sorted({get(cell) for cell in cells}))}" for name, get in read)
