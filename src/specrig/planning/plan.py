"""Says what a study will do before it runs: its jobs, what they need, and which cells are refused. No torch here.

`plan_view` prints it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specrig.cell import Cell
from specrig.engines import registry as engines
from specrig.planning.estimate import PairSize, gated, hours, needs, pair_sizes, training
from specrig.planning.measured import prompts_needed
from specrig.planning.pins import unpinned
from specrig.study.study import Study

VARYING = ("k", "task", "temperature", "batch_size", "variant")
"""Fields in which the cells of one job can differ."""
ALWAYS_SHOWN = ("k", "task")


@dataclass(frozen=True, slots=True)
class Job:
    """A job. name: (engine, pair, method); values: field -> the values that it takes in the job's cells; cells: their
    number.
    """

    name: tuple[str, str, str]
    values: Mapping[str, Sequence[Any]]
    cells: int


@dataclass(frozen=True, slots=True)
class Refusal:
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
    jobs: Sequence[Job]
    untested: Mapping[str, str]
    prompts_needed: tuple[float, float] | None
    trains: str
    sizes: Sequence[PairSize]
    needs: str
    hours_assume: str
    simulated: Mapping[str, float]
    moving: Sequence[str]
    gated: Mapping[str, Sequence[str]]
    refusals: Sequence[Refusal]


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
            {**dict(zip(("engine", "pair", "method"), job.name, strict=True)), "cells": job.cells, **job.values}
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


def _jobs(study: Study) -> list[Job]:
    """Return every job; its `values` hold only fields in which cells of the study differ, and always k and task."""
    cells = study.grid.cells
    varying = [name for name in VARYING if name in ALWAYS_SHOWN or len(_values(cells, name)) > 1]
    return [
        Job(name, {field: _values(members, field) for field in varying}, len(members))
        for name, members in study.grid.by_method.items()
    ]


def _values(cells: Sequence[Cell], field: str) -> list[Any]:
    """The different values of a field, in the order of their first cells."""
    return list(dict.fromkeys(getattr(cell, field) for cell in cells))


def _refusals(study: Study) -> list[Refusal]:
    """Group the refused cells by engine and reason, and count them."""
    counts: dict[tuple[str, str], Counter[tuple[str, str]]] = {}
    for cell, reason in study.grid.refusals:
        counts.setdefault((cell.engine, reason), Counter())[cell.pair, cell.method] += 1
    return [
        Refusal(
            engine,
            reason,
            pairs=list(dict.fromkeys(pair for pair, _ in found)),
            methods=list(dict.fromkeys(method for _, method in found)),
            cells=found.total(),
        )
        for (engine, reason), found in counts.items()
    ]
