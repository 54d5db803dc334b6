"""Says what a study will do before it runs: its jobs, what they need, and which cells are refused. No torch here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from specrig.cell import Cell
from specrig.engines import registry as engines
from specrig.models.facts import Shape
from specrig.planning.estimate import (
    PROMPT_TOKENS,
    PairSize,
    extent,
    gated,
    hours,
    needs,
    pair_sizes,
    size_text,
    training,
)
from specrig.planning.measured import prompts_needed
from specrig.planning.pins import unpinned
from specrig.study.study import Study

VARYING = ("k", "task", "temperature", "batch_size", "variant")
"""Fields in which the cells of one job can differ."""
ALWAYS_SHOWN = ("k", "task")


@dataclass(frozen=True, slots=True)
class MethodRow:
    """The cells of a method. key: (engine, pair, method); values: field -> its values; cells: their number."""

    key: tuple[str, str, str]
    values: Mapping[str, Sequence[Any]]
    cells: int


@dataclass(frozen=True, slots=True)
class RefusedGroup:
    """Cells that one engine refuses for one reason: their pairs, their methods and their number."""

    engine: str
    reason: str
    pairs: Sequence[str]
    methods: Sequence[str]
    cells: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A study's plan.

    untested: engine -> what was never tried on hardware. prompts_needed: prompts needed to resolve a difference of 5 %,
    in the median and in the worst cell; None before anything is measured. trains, needs, hours_assume: sentences from
    `estimate`.
    simulated: pair -> declared acceptance. moving: hub ids without a revision. gated: what an owner asks for -> the
    gated models.
    """

    study: Study
    jobs: Sequence[MethodRow]
    untested: Mapping[str, str]
    prompts_needed: tuple[float, float] | None
    trains: str
    sizes: Sequence[PairSize]
    needs: str
    hours_assume: str
    simulated: Mapping[str, float]
    moving: Sequence[str]
    gated: Mapping[str, Sequence[str]]
    refusals: Sequence[RefusedGroup]


