"""What `specrig plan`, `specrig methods` and `specrig schema` show: the grid, the registries, the schemas. No torch here."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from specrig.decoding.drafters import registry as methods
from specrig.decoding.types import Drafter
from specrig.engines import registry as engines
from specrig.models.facts import Shape
from specrig.planning.advice import prompts_needed
from specrig.planning.estimate import GB, PROMPT_TOKENS, gated, hours, pair_sizes, training
from specrig.planning.pins import unpinned
from specrig.study.claims import Claim
from specrig.study.rows import Pair, Task
from specrig.study.study import Study

SCHEMAS: dict[str, type[BaseModel]] = {"study": Study, "pairs": Pair, "tasks": Task, "reported": Claim}


def show_plan(study: Study, console: Console) -> None:
    """One row a job, with its cells; then what is refused, and why."""
    table = Table(title=f"study {study.study}", title_justify="left", caption_justify="left")
    table.add_column("engine / pair / method", no_wrap=True)
    columns = {"k": "k", "task": "tasks", "temperature": "T", "batch_size": "batch", "variant": "variants"}
    cells = study.grid.cells
    varied = [name for name in columns if len({getattr(cell, name) for cell in cells}) > 1 or name in ("k", "task")]
    for name in varied:
        table.add_column(columns[name])
    table.add_column("cells", justify="right")
    for job, members in study.grid.jobs.items():
        shown = (_values({getattr(cell, name): None for cell in members}) for name in varied)
        table.add_row(" / ".join(job), *shown, str(len(members)))
    total, jobs = len(cells), len(study.grid.jobs)
    table.caption = f"{total} cells in {jobs} jobs · {study.prompts} prompts a task · trains {training(study)}"
    console.print(table)
    for name in dict.fromkeys(cell.engine for cell in cells):
        if reason := engines()[name].untested:
            console.print(f"[bold yellow]Untested on hardware: engine {name}[/] ({reason})")
    needed = sorted(prompts_needed(study.root))
    if needed:
        middle = needed[len(needed) // 2]
        console.print(
            f"To tell 5 % apart, the spread measured so far asks for {middle:.0f} prompts in the median cell, {needed[-1]:.0f} in the worst."
        )
    show_sizes(study, console)
    refused: dict[tuple[str, str], Counter[tuple[str, str]]] = {}
    for cell, reason in study.grid.refusals:
        refused.setdefault((cell.engine, reason), Counter())[cell.pair, cell.method] += 1
    if refused:
        console.print(f"[bold yellow]Refused: {sum(map(Counter.total, refused.values()))} cells")
        for (engine, reason), counts in refused.items():
            pairs, named = (", ".join(dict.fromkeys(names)) for names in zip(*counts, strict=True))
            console.print(f"  {engine}/{pairs}: {named}, {counts.total()} cells: {reason}", markup=False)


def show_sizes(study: Study, console: Console) -> None:
    """Parameters and memory of each pair, then what all of it needs."""
    sizes = pair_sizes(study)
    table = Table(title="pairs", title_justify="left", caption_justify="left")
    table.add_column("pair", no_wrap=True)
    for column in ("target", "draft", "weights", "memory"):
        table.add_column(column, justify="right")
    table.add_column("dtype")
    for size in sizes:
        memory = "?" if size.memory_bytes is None else f"{size.memory_bytes / GB:,.1f} GB"
        weights = "?" if size.target is None else f"{size.weight_bytes / GB:,.1f} GB"
        draft = "–" if study.rows.pairs[size.pair].draft is None else _parameters(size.draft)
        table.add_row(size.pair, _parameters(size.target), draft, weights, memory, size.dtype)
    table.caption = f"memory: weights, caches of the largest batch ({PROMPT_TOKENS} prompt tokens and {study.max_new_tokens} new ones a row), workspace"
    console.print(table)
    console.print(f"[bold]{needs(study)}[/]\n  hours if {hours(study, sizes)[1]}")
    for size in sizes:
        alpha = study.rows.pairs[size.pair].simulated_acceptance
        if alpha is not None:
            console.print(f"[bold yellow]Simulated acceptance[/] {size.pair}: random weights, declared α = {alpha:g}")
    if moving := unpinned(study):
        names = ", ".join(dict.fromkeys(pin.source for pin in moving))
        console.print(
            f"[bold yellow]Not pinned[/] {names}: the hub may change them; `specrig pin` writes their commits into the tables"
        )
    for asks, models in gated(study).items():
        console.print(f"[bold yellow]Gated[/] {', '.join(models)}: {asks}")


def needs(study: Study) -> str:
    """What the study asks for, in one line: cells, memory, hours."""
    sizes = pair_sizes(study)
    largest = max((size for size in sizes if size.memory_bytes), key=lambda size: size.memory_bytes or 0, default=None)
    where = "GPU memory" if study.uses_gpu() else "memory"
    known = "" if largest is None else f"up to {(largest.memory_bytes or 0) / GB:,.1f} GB ({largest.pair}) of {where}"
    spent = hours(study, sizes)[0]
    return f"{len(study.grid.cells)} cells in {len(study.grid.jobs)} jobs · {known or f'{where} not known'} · at most {spent:,.1f} hours of measuring"


def _parameters(shape: Shape | None) -> str:
    if shape is None:
        return "not known"
    count = shape.parameters
    return f"{count / 1e9:.2f}B" if count >= 1e9 else f"{count / 1e6:.1f}M"


def _values(found: Iterable[Any]) -> str:
    """`2–8` for whole numbers without a gap, `0, 1` or `code, translation` else; of many names their number."""
    values = list(found)
    if len(values) > 4 and isinstance(values[0], str):
        return str(len(values))
    if len(values) > 2 and all(isinstance(value, int) for value in values) and values == list(range(values[0], values[-1] + 1)):
        return f"{values[0]}–{values[-1]}"
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)


def show_methods(console: Console) -> None:
    """The registered methods and engines."""
    table = Table(title="methods", title_justify="left")
    for column in ("method", "what it is", "needs", "lossless", "options and defaults"):
        table.add_column(column)
    for name, method in methods().items():
        table.add_row(name, method.summary, ", ".join(method.needs), _lossless(method), _options(method.Options))
    console.print(table)
    table = Table(title="engines", title_justify="left")
    table.add_column("engine")
    table.add_column("here")
    table.add_column("options and defaults")
    for name, engine in engines().items():
        missing = engine.missing()
        state = "ready" if missing is None else escape(f"missing: {missing}")
        state += f" (untested on hardware: {engine.untested})" if engine.untested else ""
        table.add_row(name, state, _options(engine.Options))
    console.print(table)


def _options(kind: type[BaseModel]) -> str:
    return ", ".join(f"{key}={info.get_default(call_default_factory=True)}" for key, info in kind.model_fields.items())


def _lossless(method: type[Drafter]) -> str:
    required = any(info.is_required() for info in method.Options.model_fields.values())
    if required:
        return "by options"
    return "yes" if method.lossless(method.Options()) else "NO"


def write_schemas(folder: Path) -> list[Path]:
    """Write one JSON schema a kind of file into `folder`; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in SCHEMAS:
        path = folder / f"{name}.schema.json"
        path.write_text(schema_text(name), encoding="utf-8")
        paths.append(path)
    return paths


