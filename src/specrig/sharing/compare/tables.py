"""The tables of a comparison, for readers and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from specrig.analysis.cells import IDENTITY
from specrig.analysis.changes import Change
from specrig.cell import Cell
from specrig.results import grid
from specrig.results.grid import Grid, GridEntry
from specrig.results.labels import DISTURBED_NOTE, DISTURBED_SIGN, LOSSY_NOTE, method_name, method_order, task_name
from specrig.sharing.compare.comparison import Comparison, Row
from specrig.sharing.compare.sentences import headline
from specrig.sharing.compare.setup_differences import Difference

LEVELS = ("engine", "pair", "temperature", "batch_size")
"""The levels that a table shows where they have more than one value."""


def differences_grid(comparison: Comparison) -> Grid:
    """What differs between the two besides results."""
    jobs = {key for each in comparison.differences for key in each.jobs}
    rows = [
        [
            GridEntry(each.what),
            GridEntry(each.a),
            GridEntry(each.b),
            GridEntry(each.effect),
            GridEntry(_whose(each, jobs)),
        ]
        for each in comparison.differences
    ]
    return Grid(
        ["what differs", "A", "B", "it can change", "jobs"],
        rows,
        labels=5,
        caption="What differs besides the results, of what was recorded. Acceptance follows from models, prompts, sampling and code alone.",
    )


def means_grid(comparison: Comparison) -> Grid:
    """Each setting's speedup over the tasks that both measured."""
    table = {row.change.cell.name: row for row in comparison.rows}
    shown = _levels([change.cell for change, _ in comparison.means])
    rows = []
    for change, beyond in sorted(comparison.means, key=lambda each: _place(comparison, each[0].cell)):
        cells = [table[change.cell.model_copy(update={"task": task}).name] for task in change.tasks]
        a, b = (
            float(np.exp(np.mean([np.log(side["speedup"]) for side in sides])))
            for sides in zip(*((row.a, row.b) for row in cells), strict=True)
        )
        rows.append(
            [
                *_labels(
                    change.cell,
                    shown,
                    lossless=bool(cells[0].a["lossless"]),
                    marked=any(any(row.marked) for row in cells),
                ),
                GridEntry(str(len(change.tasks))),
                GridEntry(grid.number(a)),
                GridEntry(grid.number(b)),
                _change_entry(change.speedup),
                _change_entry(change.own, beyond),
            ]
        )
    return Grid(
        [*(name.replace("_", " ") for name in shown), "method", "k", "tasks", "A", "B", "B / A", "own change"],
        rows,
        labels=len(shown) + 2,
        groups=len(shown),
        caption="Speedup over plain decoding, geometric mean over the tasks that both measured, with 95 % intervals. In bold: an own change beyond chance, among "
        f"these {len(rows)} judged together.",
        notes=_notes(comparison.rows),
    )


def cells_grid(comparison: Comparison, rows: Sequence[Row]) -> Grid:
    """Every one of `rows`, which are cells of the comparison."""
    shown = _levels([row.change.cell for row in comparison.rows])
    found = []
    for row in sorted(rows, key=lambda each: _place(comparison, each.change.cell)):
        change = row.change
        found.append(
            [
                *_labels(change.cell, shown, lossless=bool(row.a["lossless"]), marked=any(row.marked)),
                GridEntry(task_name(change.cell.task)),
                *(
                    GridEntry(grid.number(side["speedup"]), grid.interval(side["speedup_low"], side["speedup_high"]))
                    for side in (row.a, row.b)
                ),
                _change_entry(change.speedup),
                _change_entry(change.own, row.speed),
                *(GridEntry(grid.number(side["acceptance_length"])) for side in (row.a, row.b)),
                _change_entry(change.length, row.acceptance),
                GridEntry(
                    f"{change.units[0]}, one by one" if change.paired else f"{change.units[0]} and {change.units[1]}"
                ),
                GridEntry(row.explanation or "–"),
            ]
        )
    return Grid(
        [
            *(name.replace("_", " ") for name in shown),
            "method",
            "k",
            "task",
            "A",
            "B",
            "B / A",
            "own change",
            "τ A",
            "τ B",
            "τ B / A",
            "prompts",
            "what could explain it",
        ],
        found,
        labels=len(shown) + 3,
        trailing=2,
        groups=len(shown),
        caption="Speedup and acceptance length τ of each cell that both measured. In bold: changed beyond chance.",
        notes=_notes(rows),
    )


