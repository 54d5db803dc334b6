"""Checks of a study's config: its names, engine options, methods, servers and folders.

`study.load` runs all checks and reports every problem at once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import product
from typing import Any

from pydantic import BaseModel, ValidationError

from specrig.decoding.drafters import registry as methods
from specrig.engines import registry as engines
from specrig.study.config import MethodEntry, is_sweep
from specrig.study.problems import Problems, nearest, reason_of, shortened
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
            # A table that could not be read was reported already.
            if name not in known and known:
                problems.unknown([key, index], what, name, known, hint)
    if not study.methods and "methods" not in broken:
        problems.key(["methods"], "the study names no method", f"add one of: {', '.join(methods())}")
    for index, context in enumerate(study.contexts):
        if context <= study.max_new_tokens:
            reason = f"a context of {context} tokens leaves no room for a prompt and {study.max_new_tokens} new ones"
            problems.key(["contexts", index], reason, "give a longer one, or lower max_new_tokens")
    if study.contexts and (several := [name for name in study.tasks if name in tasks and tasks[name].turns > 1]):
        reason = f"task {several[0]!r} has turns, whose context is the conversation"
        problems.key(["contexts"], reason, "leave the task or the key out")


def check_engine_options(study: Study, problems: Problems) -> None:
    """Add a problem for options of an engine that the study does not use, and for options the engine refuses."""
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
                reason = f"you gave {shortened(issue['input'])}; {reason_of(issue)}"
                problems.key([*path, *issue["loc"][:1]], reason, f"options of {name}: {known}")


ENTRY_KEYS = {name for name in MethodEntry.model_fields if name != "options"}


def check_entry(study: Study, index: int, entry: MethodEntry, pairs: dict[str, Pair], problems: Problems) -> None:
    """Add a problem for every mistake in entry number `index` of `methods:`; `pairs`: the rows of `pairs.tsv`."""
    path: list[str | int] = ["methods", index]
    for number, other in enumerate(study.methods[:index]):
        same = (entry.method, entry.options) == (other.method, other.options)
        if entry.label and entry.label == other.label and not same:
            problems.key(
                [*path, "label"], f"methods[{number}] is called {entry.label!r} too", "give each its own label"
            )
    for name in entry.tasks or []:
        if name not in study.tasks:
            problems.unknown([*path, "tasks"], "task (not one of the study's)", name, study.tasks)
    for name in entry.pairs or []:
        if name not in pairs:
            problems.unknown([*path, "pairs"], "pair", name, pairs, f"or add a row to {study.tables.pairs}")
    if entry.method not in methods():
        problems.unknown([*path, "method"], "method", entry.method, methods())
        return
    method = methods()[entry.method]
    check_options(path, entry, method.Options, problems)


def check_options(path: list[str | int], entry: MethodEntry, kind: type[BaseModel], problems: Problems) -> None:
    """Add a problem for each unknown option and each invalid value; of a sweep every combination is checked.

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
    trials = [{**fixed, **dict(zip(swept, values, strict=True))} for values in product(*swept.values())]
    for name, values in swept.items():
        if not values:
            problems.key([*path, name], "an empty list leaves no cells", "give at least one value, or remove the key")
    reported: set[str] = set()
    for trial in trials:
        try:
            kind.model_validate(trial)
        except ValidationError as error:
            for issue in error.errors():
                where = [*path, *issue["loc"][:1]]
                text = f"you gave {shortened(issue['input'])}; {reason_of(issue)}"
                if text not in reported:
                    reported.add(text)
                    problems.key(where, text, f"`specrig methods {entry.method}` lists the options with their defaults")


def _closest(name: str, options: Sequence[str]) -> str:
    text = nearest(name, {*options, *ENTRY_KEYS})
    return text.split("? ")[0] + "? " if text.startswith("did you mean") else ""


BASELINE = "autoregressive"


def check_servers(study: Study, problems: Problems) -> None:
    """Add a problem for unknown names, for two servers that do the same, and for a pair without a baseline server."""
    seen: dict[tuple[Any, ...], int] = {}
    answers: dict[str, int] = {}
    pairs = dict.fromkeys([*study.pairs, *(name for entry in study.methods for name in entry.pairs or ())])
    for index, server in enumerate(study.servers):
        path: list[str | int] = ["servers", index]
        for key, known in (("engine", study.engines), ("pair", pairs), ("method", {*methods(), BASELINE})):
            if getattr(server, key) not in known:
                problems.unknown(
                    [*path, key], key, getattr(server, key), known, f"a server of another {key} is never used"
                )
        same = server.engine, server.pair, server.method, server.k, server.variant
        other = seen.setdefault(same, index)
        if other != index:
            problems.key(
                path, f"servers[{other}] runs the same cells", "remove one, or give it its own k, variant or engine"
            )
        answer = repr((server.engine, server.pair, server.url.rstrip("/"), server.model, sorted(server.fields.items())))
        other = answers.setdefault(answer, index)
        if other != index:
            reason = f"servers[{other}] is the same server with the same fields: both would measure one thing"
            problems.key(path, reason, "give its own url, or `fields` that turn speculation on or off")
    for engine, pair in sorted({(server.engine, server.pair) for server in study.servers}):
        if (engine, pair, BASELINE, 0, "") not in seen:
            reason = f"no server of pair {pair!r} runs without speculation (engine {engine})"
            problems.key(["servers"], reason, f"add one with `method: {BASELINE}`: every speedup is against it")


def check_traffic(study: Study, problems: Problems) -> None:
    """Add a problem for traffic without a load, or that no engine of the study serves."""
    traffic = study.traffic
    if traffic is None:
        return
    if not traffic.concurrency and not traffic.rate:
        problems.key(["traffic"], "it names no load", "add `concurrency: [1, 4, 16]` or `rate: [0.5, 1]`")
    serving = sorted(name for name, engine in engines().items() if engine.serves)
    if not {*study.engines} & {*serving}:
        problems.key(["traffic"], "none of the study's engines serves requests", f"add one of: {', '.join(serving)}")


def check_folders(study: Study, problems: Problems) -> None:
    """Add a problem for the results or the reports folder if it cannot be made or written."""
    for key, folder in (("results", study.root), ("reports", study.report.parent)):
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not existing.is_dir():
            problems.key(
                [key], f"{existing} is a file, not a folder", "choose another folder, e.g. --config results=PATH"
            )
        elif not os.access(existing, os.W_OK | os.X_OK):
            fix = f"change its permissions, or choose another, e.g. --config {key}=PATH"
            problems.key([key], f"{existing} cannot be written", fix)