def plan_of(study: Study) -> Plan:
    """Make the plan of a resolved study."""
    grid = study.grid
    found = prompts_needed(study.root)
    sizes = pair_sizes(study)
    acceptances = {size.pair: study.rows.pairs[size.pair].simulated_acceptance for size in sizes}
    reasons = {name: engines()[name].untested for name in dict.fromkeys(cell.engine for cell in grid.cells)}
    return Plan(
        study=study,
        jobs=_jobs(study),
        untested={name: reason for name, reason in reasons.items() if reason},
        prompts_needed=(found[len(found) // 2], found[-1]) if found else None,
        trains=training(study),
        sizes=sizes,
        needs=needs(study),
        hours_assume=hours(study, sizes)[1],
        simulated={pair: alpha for pair, alpha in acceptances.items() if alpha is not None},
        moving=list(dict.fromkeys(pin.source for pin in unpinned(study))),
        gated=gated(study),
        refusals=_refusals(study),
    )


def described(plan: Plan) -> dict[str, Any]:
    """The plan as data, sizes in bytes and numbers of weights, None where not known."""
    study = plan.study
    return {
        "study": study.study,
        "replicates": study.replicates,
        "prompts": study.prompts,
        "cells": len(study.grid.cells),
        "jobs": [
            {**dict(zip(("engine", "pair", "method"), job.key, strict=True)), "cells": job.cells, **job.values}
            for job in plan.jobs
        ],
        "trains": [{"pair": pair, "model": model} for pair, model in study.grid.trained],
        "pairs": [
            {
                "pair": size.pair,
                "dtype": size.dtype,
                "target_weights": size.target.parameters if size.target else None,
                "draft_weights": size.draft.parameters if size.draft else None,
                "memory_bytes": size.memory_bytes,
            }
            for size in plan.sizes
        ],
        "hours": hours(study, list(plan.sizes))[0],
        "hours_assume": plan.hours_assume,
        "prompts_needed": plan.prompts_needed,
        "untested": plan.untested,
        "simulated": plan.simulated,
        "moving": plan.moving,
        "gated": plan.gated,
        "refusals": plan.refusals,
    }


def _jobs(study: Study) -> list[MethodRow]:
    """Return every job; its `values` hold only fields in which cells of the study differ, and always k and task."""
    cells = study.grid.cells
    varying = [name for name in VARYING if name in ALWAYS_SHOWN or len(_values(cells, name)) > 1]
    return [
        MethodRow(name, {field: _values(members, field) for field in varying}, len(members))
        for name, members in study.grid.by_method.items()
    ]


def _values(cells: Sequence[Cell], field: str) -> list[Any]:
    """The different values of a field, in the order of their first cells."""
    return list(dict.fromkeys(getattr(cell, field) for cell in cells))


def _refusals(study: Study) -> list[RefusedGroup]:
    """Group the refused cells by engine and reason, and count them."""
    counts: dict[tuple[str, str], Counter[tuple[str, str]]] = {}
    for cell, reason in study.grid.refusals:
        counts.setdefault((cell.engine, reason), Counter())[cell.pair, cell.method] += 1
    return [
        RefusedGroup(
            engine,
            reason,
            pairs=list(dict.fromkeys(pair for pair, _ in found)),
            methods=list(dict.fromkeys(method for _, method in found)),
            cells=found.total(),
        )
        for (engine, reason), found in counts.items()
    ]


COLUMNS = {"k": "k", "task": "tasks", "temperature": "T", "batch_size": "batch", "variant": "variants"}
"""Field of a cell -> title of its column."""


def show_plan(plan: Plan, console: Console) -> None:
    """Print a table with a row for each job, then what the study needs and which cells are refused."""
    console.print(_jobs_table(plan))
    for name, reason in plan.untested.items():
        console.print(f"[bold yellow]Untested on hardware: engine {name}[/] ({reason})")
    if plan.prompts_needed:
        middle, worst = plan.prompts_needed
        console.print(
            "To tell 5 % apart, the spread measured so far "
            f"asks for {middle:.0f} prompts in the median cell, {worst:.0f} in the worst."
        )
    console.print(_sizes_table(plan))
    console.print(f"[bold]{plan.needs}[/]\n  hours if {plan.hours_assume}")
    for pair, alpha in plan.simulated.items():
        console.print(f"[bold yellow]Simulated acceptance[/] {pair}: random weights, declared α = {alpha:g}")
    if plan.moving:
        console.print(
            f"[bold yellow]Not pinned[/] {', '.join(plan.moving)}: the hub may change them; "
            "`specrig pin` writes their commits into the tables"
        )
    for asks, models in plan.gated.items():
        console.print(f"[bold yellow]Gated[/] {', '.join(models)}: {asks}")
    if plan.refusals:
        console.print(f"[bold yellow]Refused: {sum(refusal.cells for refusal in plan.refusals)} cells")
    for refusal in plan.refusals:
        pairs, methods = ", ".join(refusal.pairs), ", ".join(refusal.methods)
        console.print(f"  {refusal.engine}/{pairs}: {methods}, {refusal.cells} cells: {refusal.reason}", markup=False)


def _jobs_table(plan: Plan) -> Table:
    study = plan.study
    table = Table(title=f"study {study.study}", title_justify="left", caption_justify="left")
    table.add_column("engine / pair / method", no_wrap=True)
    for field in plan.jobs[0].values if plan.jobs else ():
        table.add_column(COLUMNS[field])
    table.add_column("cells", justify="right")
    for job in plan.jobs:
        table.add_row(" / ".join(job.key), *map(_values_text, job.values.values()), str(job.cells))
    table.caption = f"{extent(study)} · {study.prompts} prompts a task · trains {plan.trains}"
    return table


def _sizes_table(plan: Plan) -> Table:
    table = Table(title="pairs", title_justify="left", caption_justify="left")
    table.add_column("pair", no_wrap=True)
    for column in ("target", "draft", "weights", "memory"):
        table.add_column(column, justify="right")
    table.add_column("dtype")
    for size in plan.sizes:
        memory = "?" if size.memory_bytes is None else size_text(size.memory_bytes)
        weights = "?" if size.target is None else size_text(size.weight_bytes)
        draft = "–" if plan.study.rows.pairs[size.pair].draft is None else _parameters(size.draft)
        table.add_row(size.pair, _parameters(size.target), draft, weights, memory, size.dtype)
    tokens = f"{PROMPT_TOKENS} prompt tokens and {plan.study.max_new_tokens} new ones a row"
    table.caption = f"memory: weights, caches of the largest batch ({tokens}), workspace"
    return table


def _parameters(shape: Shape | None) -> str:
    if shape is None:
        return "not known"
    count = shape.parameters
    for unit, size, digits in (("B", 1e9, 2), ("M", 1e6, 1)):
        if count >= size:
            return f"{count / size:.{digits}f}{unit}"
    return f"{count / 1e3:.0f}K"


def _values_text(values: Sequence[Any]) -> str:
    """Values as text: `2–8` for three or more consecutive numbers, the count of over four names, else `0, 1`."""
    if len(values) > 4 and isinstance(values[0], str):
        return str(len(values))
    if (
        len(values) > 2
        and all(isinstance(value, int) for value in values)
        and values == list(range(values[0], values[-1] + 1))
    ):
        return f"{values[0]}–{values[-1]}"
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
