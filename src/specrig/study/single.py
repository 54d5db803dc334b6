"""The one cell that `specrig decode` runs: a method on a pair of a study, or on named models. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specrig.cell import Cell
from specrig.decoding.drafters import registry as methods
from specrig.models.pair import PairFiles
from specrig.study.config import MethodEntry
from specrig.study.config_checks import check_entry
from specrig.study.load import validated
from specrig.study.problems import Positions, Problems, StudyError, nearest, read_config
from specrig.study.rows import Pair, read_rows
from specrig.study.study import Study
from specrig.study.table_checks import check_pairs

ENGINE = "native"


@dataclass(frozen=True, slots=True)
class CellRequest:
    """A request for a cell. method: None for `draft_model` if there is a draft, else `ngram`; options: the method's."""

    method: str | None = None
    k: int = 4
    options: Mapping[str, Any] = field(default_factory=dict)
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class SingleCell:
    """A cell to run, the parts of its pair that it needs, and the study that gives device and threads."""

    cell: Cell
    files: PairFiles
    study: Study


def of_study(config: Path, pair: str | None, request: CellRequest) -> SingleCell:
    """The cell on a row of the table of pairs that a study uses, whose trained models lie in the study's results.

    pair: None for the study's first. Raises StudyError for what is unknown, does not fit, or is not trained yet.
    """
    problems = Problems(Positions([config]))
    study, _ = validated(read_config(config), problems)
    rows = study.rows.pairs or read_rows(study.tables.pairs, Pair, problems)
    problems.stop()
    name = pair or next(iter(study.pairs), "")
    if name not in rows:
        problems.option("--pair", f"no row {name!r} in {study.tables.pairs}", nearest(name, rows))
        problems.stop()
    used = {each: rows[each] for each in (name, *rows[name].depends_on) if each in rows}
    engine_options = {engine: options for engine, options in study.engine_options.items() if engine == ENGINE}
    kept = study.model_dump(exclude={"tasks", "methods", "servers"}) | {"engine_options": engine_options}
    alone = kept | {"engines": [ENGINE], "pairs": [name], "rows": {"pairs": used}}
    single = _single(Study.model_validate(alone), request)
    for part, source in single.files.sources.items():
        if Path(source).is_relative_to(study.root) and not Path(source, "config.json").is_file():
            entries = [entry for entry in study.methods if name in (entry.pairs or study.pairs)]
            made = any(part == "target" or part in entry.needs for entry in entries)
            fix = f"{config} does not make it: add pair and method to a study and run it"
            if made:
                fix = f"`specrig run {config}` makes it"
            reason = f"the {part.replace('_', ' ')} of {name!r} does not exist yet ({source})"
            problems.option("--pair", reason, fix)
    problems.stop()
    return single


def of_models(row: Pair, request: CellRequest) -> SingleCell:
    """The cell on the models of a row outside any table. Raises StudyError for what is unknown or does not fit."""
    config = {"study": row.pair, "engines": [ENGINE], "pairs": [row.pair], "rows": {"pairs": {row.pair: row}}}
    return _single(Study.model_validate(config), request, from_table=False)


def _single(study: Study, request: CellRequest, *, from_table: bool = True) -> SingleCell:
    """The cell on the only pair of `study`, checked."""
    problems = Problems(Positions([]))
    name = study.pairs[0]
    method = request.method or ("draft_model" if study.rows.pairs[name].draft else "ngram")
    entry = MethodEntry(method=method, k=[request.k], options=dict(request.options))
    check_entry(study, 0, entry, study.rows.pairs, problems)
    if problems.found:  # of the command line, not of a config
        raise StudyError([replace(problem, key=_flag(problem.key)) for problem in problems.found])
    if len(entry.variants()) > 1:
        problems.option("--option", "a list of values is a sweep, and one cell runs", "give one value")
    study = Study.model_validate(study.model_dump() | {"methods": [entry]})
    check_pairs(study, problems, from_table=from_table)
    files = study.paths.pair_files(name, study.root)
    for part in sorted(entry.needs - files.sources.keys()):
        flag = "--draft FOLDER" if part == "draft" else f"--head {part}=FOLDER"
        reason = f"{name!r} has no {part.replace('_', ' ')}, which {method} needs"
        free = ", ".join(each for each, kind in methods().items() if not kind.needs and kind.uses_k)
        problems.option("--method", reason, f"name one with {flag}, or take a method that needs none: {free}")
    problems.stop()
    [(variant, options)] = entry.variants()
    cell = Cell(
        engine=ENGINE,
        pair=name,
        method=method,
        k=entry.ks[0],
        task="prompt",
        temperature=request.temperature,
        variant=variant,
        options=options,
    )
    if (refusal := study.grid.impossible(*cell.method_key) or study.grid.speechless(cell)) is not None:
        problems.option("--pair" if from_table else "--target", refusal, "name another model")
        problems.stop()
    return SingleCell(cell, files.only(sorted(entry.needs)), study)


def _flag(key: str) -> str:
    """The option of the command line that stands for a key of an entry: `methods[0].k` is `--k`."""
    name = key.removeprefix("methods[0]").lstrip(".")
    return f"--{name}" if name in ("method", "k") else f"--option {name}".rstrip()
