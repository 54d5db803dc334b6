"""What must hold of a study before anything runs: names, k's, options, cells, models, prompts, folders."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from specrig.corpus.example import TASKS as CORPUS_TASKS
from specrig.decoding.drafters import registry as methods
from specrig.engines import registry as engines
from specrig.models import facts
from specrig.models.gate import check_decoder, check_vocabulary
from specrig.models.pair import ModelError
from specrig.study.entries import K_RANGE, MethodEntry, is_sweep
from specrig.study.problems import Problems, nearest, reason_of
from specrig.study.rows import CORPUS, DATA_FILES, MEDUSA2, TRAINED, Pair, Task, looks_like_path
from specrig.study.study import Study
from specrig.tasks import PromptError
from specrig.tasks.lengths import check_lengths
from specrig.tasks.scorers import registry as scorers

BASELINE = "autoregressive"
ENTRY_KEYS = {name for name in MethodEntry.model_fields if name != "options"}


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
        _refuse_repeats(key, [], names, problems)
    if not study.methods and "methods" not in broken:
        problems.key(["methods"], "the study names no method", f"add one of: {', '.join(methods())}")
    for key in ("temperatures", "batch_sizes"):
        if not getattr(study, key):
            problems.key([key], "an empty list leaves no cells", "give at least one value, or remove the key")
        _refuse_repeats(key, [], getattr(study, key), problems)
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


def _refuse_repeats(key: str, path: Sequence[str | int], values: Sequence[Any], problems: Problems) -> None:
    for value, count in Counter(values).items():
        if count > 1:
            problems.key([*path, key], f"{value!r} stands there {count} times", "remove the repeats")


def check_entry(study: Study, index: int, entry: MethodEntry, pairs: dict[str, Pair], problems: Problems) -> None:
    """One entry of `methods`: its method, k's, options, and the names in its own lists."""
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
        _refuse_repeats(key, path, values or [], problems)
    if entry.method not in methods():
        problems.unknown([*path, "method"], "method", entry.method, methods())
        return
    method = methods()[entry.method]
    for k in entry.k:
        if method.uses_k and k not in K_RANGE:
            problems.key(
                [*path, "k"], f"k = {k} is outside {K_RANGE.start} to {K_RANGE.stop - 1}", "2 to 8 is usual, 4 a good start"
            )
    check_options(path, entry, method.Options, problems)


def check_servers(study: Study, problems: Problems) -> None:
    """Servers: known names, one a cell, told apart by address or fields, and one without speculation for each pair."""
    seen: dict[tuple[Any, ...], int] = {}
    answers: dict[str, int] = {}
    for index, server in enumerate(study.servers):
        path: list[str | int] = ["servers", index]
        for key, known in (("engine", study.engines), ("pair", study.pairs), ("method", {*methods(), BASELINE})):
            if getattr(server, key) not in known:
                problems.unknown([*path, key], key, getattr(server, key), known, f"a server of another {key} is never asked")
        same = server.engine, server.pair, server.method, server.k, server.variant
        other = seen.setdefault(same, index)
        if other != index:
            problems.key(path, f"servers[{other}] runs the same cells", "remove one, or give it its own k, variant or engine")
        answer = repr((server.engine, server.pair, server.url.rstrip("/"), server.model, sorted(server.fields.items())))
        other = answers.setdefault(answer, index)
        if other != index:
            reason = f"servers[{other}] is the same server with the same fields: both would measure one thing"
            problems.key(path, reason, "give its own url, or `fields` that turn speculation on or off")
    for engine, pair in sorted({(server.engine, server.pair) for server in study.servers}):
        if (engine, pair, BASELINE, 0, "") not in seen:
            reason = f"no server of pair {pair!r} runs without speculation (engine {engine})"
            problems.key(["servers"], reason, f"add one with `method: {BASELINE}`: every speedup is against it")


def check_options(path: list[str | int], entry: MethodEntry, kind: type[BaseModel], problems: Problems) -> None:
    """Names and values of a method's options, each value of a sweep by itself."""
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


def check_cells(study: Study, problems: Problems) -> None:
    """No cell twice; every method has the models it needs."""
    seen: dict[tuple[object, ...], int] = {}
    reported: set[tuple[int, str]] = set()
    for index, cell in study.grid.asked:
        same = *cell.job, cell.k, cell.task, cell.temperature, cell.batch_size, repr(sorted(cell.options.items()))
        if same in seen and (index, cell.method) not in reported:
            reported.add((index, cell.method))
            other = seen[same]
            reason = f"cell {cell.name} is there already" + (f", from methods[{other}]" if other != index else "")
            problems.key(["methods", index], reason, "remove the repeated k, value or entry")
        seen.setdefault(same, index)
    for index, entry in enumerate(study.methods):
        for pair in entry.pairs or study.pairs:
            if all(_served(study, engine, pair, entry.method) for engine in study.engines):
                continue  # the models lie with the servers
            for need in methods()[entry.method].needs:
                if study.paths.model(pair, need, study.root) is None:
                    column = "draft" if need == "draft" else "heads"
                    problems.key(
                        ["methods", index],
                        f"{entry.method} needs a {need.replace('_', ' ')} and pair {pair!r} has none",
                        f"fill the {column} column of {study.tables.pairs}, or restrict the entry with `pairs:`",
                    )