def as_values(comparison: Comparison) -> dict[str, Any]:
    """The comparison as values; what is not known is NaN or None."""
    (ours, of_ours), (theirs, of_theirs) = comparison.contained
    return {
        **{
            name: {"where": side.where, "description": side.description, "environment": side.environment}
            for name, side in _sides(comparison)
        },
        "headline": headline(comparison),
        "intervals": {"of_a_with_b": ours, "of_a": of_ours, "of_b_with_a": theirs, "of_b": of_theirs},
        "plain_decoding": comparison.plain,
        "shift": _change_values(comparison.changes.shift),
        "differences": [
            {
                "what": each.what,
                "a": each.a,
                "b": each.b,
                "effect": each.effect,
                "jobs": sorted("/".join(key) for key in each.jobs),
            }
            for each in comparison.differences
        ],
        "means": [
            {
                **_identity(change.cell),
                "task": None,
                "tasks": list(change.tasks),
                "speedup": _change_values(change.speedup, beyond),
            }
            for change, beyond in comparison.means
        ],
        "cells": [_row_values(row) for row in comparison.rows],
        "same_records": comparison.same,
        "only_a": comparison.only[0],
        "only_b": comparison.only[1],
    }


def _row_values(row: Row) -> dict[str, Any]:
    names = (
        "speedup",
        "speedup_low",
        "speedup_high",
        "acceptance_length",
        "tokens_per_s",
        "baseline_tokens_per_s",
        "disturbed",
    )
    agreement = row.change.agreement
    return {
        **_identity(row.change.cell),
        "a": {name: row.a[name] for name in names},
        "b": {name: row.b[name] for name in names},
        "speedup": _change_values(row.change.speedup),
        "own": _change_values(row.change.own, row.speed),
        "acceptance_length": _change_values(row.change.length, row.acceptance),
        "prompts": {"a": row.change.units[0], "b": row.change.units[1], "one_by_one": row.change.paired},
        "same_generations": {"of": agreement.pairs, "plain": agreement.plain, "rounds": agreement.rounds},
        "explanation": row.explanation,
    }


def _change_values(change: Change, beyond: bool | None = None) -> dict[str, Any]:
    """beyond: whether it is beyond chance; None where that is not tested."""
    low, high = change.interval
    found = {"ratio": change.ratio, "low": low, "high": high}
    return found if beyond is None else {**found, "p_value": change.p_value, "beyond_chance": beyond}


def _change_entry(change: Change, beyond: bool = False) -> GridEntry:
    return GridEntry(grid.number(change.ratio), grid.interval(*change.interval), bold=beyond)


def _sides(comparison: Comparison) -> list[tuple[str, Any]]:
    return [("a", comparison.a), ("b", comparison.b)]


def _identity(cell: Cell) -> dict[str, Any]:
    return {name: getattr(cell, name) for name in IDENTITY}


def _levels(cells: Sequence[Cell]) -> list[str]:
    return [name for name in LEVELS if len({getattr(cell, name) for cell in cells}) > 1]


def _labels(cell: Cell, levels: Sequence[str], *, lossless: bool, marked: bool) -> list[GridEntry]:
    shared = [f"{value:g}" if isinstance(value := getattr(cell, name), float) else str(value) for name in levels]
    name = method_name(cell.method, variant=cell.variant, lossless=lossless) + (f" {DISTURBED_SIGN}" if marked else "")
    return [*map(GridEntry, shared), GridEntry(name), GridEntry(str(cell.k))]


def _notes(rows: Sequence[Row]) -> list[str]:
    lossy = [] if all(row.a["lossless"] for row in rows) else [LOSSY_NOTE]
    return [*lossy, *([DISTURBED_NOTE] if any(any(row.marked) for row in rows) else [])]


def _place(comparison: Comparison, cell: Cell) -> tuple[Any, ...]:
    """The place of a cell in a table."""
    order = method_order(row.change.cell.method for row in comparison.rows)
    tasks = comparison.a.study.tasks
    levels = tuple(getattr(cell, name) for name in LEVELS)
    return (*levels, order.index(cell.method), cell.variant, cell.k, tasks.index(cell.task) if cell.task else 0)


def _whose(difference: Difference, jobs: set[tuple[str, str, str]]) -> str:
    """The jobs that a difference concerns, in as few words as they have."""
    if difference.jobs == jobs:
        return "all"
    pairs = dict.fromkeys(key[1] for key in sorted(difference.jobs))
    if difference.jobs == {key for key in jobs if key[1] in pairs}:
        return f"all of {', '.join(pairs)}"
    others = {key for key in jobs if key[1] in pairs} - difference.jobs
    if len(others) < len(difference.jobs):
        return f"all of {', '.join(pairs)} but {', '.join(method_order(key[2] for key in others))}"
    return ", ".join(method_order(key[2] for key in difference.jobs))
