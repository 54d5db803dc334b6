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
from specrig.results.labels import (
    BATCHED_NOTE,
    DISTURBED_NOTE,
    FAILED_NOTE,
    LOSSY_NOTE,
    method_name,
    method_order,
    task_name,
)
from specrig.results.summary import MEAN
from specrig.sharing.compare.sentences import headline
from specrig.sharing.compare.setup_differences import SetupDifference
from specrig.sharing.compare.study_comparison import CellComparison, StudyComparison

LEVELS = ("engine", "pair", "temperature", "batch_size")
"""The levels that a table shows where they have more than one value."""
LENGTH = "mean_acceptance_length"
VALUES = (
    *("speedup", "speedup_low", "speedup_high", "acceptance_length"),
    *("tokens_per_s", "baseline_tokens_per_s", "disturbed"),
)
"""The columns of the table of cells that the values of a cell hold for A and B."""


def setup_table(comparison: StudyComparison) -> Grid:
    """What differs between the two besides results."""
    methods = {key for each in comparison.differences for key in each.methods}
    rows = [
        [*map(GridEntry, (each.what, each.a, each.b, each.effect)), GridEntry(_methods_of(each, methods))]
        for each in comparison.differences
    ]
    if comparison.common:
        caption = (
            "What differs besides the results, of what was recorded. Acceptance follows from models, prompts, sampling "
            "and code alone."
        )
        return Grid(["what differs", "A", "B", "it can change", "methods"], rows, labels=5, caption=caption)
    caption = "What differs between the studies besides the pairs, of what was recorded."
    return Grid(["what differs", "A", "B", "it can change"], [row[:-1] for row in rows], labels=4, caption=caption)


def methods_table(comparison: StudyComparison) -> Grid:
    """Methods over tasks: their changes, or without common cells their speedup on each pair."""
    return _means(comparison) if comparison.common else _on_pairs(comparison)


def cells_table(comparison: StudyComparison, cells: Sequence[CellComparison]) -> Grid:
    """Every one of `cells`, which belong to the comparison."""
    levels = _levels([cell.change.cell for cell in comparison.cells])
    rows = []
    for each in sorted(cells, key=lambda each: _position(comparison, each.change.cell)):
        change = each.change
        prompts = f"{change.units[0]}, one by one" if change.paired else f"{change.units[0]} and {change.units[1]}"
        rows.append(
            [
                *_labels(change.cell, levels, lossless=bool(each.a["lossless"]), disturbed=any(each.disturbed)),
                GridEntry(task_name(change.cell.task)),
                *(_estimate(side, "speedup") for side in (each.a, each.b)),
                _ratio(change.speedup),
                _ratio(change.relative, each.speedup_changed),
                *(GridEntry(grid.number(side["acceptance_length"])) for side in (each.a, each.b)),
                _ratio(change.length, each.acceptance_changed),
                GridEntry(prompts),
                GridEntry(each.explanation or "–"),
            ]
        )
    values = ["A", "B", "B / A", "relative change", "τ A", "τ B", "τ B / A"]
    return Grid(
        [*_header(levels), "method", "k", "task", *values, "prompts", "possible cause"],
        rows,
        labels=len(levels) + 3,
        trailing=2,
        groups=len(levels),
        caption="Speedup and acceptance length τ of each cell that both measured. In bold: changed beyond chance.",
        notes=_notes(cells),
    )


