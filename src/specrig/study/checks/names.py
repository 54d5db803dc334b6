"""Checks of the names in a study: engines, pairs, tasks and methods must be known and named once, at least one of each.

The options of its engines are checked here too.
"""

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


def check_names(
    study: Study, pairs: dict[str, Pair], tasks: dict[str, Task], broken: set[str], problems: Problems
) -> None:
    """Add a problem for every unknown or repeated name and for every list of the study that is empty.

    pairs, tasks: the rows of the tables; broken: top-level keys that could not be read and are reported already.
    """
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
    """Add a problem for every key of `engine_options` that is no engine of the study, and for every option its engine
    refuses.
    """
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
    """Add a problem for each value that stands more than once in the list at `path` and `key`: it would repeat cells."""
    for value, count in Counter(values).items():
        if count > 1:
            problems.key([*path, key], f"{value!r} stands there {count} times", "remove the repeats")
