"""What is said and shown of two studies without a common cell. No number is written in this file: all follow from the
records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
from specrig.sharing.compare.apart import Apart, Held, Place, fair, values
from specrig.sharing.compare.setup_differences import unrecorded

WORDS = {
    "engine": "engines",
    "pair": "pairs",
    "method": "methods",
    "task": "tasks",
    "temperature": "temperatures",
    "batch_size": "batch sizes",
}
"""What a cell is named by, of what is worth a word -> its plural."""
NOTES = (
    "Speedup: over plain decoding of the same pair on the same machine. τ: tokens that a pass of the target emits.",
    "Another pair is another question: a larger target gains more from a passed draft, a better draft is accepted more often. So no row is "
    "a change, and none is tested.",
)


def headline(apart: Apart) -> list[str]:
    """What to know first: that nothing can be compared cell by cell and why, what the two share, and what may be read
    across them.
    """
    return [
        sentence
        for sentence in (_nothing(apart), _common(apart), _fastest(apart), _order(apart), _plain(apart), _left(apart))
        if sentence
    ]


def _nothing(apart: Apart) -> str:
    why = [
        f"{WORDS[name]} ({_named(ours)} in A, {_named(theirs)} in B)"
        for name, ours, theirs in apart.apart
        if name in WORDS
    ]
    reason = (
        f"they measured other {' and other '.join(why)}"
        if why
        else "no combination of engine, pair, method, k and task ran in both"
    )
    return (
        f"A and B have no cell in common, so nothing here is a change from A to B: {reason}. A cell is one engine, pair, method, k, task, temperature, "
        "batch size and set of options."
    )


def _common(apart: Apart) -> str:
    shared = []
    for name, words in WORDS.items():
        ours, theirs = (values(side.study, name) for side in (apart.a, apart.b))
        both = [value for value in ours if value in theirs]
        if name == "method":
            both = method_order(row.method for row in apart.rows)
        if both:
            shared.append(f"{words} {_named([task_name(value) if name == 'task' else value for value in both])}")
    prompts = []
    for task in apart.tasks:
        ids = [
            {record.prompt_id for record in side.study.records if record.cell.task == task}
            for side in (apart.a, apart.b)
        ]
        prompts.append(f"{task_name(task)} {len(ids[0] & ids[1])} of {len(ids[0])} and {len(ids[1])}")
    ids_said = f" Prompts with the same id: {', '.join(prompts)}." if prompts else ""
    return f"In common: {'; '.join(shared)}.{ids_said}"


def _fastest(apart: Apart) -> str:
    first = [row for row in apart.rows if _setting(row) == _setting(apart.rows[0])]
    said = []
    for place in apart.places:
        known = [row for row in first if place in row.values and fair(row.values[place])]
        if len(known) > 1:
            best = max(known, key=lambda row: row.values[place][MEAN])
            own = best.values[place]
            said.append(
                f"{_title(place)}: {_method(best, place)} {grid.number(own[MEAN])}× {grid.interval(own[f'{MEAN}_low'], own[f'{MEAN}_high'])}"
            )
    return (
        f"The fastest lossless method of those that both ran, at {_setting(apart.rows[0])}: {'; '.join(said)}."
        if said
        else ""
    )


def _order(apart: Apart) -> str:
    if apart.agreement is None:
        return ""
    one, other, same, pairs = apart.agreement
    return (
        f"By speedup, {same} of {pairs} pairs of methods stand in the same order in {_title(one)} as in {_title(other)} (lossless, undisturbed methods; "
        "half would by chance)."
    )


def _plain(apart: Apart) -> str:
    known = [
        f"{_title(place)} {grid.number(place.tokens_per_s, 1)}"
        for place in apart.places
        if place.tokens_per_s == place.tokens_per_s
    ]
    return f"Plain decoding ran at (tokens/s, geometric mean over tasks): {', '.join(known)}." if known else ""


def _left(apart: Apart) -> str:
    held = {row.method for row in apart.rows}
    said = []
    for letter, side in (("A", apart.a), ("B", apart.b)):
        alone = method_order(name for name in values(side.study, "method") if name not in held)
        if alone:
            said.append(f"{_named(alone)} in {letter}")
    missing = " ".join(
        f"{letter} did not record {_named(names)}: whether it differs is not known."
        for letter, names in zip("AB", unrecorded(apart.a.study, apart.b.study), strict=True)
        if names
    )
    alone_said = (
        f"Not side by side, since only one ran it at the same temperature and batch size: {'; '.join(said)}."
        if said
        else ""
    )
    return " ".join(filter(None, [alone_said, missing]))


def differences_grid(apart: Apart) -> Grid:
    """What differs between the studies as wholes."""
    return Grid(
        ["what differs", "A", "B", "it can change"],
        [
            [GridEntry(each.what), GridEntry(each.a), GridEntry(each.b), GridEntry(each.effect)]
            for each in apart.differences
        ],
        labels=4,
        caption="What differs between the studies besides the pairs, of what was recorded.",
    )


def methods_grid(apart: Apart) -> Grid:
    """Speedup and τ of each method that both ran, a row for each pair on which it ran."""
    most = max(own["tasks"] for row in apart.rows for own in row.values.values())
    rows = []
    for row in apart.rows:
        for place in apart.places:
            if (own := row.values.get(place)) is None:
                continue
            rows.append(
                [
                    GridEntry(f"{row.temperature:g}"),
                    GridEntry(str(row.batch_size)),
                    GridEntry(
                        method_name(
                            row.method,
                            variant=own["variant"],
                            lossless=own["lossless"],
                            disturbed=bool(own["disturbed"]),
                        )
                    ),
                    GridEntry(_title(place), "" if own["tasks"] == most else f"{own['tasks']} tasks"),
                    GridEntry(str(own["k"] or "–")),
                    *(_entry(own, column) for column in (MEAN, "mean_acceptance_length")),
                ]
            )
    every = [own for row in apart.rows for own in row.values.values()]
    notes = {
        LOSSY_NOTE: not all(own["lossless"] for own in every),
        DISTURBED_NOTE: any(own["disturbed"] for own in every),
        FAILED_NOTE: any(own["failed"] for own in every),
        BATCHED_NOTE: any(row.method == "naive_batching" for row in apart.rows),
    }
    over = "tasks that both measured" if apart.tasks else "tasks of each study, which have none in common"
    return Grid(
        ["temperature", "batch size", "method", "pair", "k", "speedup", "τ"],
        rows,
        labels=4,
        groups=2,
        caption=f"Speedup over plain decoding (geometric mean) and acceptance length τ (mean) over the {most} {over}, with 95 % intervals, at the best k; of a "
        "method with several variants, the fastest.",
        notes=[note for note, shown in notes.items() if shown],
    )


def as_values(apart: Apart) -> dict[str, Any]:
    """What is shown as values; what is not known is NaN or None."""
    names = {"speedup": MEAN, "acceptance_length": "mean_acceptance_length"}
    return {
        **{
            name: {"where": side.where, "description": side.description, "environment": side.environment}
            for name, side in (("a", apart.a), ("b", apart.b))
        },
        "headline": headline(apart),
        "tasks": apart.tasks,
        "differences": [
            {"what": each.what, "a": each.a, "b": each.b, "effect": each.effect} for each in apart.differences
        ],
        "cells": [],
        "side_by_side": [
            {
                "method": row.method,
                "temperature": row.temperature,
                "batch_size": row.batch_size,
                "study": place.side.lower(),
                "engine": place.engine,
                "pair": place.pair,
                **{name: own[name] for name in ("variant", "k", "lossless", "failed", "tasks")},
                "disturbed": own["disturbed"].split(),
                **{
                    f"{name}{end}": own[f"{column}{end}"]
                    for name, column in names.items()
                    for end in ("", "_low", "_high")
                },
            }
            for row in apart.rows
            for place, own in row.values.items()
        ],
    }


def _entry(own: Mapping[str, Any], column: str) -> GridEntry:
    return GridEntry(
        grid.number(own[column]),
        grid.interval(own[f"{column}_low"], own[f"{column}_high"]),
        struck=column == MEAN and bool(own["failed"]),
    )


def _title(place: Place) -> str:
    return f"{place.side} {place.pair}" + (f" ({place.engine})" if place.engine != "native" else "")


def _method(row: Held, place: Place) -> str:
    return method_name(row.method, variant=row.values[place]["variant"])


def _setting(row: Held) -> str:
    return f"temperature {row.temperature:g}, batch size {row.batch_size}"


def _named(items: list[Any]) -> str:
    return ", ".join(f"{item:g}" if isinstance(item, float) else str(item) for item in items)