def schema_text(name: str) -> str:
    """The JSON schema of a study, or of a row of pairs.tsv, tasks.tsv or reported.csv, as it is written."""
    schema: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **SCHEMAS[name].model_json_schema(mode="validation"),
    }
    if name == "study":
        # Filled in when a study is resolved, never by its author.
        schema["properties"].pop("rows")
        for part in ("Rows", "Pair", "Task"):
            schema["$defs"].pop(part)
        # Options stand beside `k`. Their names are checked when a study is read, against the registered methods:
        # a schema that listed them would have to change with every method.
        schema["$defs"]["MethodEntry"]["additionalProperties"] = True
        _allow_scalars(schema)
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _allow_scalars(schema: dict[str, Any]) -> None:
    """Let `k: 4` stand for `k: [4]`, as reading a study does, for lists of plain values."""
    for part in (schema, schema["$defs"]["MethodEntry"]):
        for name, property_ in part["properties"].items():
            for option in property_.get("anyOf", [property_]):
                if option.get("type") == "array" and "$ref" not in option["items"]:
                    kinds = [*property_.get("anyOf", [{"type": "array", "items": option["items"]}]), option["items"]]
                    kept = {key: value for key, value in property_.items() if key not in {"type", "items", "anyOf"}}
                    part["properties"][name] = {**kept, "anyOf": kinds}
                    break