def _served(study: Study, engine: str, pair: str, method: str) -> bool:
    """Whether servers alone run a method's cells on a pair."""
    named = any((server.engine, server.pair, server.method) == (engine, pair, method) for server in study.servers)
    return named or not engines()[engine].loads_pairs


def check_pairs(study: Study, problems: Problems) -> None:
    """Model folders exist and fit each other; a draft is trained only with its target."""
    for name, row in study.rows.pairs.items():
        _check_folder_files(study, name, problems)
        if row.base is not None and (row.base not in study.rows.pairs or study.rows.pairs[row.base].target != TRAINED):
            problems.row(
                study.tables.pairs, None, f"row {name!r}, target", f"{row.base!r} is no row whose target is `{TRAINED}`",
                f"`{MEDUSA2}` takes the name of such a row: its target and its Medusa heads are trained on together",
            )  # fmt: skip
        for column, model in (("target", row.target), ("draft", row.draft)):
            if row.weights == "random" and model is not None and not looks_like_path(model) and facts.known(model) is None:
                problems.row(
                    study.tables.pairs, None, f"row {name!r}, {column}", f"no shape of {model} is shipped",
                    nearest(model, facts.models(), what="shipped") + "; a folder with a config.json does as well",
                )  # fmt: skip
            if model is None or model == TRAINED or (column == "target" and row.trains) or not looks_like_path(model):
                continue
            if not (Path(model).expanduser() / "config.json").is_file():
                exists = Path(model).expanduser().is_dir()
                problems.row(
                    study.tables.pairs,
                    None,
                    f"row {name!r}, {column}",
                    f"{model} holds no config.json" if exists else f"no model folder {model}",
                    "give a folder in Hugging Face format, a hub id (owner/name), or `trained`",
                )
        if row.draft == TRAINED and not row.trains:
            problems.row(
                study.tables.pairs, None, f"row {name!r}, draft", "only a pair whose target is `trained` can train its draft",
                "make both `trained`, or name a draft model",
            )  # fmt: skip


def _check_folder_files(study: Study, name: str, problems: Problems) -> None:
    """Local folders pass the gate (decoder-only, one vocabulary) before a job is planned; hub models when their job starts."""
    row = study.rows.pairs[name]
    local = {
        column: str(Path(model).expanduser())
        for column, model in (("target", row.target), ("draft", row.draft))
        if model is not None and (Path(model).expanduser() / "config.json").is_file()
    }
    try:
        for folder in local.values():
            check_decoder(folder)
        if len(local) == 2 and row.weights != "random":
            check_vocabulary(local["target"], local["draft"])
    except ModelError as error:
        problems.row(study.tables.pairs, None, f"row {name!r}", str(error), "change the row, or leave the pair out")


def check_tasks(study: Study, problems: Problems) -> None:
    """Every task has prompts."""
    available = study.training.corpus.prompts
    for name in study.tasks:
        row, where = study.rows.tasks[name], f"row {name!r}"
        for scorer in row.scorer.split():
            if scorer not in scorers():
                reason = f"unknown scorer {scorer!r}"
                problems.row(study.tables.tasks, None, f"{where}, scorer", reason, nearest(scorer, scorers()))
        if row.kind == "hub" and not re.fullmatch(r"[\w.-]+/[\w.-]+", row.source):
            problems.row(
                study.tables.tasks, None, f"{where}, source", f"{row.source!r} is no source of prompts",
                f"give a {', '.join(DATA_FILES)} file, its https address, a data set on the hub (owner/name), or `corpus`",
            )  # fmt: skip
        if row.source == CORPUS:
            if name not in CORPUS_TASKS:
                problems.row(
                    study.tables.tasks, None, where, "the corpus has no such task", nearest(name, CORPUS_TASKS, what="it has")
                )
            elif (wanted := study.grid.prompts_wanted(name)) > available:
                key = "prompts" if wanted == study.prompts else "batch_sizes"
                reason = f"{wanted} prompts, the corpus holds back {available} a task"
                problems.key([key], reason, "lower it, or raise training.corpus.prompts")
            continue
        if row.fetched:
            continue  # by a job of its own
        try:
            prompts = study.prompts_of(name, study.root)
            for pair in study.pairs:
                files = study.paths.pair_files(pair, study.root)
                if Path(files.target).is_dir() and study.rows.pairs[pair].target != TRAINED:
                    check_lengths(prompts, name, files, study.max_new_tokens)
        except (PromptError, ModelError) as error:
            problems.row(study.tables.tasks, None, where, str(error), row.notes or "correct the row or the file")


def check_folders(study: Study, problems: Problems) -> None:
    """Results and report can be written."""
    for key, folder in (("results", study.root), ("reports", study.report.parent)):
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not existing.is_dir():
            problems.key([key], f"{existing} is a file, no folder", "choose another folder, e.g. --config results=PATH")
        elif not os.access(existing, os.W_OK | os.X_OK):
            problems.key(
                [key], f"{existing} cannot be written", f"change its permissions, or choose another, e.g. --config {key}=PATH"
            )


def check_refusals(study: Study, problems: Problems) -> None:
    """Some engine can run some cell."""
    if not study.grid.cells:
        reasons = Counter(refusal.reason for refusal in study.grid.refusals)
        listed = "; ".join(f"{reason} ({count} cells)" for reason, count in reasons.most_common(3))
        problems.key(["engines"], f"no engine can run any cell: {listed}", "install the engine, or choose another")
