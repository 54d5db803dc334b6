"""Prints a `Plan` on a console, for `specrig plan`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from specrig.models.facts import Shape
from specrig.planning.estimate import PROMPT_TOKENS, extent, size_text
from specrig.planning.plan import Plan

COLUMNS = {"k": "k", "task": "tasks", "temperature": "T", "batch_size": "batch", "variant": "variants"}
"""Field of a cell -> title of its column."""


def show_plan(plan: Plan, console: Console) -> None:
    """Print a table with a row for each job, then what the study needs and which cells are refused."""
    console.print(_jobs(plan))
    for name, reason in plan.untested.items():
        console.print(f"[bold yellow]Untested on hardware: engine {name}[/] ({reason})")
    if plan.prompts_needed:
        middle, worst = plan.prompts_needed
        console.print(
            f"To tell 5 % apart, the spread measured so far asks for {middle:.0f} prompts in the median cell, {worst:.0f} in the worst."
        )
    console.print(_sizes(plan))
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


def _jobs(plan: Plan) -> Table:
    study = plan.study
    table = Table(title=f"study {study.study}", title_justify="left", caption_justify="left")
    table.add_column("engine / pair / method", no_wrap=True)
    for field in plan.jobs[0].values if plan.jobs else ():
        table.add_column(COLUMNS[field])
    table.add_column("cells", justify="right")
    for job in plan.jobs:
        table.add_row(" / ".join(job.name), *map(_values, job.values.values()), str(job.cells))
    table.caption = f"{extent(study)} · {study.prompts} prompts a task · trains {plan.trains}"
    return table


def _sizes(plan: Plan) -> Table:
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


def _values(values: Sequence[Any]) -> str:
    """Values as text: `2–8` for three or more consecutive numbers, the number of names if there are over four, else `0,
    1`.
    """
    if len(values) > 4 and isinstance(values[0], str):
        return str(len(values))
    if (
        len(values) > 2
        and all(isinstance(value, int) for value in values)
        and values == list(range(values[0], values[-1] + 1))
    ):
        return f"{values[0]}–{values[-1]}"
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
