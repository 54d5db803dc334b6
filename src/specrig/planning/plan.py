"""Says what a study will do before it runs: its jobs, what they need, and which cells are refused. No torch here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.markup import escape

from specrig.cell import Cell
from specrig.decoding.drafters import registry as methods
from specrig.engines import registry as engines
from specrig.models import gate, gguf
from specrig.models.facts import Shape
from specrig.models.pair import ModelError
from specrig.models.vocabularies import TokenMap, token_map
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
from specrig.planning.measured import cells_measured
from specrig.planning.pins import unpinned
from specrig.report.labels import variant_name
from specrig.study.study import Study
from specrig.tasks import PromptError
from specrig.terminal import Column, print_table

VARYING = ("k", "task", "temperature", "batch_size", "variant")
"""Fields in which the cells of one job can differ."""
ALWAYS_SHOWN = ("k", "task")


@dataclass(frozen=True, slots=True)
class RefusedGroup:
    """Cells that one engine refuses for one reason: their pairs, their methods and their number."""

    engine: str
    reason: str
    pairs: Sequence[str]
    methods: Sequence[str]
    cells: int


def plan_of(study: Study) -> dict[str, Any]:
    """The plan of a resolved study as data, sizes in bytes and numbers of weights, None where not known.

    `jobs` has a row for each engine, pair and method, with its cells and the values of the fields in which cells of the
    study differ. `prompts_of`: task -> its prompts, fewer than the study asks for where its file has fewer. `untested`:
    engine -> what was never tried on hardware. `simulated`: pair -> declared acceptance. `large_drafts`: pair -> what is
    said of a draft that is not smaller than its target. `short_drafts`: pair -> what is said of a draft whose context is
    shorter than the texts. `other_vocabularies`: pair -> what target and draft have in common. `moving`: hub ids without a revision. `gated`: what an owner asks for -> the gated models.
    """
    grid, sizes = study.grid, pair_sizes(study)
    spent, assumed = hours(study, sizes)
    acceptances = {size.pair: study.rows.pairs[size.pair].simulated_acceptance for size in sizes}
    reasons = {name: engines()[name].untested for name in dict.fromkeys(cell.engine for cell in grid.cells)}
    return {
        "study": study.study,
        "prompts": study.prompts,
        "prompts_of": {task: _prompt_count(study, task) for task in study.tasks},
        "cells": len(grid.cells),
        "measured": cells_measured(study),
        "jobs": _jobs(study),
        "trains": [{"pair": pair, "model": model} for pair, model in grid.trained],
        "pairs": [
            {
                "pair": size.pair,
                "dtype": size.dtype,
                "target_weights": size.target.parameters if size.target else None,
                "draft_weights": size.draft.parameters if size.draft else None,
                "memory_bytes": size.memory_bytes,
            }
            for size in sizes
        ],
        "hours": spent,
        "hours_assume": assumed,
        "untested": {name: reason for name, reason in reasons.items() if reason},
        "simulated": {pair: alpha for pair, alpha in acceptances.items() if alpha is not None},
        "large_drafts": _large_drafts(sizes),
        "short_drafts": _short_drafts(sizes),
        "other_vocabularies": _other_vocabularies(study),
        "moving": list(dict.fromkeys(pin.source for pin in unpinned(study))),
        "gated": gated(study),
        "refusals": _refusals(study),
    }


def _jobs(study: Study) -> list[dict[str, Any]]:
    """Every job with its number of cells and the values of their fields: k, task, and those in which cells differ."""
    cells = study.grid.cells
    varying = [name for name in VARYING if name in ALWAYS_SHOWN or len(_values(cells, name)) > 1]
    return [
        {
            **dict(zip(("engine", "pair", "method"), key, strict=True)),
            "cells": len(members),
            **{field: _values(members, field) for field in varying},
        }
        for key, members in study.grid.by_method.items()
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


def _prompt_count(study: Study, task: str) -> int:
    """How many prompts of a task are measured; of a file that is at hand no more than it has."""
    requested = study.grid.prompts_read(task)
    if study.rows.tasks[task].kind != "file":
        return requested
    try:
        return len(study.prompts_of(task, study.root))
    except PromptError:
        return requested


def _large_drafts(sizes: Sequence[PairSize]) -> dict[str, str]:
    return {
        size.pair: f"the draft has {_parameters(size.draft)} parameters, its target {_parameters(size.target)}: "
        "a draft pass costs as much as a pass of the target, so nothing is gained; take a smaller draft"
        for size in sizes
        if size.draft is not None and size.target is not None and size.draft.parameters >= size.target.parameters
    }


def _short_drafts(sizes: Sequence[PairSize]) -> dict[str, str]:
    return {
        size.pair: f"the draft holds {size.draft.context:,} positions, texts may reach {longest:,}: behind its last one it no "
        "longer tells positions apart and little of what it drafts is accepted; the output stays the target's"
        for size in sizes
        if size.draft is not None and size.target is not None
        if size.draft.context < (longest := min(size.tokens, size.target.context))
    }


def _other_vocabularies(study: Study) -> dict[str, str]:
    """Of each pair whose draft has a vocabulary of its own, as far as the files are here, what both can say."""
    found: dict[str, str] = {}
    folders: dict[str, str] = {}
    with TemporaryDirectory() as kept:
        for pair in dict.fromkeys(cell.pair for cell in study.grid.cells if "draft" in methods()[cell.method].needs):
            row, files = study.rows.pairs[pair], study.paths.pair_files(pair, study.root)
            models = [files.target, files.draft]
            for column, model in (("target", files.target), ("draft", files.draft)):
                if model is None or model in folders or files.random_weights:
                    continue
                if Path(model).expanduser().joinpath("config.json").is_file():
                    folders[model] = str(Path(model).expanduser())
                elif column in row.gguf:  # not converted yet
                    with suppress(ModelError):  # told of the model itself
                        gguf.write_small_files(row.gguf[column], Path(kept, str(len(folders))))
                        folders[model] = str(Path(kept, str(len(folders))))
            here = [folders[model] for model in models if model in folders]
            if len(here) == 2 and gate.other_vocabulary(*here) is not None:
                found[pair] = _in_common(token_map(*here), study)
    return found


def _in_common(tokens: TokenMap, study: Study) -> str:
    both, share = tokens.shares()
    text = f"target and draft have {both:,} tokens in common, {100 * share:.0f} % of the target's"
    if prompts := [text for task in study.tasks for text in _texts(study, task)]:
        ids = [token for prompt in prompts for token in tokens.target.tokenizer.encode(prompt).ids]
        text += f"; these are {100 * tokens.said(ids):.0f} % of the tokens of the prompts"
    return text


def _texts(study: Study, task: str) -> list[str]:
    """The prompts of a task whose file is at hand."""
    try:
        return [text for prompt in study.prompts_of(task, study.root) for text in prompt.asks()]
    except PromptError:
        return []


COLUMNS = {"k": "k", "temperature": "T", "batch_size": "batch", "variant": "variants"}
"""Field of a cell -> title of its column."""


def show_plan(study: Study, plan: dict[str, Any], console: Console) -> None:
    """Print the methods of each engine and pair, then what the study needs and which cells are refused.

    plan: the result of `plan_of`.
    """
    _print_jobs(study, plan, console)
    for name, reason in plan["untested"].items():
        console.print(f"[bold yellow]Untested on hardware: engine {name}[/] ({escape(reason)})")
    _print_sizes(study, console)
    console.print(f"{needs(study)}\n  hours if {plan['hours_assume']}", markup=False)
    left = plan["cells"] - plan["measured"]
    text = f"measured already: {plan['measured']} of {plan['cells']} cells; {left or 'none'} will run"
    console.print(f"{text} (more if code, models or prompts have changed)" if plan["measured"] else text)
    for pair, reason in plan["large_drafts"].items():
        console.print(f"[bold yellow]Draft not smaller[/] {pair}: {reason}")
    for pair, reason in plan["short_drafts"].items():
        console.print(f"[bold yellow]Draft with a shorter context[/] {pair}: {reason}")
    for pair, reason in plan["other_vocabularies"].items():
        console.print(f"[bold yellow]Draft of another vocabulary[/] {pair}: {reason}")
    for pair, alpha in plan["simulated"].items():
        console.print(f"[bold yellow]Simulated acceptance[/] {pair}: declared α = {alpha:g}")
    if plan["moving"]:
        console.print(
            f"[bold yellow]Not pinned[/] {escape(', '.join(plan['moving']))}: the hub may change them; "
            "`specrig pin` writes their commits into the tables"
        )
    for asks, models in plan["gated"].items():
        console.print(f"[bold yellow]Gated[/] {', '.join(models)}: {asks}")
    if plan["refusals"]:
        console.print(f"[bold yellow]Refused: {sum(refusal.cells for refusal in plan['refusals'])} cells")
    for refusal in plan["refusals"]:
        pairs, methods = ", ".join(refusal.pairs), ", ".join(refusal.methods)
        console.print(f"  {refusal.engine}/{pairs}: {methods}, {refusal.cells} cells: {refusal.reason}", markup=False)


def _print_jobs(study: Study, plan: dict[str, Any], console: Console) -> None:
    """What all methods share once, then for each engine and pair a line a method."""
    console.print(f"study {study.study}: {extent(study)}", style="bold", markup=False)
    console.print(f"  tasks: {', '.join(study.tasks)}", markup=False)
    jobs = plan["jobs"]
    columns, shared = [name for name in COLUMNS if jobs and name in jobs[0]], []
    for name in columns:
        if name != "k" and len({repr(job[name]) for job in jobs}) == 1:
            shared.append(name)
            console.print(f"  {COLUMNS[name]}: {_field_text(jobs[0], name)}", markup=False)
    most = max(plan["prompts_of"].values(), default=0)
    fewer = [f"{task} {count}" for task, count in plan["prompts_of"].items() if count < most]
    prompts = f"{most} a task" + (f", fewer of {', '.join(fewer)}" if fewer else "")
    console.print(f"  prompts: {prompts}\n  trains: {training(study)}", markup=False)
    own = [name for name in columns if name not in shared]
    titles = [
        Column("method"),
        *(Column(COLUMNS[name], breaks=name == "variant") for name in own),
        Column("cells", right=True),
    ]
    for engine, pair in dict.fromkeys((job["engine"], job["pair"]) for job in jobs):
        console.print(f"\n{engine} / {pair}", style="bold", markup=False)
        members = [job for job in jobs if (job["engine"], job["pair"]) == (engine, pair)]
        rows = [(job["method"], *(_field_text(job, name) for name in own), str(job["cells"])) for job in members]
        print_table(console, titles, rows)
        for job in members:
            if set(job["task"]) != set(study.tasks):
                console.print(f"{job['method']}: only {', '.join(job['task'])}", markup=False)
    console.print()


def _field_text(job: dict[str, Any], field: str) -> str:
    """The values of a field of a job's cells."""
    if field == "variant":
        return "; ".join(variant_name(job["method"], value) or "default" for value in job[field])
    return _values_text(job[field])


