"""Engines, pairs, tasks and methods that a study names: known, named once, at least one of each; options of engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from specrig.decoding.drafters import registry as methods
from specrig.engines import registry as engines
from specrig.study.problems import Problems, reason_of
from specrig.study.rows import Pair, Task
from specrig.study.study import Study


def check_names(study: Study, pairs: dict[str, Pair], tasks: dict[str, Task], broken: set[str], problems: Problems) -> None:
    """Engines, pairs, tasks: known, named once, and at least one of each."""
    for key, known, hint in (
        ("engines", engines().keys(), "`specrig methods` lists engines and methods"),
        ("pairs", pairs.keys(), f"or add a row to {study.tables.pairs}"),
        ("tasks", tasks.keys(), f"or add a row to {study.tables.tasks}"),
    ):
        names: list[str] = getattr(study, key)
        what = key.removesuffix("s")
        if not names and key not in broken:
            problems.key([key], f"the study names no {what}", f"add one of: {', '.join(sorted(known)) or 'none known'}")
        for index, name in enumerate(names):
            # A table that could not be read has said so already.
            if name not in known and known:
                problems.unknown([key, index], what, name, known, hint)
        refuse_repeats(key, [], names, problems)
    if not study.methods and "methods" not in broken:
        problems.key(["methods"], "the study names no method", f"add one of: {', '.join(methods())}")
    for key in ("temperatures", "batch_sizes"):
        if not getattr(study, key):
            problems.key([key], "an empty list leaves no cells", "give at least one value, or remove the key")
        refuse_repeats(key, [], getattr(study, key), problems)
    if study.prompts < 1:
        problems.key(["prompts"], f"{study.prompts} prompts leave every task without a prompt", "give 1 or more")


def check_engine_options(study: Study, problems: Problems) -> None:
    """`engine_options`: engines of the study, options that they have."""
    for name, options in study.engine_options.items():
        path: list[str | int] = ["engine_options", name]
        if name not in study.engines or name not in engines():
            problems.unknown(path, "engine (not one of the study's)", name, study.engines)
            continue
        try:
            engines()[name].Options.model_validate(options)
        except ValidationError as error:
            for issue in error.errors():
                known = ", ".join(engines()[name].Options.model_fields) or "none"
                problems.key([*path, *issue["loc"][:1]], reason_of(issue), f"options of {name}: {known}")


def refuse_repeats(key: str, path: Sequence[str | int], values: Sequence[Any], problems: Problems) -> None:
    """A value that stands twice in a list would make the same cells twice."""
    for value, count in Counter(values).items():
        if count > 1:
            problems.key([*path, key], f"{value!r} stands there {count} times", "remove the repeats")