def as_values(comparison: StudyComparison) -> dict[str, Any]:
    """The comparison as values; what is not known is NaN or None."""
    (ours, of_ours), (theirs, of_theirs) = comparison.coverage
    return {
        **{
            side.name.lower(): {"path": side.path, "description": side.description, "environment": side.environment}
            for side in (comparison.a, comparison.b)
        },
        "headline": headline(comparison),
        "tasks": comparison.tasks,
        "intervals": {"of_a_with_b": ours, "of_a": of_ours, "of_b_with_a": theirs, "of_b": of_theirs},
        "plain_decoding": comparison.plain_decoding,
        "shift": _change_values(comparison.changes.shift),
        "differences": [
            {
                **{name: getattr(each, name) for name in ("what", "a", "b", "effect")},
                "methods": sorted("/".join(key) for key in each.methods),
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
        "cells": [_cell_values(cell) for cell in comparison.cells],
        "identical_records": comparison.identical,
        "only_a": comparison.unmatched[0],
        "only_b": comparison.unmatched[1],
        "methods": _method_values(comparison),
    }


def _means(comparison: StudyComparison) -> Grid:
    """Each setting's speedup over the tasks that both measured."""
    table = {cell.change.cell.name: cell for cell in comparison.cells}
    levels = _levels([change.cell for change, _ in comparison.means])
    rows = []
    for change, beyond in sorted(comparison.means, key=lambda each: _position(comparison, each[0].cell)):
        cells = [table[change.cell.model_copy(update={"task": task}).name] for task in change.tasks]
        speedups = np.array([[cell.a["speedup"], cell.b["speedup"]] for cell in cells], dtype=float)
        disturbed = any(any(cell.disturbed) for cell in cells)
        rows.append(
            [
                *_labels(change.cell, levels, lossless=bool(cells[0].a["lossless"]), disturbed=disturbed),
                GridEntry(str(len(change.tasks))),
                *(GridEntry(grid.number(float(mean))) for mean in np.exp(np.log(speedups).mean(axis=0))),
                _ratio(change.speedup),
                _ratio(change.relative, beyond),
            ]
        )
    return Grid(
        [*_header(levels), "method", "k", "tasks", "A", "B", "B / A", "relative change"],
        rows,
        labels=len(levels) + 2,
        groups=len(levels),
        caption="Speedup over plain decoding, geometric mean over the tasks that both measured, with 95 % intervals. "
        f"In bold: a relative change beyond chance, among these {len(rows)} judged together.",
        notes=_notes(comparison.cells),
    )


def _on_pairs(comparison: StudyComparison) -> Grid:
    """Speedup and τ of each method that both ran, a row for each pair on which it ran."""
    found = [(row, pair, row.on[pair]) for row in comparison.methods for pair in comparison.pairs if pair in row.on]
    most = max(values["tasks"] for _, _, values in found)
    rows = [
        [
            GridEntry(f"{row.temperature:g}"),
            GridEntry(str(row.batch_size)),
            GridEntry(
                method_name(
                    row.method,
                    variant=values["variant"],
                    lossless=values["lossless"],
                    disturbed=bool(values["disturbed"]),
                )
            ),
            GridEntry(pair.title, "" if values["tasks"] == most else f"{values['tasks']} tasks"),
            GridEntry(str(values["k"] or "–")),
            *(_estimate(values, column, struck=column == MEAN and bool(values["failed"])) for column in (MEAN, LENGTH)),
        ]
        for row, pair, values in found
    ]
    notes = {
        LOSSY_NOTE: not all(values["lossless"] for _, _, values in found),
        DISTURBED_NOTE: any(values["disturbed"] for _, _, values in found),
        FAILED_NOTE: any(values["failed"] for _, _, values in found),
        BATCHED_NOTE: any(row.method == "naive_batching" for row in comparison.methods),
    }
    over = "tasks that both measured" if comparison.tasks else "tasks of each study, which have none in common"
    return Grid(
        ["temperature", "batch size", "method", "pair", "k", "speedup", "τ"],
        rows,
        labels=4,
        groups=2,
        caption=f"Speedup over plain decoding (geometric mean) and acceptance length τ (mean) over the {most} {over}, "
        "with 95 % intervals, at the best k; of a method with several variants, the fastest.",
        notes=[note for note, needed in notes.items() if needed],
    )


def _method_values(comparison: StudyComparison) -> list[dict[str, Any]]:
    columns = {"speedup": MEAN, "acceptance_length": LENGTH}
    return [
        {
            **{name: getattr(row, name) for name in ("method", "temperature", "batch_size")},
            **{"study": pair.study.lower(), "engine": pair.engine, "pair": pair.pair},
            **{name: values[name] for name in ("variant", "k", "lossless", "failed", "tasks")},
            "disturbed": values["disturbed"].split(),
            **{f"{name}{end}": values[f"{old}{end}"] for name, old in columns.items() for end in ("", "_low", "_high")},
        }
        for row in comparison.methods
        for pair, values in row.on.items()
    ]


def _cell_values(cell: CellComparison) -> dict[str, Any]:
    change, agreement = cell.change, cell.change.agreement
    return {
        **_identity(change.cell),
        "a": {name: cell.a[name] for name in VALUES},
        "b": {name: cell.b[name] for name in VALUES},
        "speedup": _change_values(change.speedup),
        "relative": _change_values(change.relative, cell.speedup_changed),
        "acceptance_length": _change_values(change.length, cell.acceptance_changed),
        "prompts": {"a": change.units[0], "b": change.units[1], "one_by_one": change.paired},
        "same_generations": {"of": agreement.pairs, "plain": agreement.plain, "rounds": agreement.rounds},
        "explanation": cell.explanation,
    }


def _change_values(change: Change, beyond: bool | None = None) -> dict[str, Any]:
    """beyond: whether it is beyond chance; None where that is not tested."""
    low, high = change.interval
    found = {"ratio": change.ratio, "low": low, "high": high}
    return found if beyond is None else {**found, "p_value": change.p_value, "beyond_chance": beyond}


def _ratio(change: Change, beyond: bool = False) -> GridEntry:
    return GridEntry(grid.number(change.ratio), grid.interval(*change.interval), bold=beyond)


def _estimate(row: Any, column: str, *, struck: bool = False) -> GridEntry:
    interval = grid.interval(row[f"{column}_low"], row[f"{column}_high"])
    return GridEntry(grid.number(row[column]), interval, struck=struck)


def _identity(cell: Cell) -> dict[str, Any]:
    return {name: getattr(cell, name) for name in IDENTITY}


def _levels(cells: Sequence[Cell]) -> list[str]:
    return [name for name in LEVELS if len({getattr(cell, name) for cell in cells}) > 1]


def _header(levels: Sequence[str]) -> list[str]:
    return [name.replace("_", " ") for name in levels]


def _labels(cell: Cell, levels: Sequence[str], *, lossless: bool, disturbed: bool) -> list[GridEntry]:
    shared = [f"{value:g}" if isinstance(value := getattr(cell, name), float) else str(value) for name in levels]
    name = method_name(cell.method, variant=cell.variant, lossless=lossless, disturbed=disturbed)
    return [*map(GridEntry, shared), GridEntry(name), GridEntry(str(cell.k))]


def _notes(cells: Sequence[CellComparison]) -> list[str]:
    lossy = [] if all(cell.a["lossless"] for cell in cells) else [LOSSY_NOTE]
    return [*lossy, *([DISTURBED_NOTE] if any(any(cell.disturbed) for cell in cells) else [])]


def _position(comparison: StudyComparison, cell: Cell) -> tuple[Any, ...]:
    """The position of a cell in a table."""
    order = method_order(each.change.cell.method for each in comparison.cells)
    tasks = comparison.a.study.tasks
    levels = tuple(getattr(cell, name) for name in LEVELS)
    return (*levels, order.index(cell.method), cell.variant, cell.k, tasks.index(cell.task) if cell.task else 0)


def _methods_of(difference: SetupDifference, methods: set[tuple[str, str, str]]) -> str:
    """The methods that a difference concerns, in as few words as they have."""
    if difference.methods == methods:
        return "all"
    pairs = dict.fromkeys(key[1] for key in sorted(difference.methods))
    of_pairs = {key for key in methods if key[1] in pairs}
    if difference.methods == of_pairs:
        return f"all of {', '.join(pairs)}"
    others = of_pairs - difference.methods
    if len(others) < len(difference.methods):
        return f"all of {', '.join(pairs)} but {', '.join(method_order(key[2] for key in others))}"
    return ", ".join(method_order(key[2] for key in difference.methods))