def _print_sizes(study: Study, console: Console) -> None:
    rows = []
    for size in pair_sizes(study):
        memory = "?" if size.memory_bytes is None else size_text(size.memory_bytes)
        weights = "?" if size.target is None else size_text(size.weight_bytes)
        draft = "–" if study.rows.pairs[size.pair].draft is None else _parameters(size.draft)
        rows.append((size.pair, _parameters(size.target), draft, weights, memory, size.dtype))
    numbers = (Column(name, right=True) for name in ("target", "draft", "weights", "memory"))
    print_table(console, [Column("pair"), *numbers, Column("dtype")], rows)
    tokens = f"{PROMPT_TOKENS} prompt tokens and {study.max_new_tokens} new ones a row"
    if study.contexts:
        tokens = f"contexts of up to {max(study.contexts)} tokens"
    console.print(f"memory: weights, caches of the largest batch ({tokens}), workspace", style="dim")


def _parameters(shape: Shape | None) -> str:
    if shape is None:
        return "not known"
    count = shape.parameters
    for unit, size, digits in (("B", 1e9, 2), ("M", 1e6, 1)):
        if count >= size:
            return f"{count / size:.{digits}f}{unit}"
    return f"{count / 1e3:.0f}K"


def _values_text(values: Sequence[Any]) -> str:
    """Values as text: `2–8` for three or more consecutive numbers, else `0, 1`."""
    if (
        len(values) > 2
        and all(isinstance(value, int) for value in values)
        and values == list(range(values[0], values[-1] + 1))
    ):
        return f"{values[0]}–{values[-1]}"
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
