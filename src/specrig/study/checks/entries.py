"""Checks of one entry of `methods:`: its method, its k's, its options, and the names in its own lists."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ValidationError

from specrig.decoding.drafters import registry as methods
from specrig.study.checks.names import refuse_repeats
from specrig.study.entries import K_RANGE, MethodEntry, is_sweep
from specrig.study.problems import Problems, nearest, reason_of
from specrig.study.rows import Pair
from specrig.study.study import Study

ENTRY_KEYS = {name for name in MethodEntry.model_fields if name != "options"}


def check_entry(study: Study, index: int, entry: MethodEntry, pairs: dict[str, Pair], problems: Problems) -> None:
    """Add a problem for every mistake in entry number `index` of `methods:`; `pairs` are the rows of `pairs.tsv` by
    name.
    """
    path: list[str | int] = ["methods", index]
    for name in entry.tasks or []:
        if name not in study.tasks:
            problems.unknown([*path, "tasks"], "task (not one of the study's)", name, study.tasks)
    for name in entry.pairs or []:
        if name not in pairs:
            problems.unknown([*path, "pairs"], "pair", name, pairs, f"or add a row to {study.tables.pairs}")
    for key in ("k", "tasks", "pairs", "temperatures", "batch_sizes"):
        values = getattr(entry, key)
        if values is not None and not values:
            problems.key([*path, key], "an empty list leaves no cells", "give at least one value, or remove the key")
        refuse_repeats(key, path, values or [], problems)
    if entry.method not in methods():
        problems.unknown([*path, "method"], "method", entry.method, methods())
        return
    method = methods()[entry.method]
    for k in entry.k:
        if method.uses_k and k not in K_RANGE:
            problems.key(
                [*path, "k"],
                f"k = {k} is outside {K_RANGE.start} to {K_RANGE.stop - 1}",
                "2 to 8 is usual, 4 a good start",
            )
    check_options(path, entry, method.Options, problems)


def check_options(path: list[str | int], entry: MethodEntry, kind: type[BaseModel], problems: Problems) -> None:
    """Add a problem for each unknown option and each invalid value; the values of a sweep are checked one by one.

    path: place of the entry in the config; kind: the method's `Options`.
    """
    for name in entry.options:
        if name not in kind.model_fields:
            known = sorted(kind.model_fields)
            hint = f"options of {entry.method}: {', '.join(known) or 'none'}"
            problems.key([*path, name], f"unknown option {name!r}", f"{_closest(name, known)}{hint}")
    known_options = {name: value for name, value in entry.options.items() if name in kind.model_fields}
    fixed = {name: value for name, value in known_options.items() if not is_sweep(kind, name, value)}
    swept = {name: value for name, value in known_options.items() if name not in fixed}
    trials = [fixed, *({**fixed, name: value} for name, values in swept.items() for value in values)]
    for name, values in swept.items():
        if not values:
            problems.key([*path, name], "an empty list leaves no cells", "give at least one value, or remove the key")
    said: set[str] = set()
    for trial in trials:
        try:
            kind.model_validate(trial)
        except ValidationError as error:
            for issue in error.errors():
                where = [*path, *issue["loc"][:1]]
                text = f"{reason_of(issue)}; you gave {issue['input']!r}"
                if text not in said:
                    said.add(text)
                    problems.key(where, text, "`specrig methods` lists the options with their defaults")


def _closest(name: str, options: Sequence[str]) -> str:
    text = nearest(name, {*options, *ENTRY_KEYS})
    return text.split("? ")[0] + "? " if text.startswith("did you mean") else ""
