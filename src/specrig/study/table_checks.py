"""Checks of a study's pairs, tasks and cells: models and prompts exist and fit each other.

`study.load` runs all checks and reports every problem at once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specrig.engines import registry as engines
from specrig.heads import of_draft, trained
from specrig.heads.contents import CHECKS, head_fault
from specrig.models import facts, gguf, weight_files
from specrig.models.gate import check_decoder, check_model, check_weights
from specrig.models.pair import ModelError
from specrig.provenance.trained_for import check_trained_for
from specrig.study.problems import Problems, nearest
from specrig.study.rows import MEDUSA2, TRAINED, Pair, Task, looks_like_path
from specrig.study.study import Study
from specrig.study.template_checks import check_chat
from specrig.tasks import PromptError, packages, read_prompts
from specrig.tasks.lengths import fitting
from specrig.tasks.scorers import registry as scorers
from specrig.tasks.sources import DATA_FILES
from specrig.tasks.variants import variant_of
from specrig.training.stages import CHECKPOINT, STAGES

HEADS = [name for name in STAGES if name not in ("target", "draft")]


def check_cells(study: Study, problems: Problems) -> None:
    """Add a problem for each entry that repeats a cell, and for each pair without a model that a method needs."""
    seen: dict[tuple[object, ...], int] = {}
    reported: set[tuple[int, str]] = set()
    for index, cell in study.grid.requested:
        same = (
            *cell.method_key,
            cell.k,
            cell.task,
            cell.temperature,
            cell.batch_size,
            repr(sorted(cell.options.items())),
        )
        if same in seen and (index, cell.method) not in reported:
            reported.add((index, cell.method))
            other = f", from methods[{seen[same]}]" if seen[same] != index else ""
            reason = f"cell {cell.name} exists already{other}"
            problems.key(["methods", index], reason, "remove the repeated k, value or entry")
        seen.setdefault(same, index)
    for index, entry in enumerate(study.methods):
        for pair in entry.pairs or study.pairs:
            if all(_served(study, engine, pair, entry.method) for engine in study.engines):
                continue  # the models lie with the servers
            for need in sorted(study.rows.pairs[pair].parts_for(entry.needs)):
                if study.paths.model(pair, need, study.root) is None:
                    reason = f"pair {pair!r} has no {need.replace('_', ' ')}, which {entry.method} needs"
                    column = "draft" if need == "draft" else "heads"
                    fill = f"fill the {column} column of {study.tables.pairs} (`trained`: it is trained here)"
                    problems.key(["methods", index], reason, f"{fill}, or restrict the entry with `pairs:`")


def _served(study: Study, engine: str, pair: str, method: str) -> bool:
    """Whether the cells of a method on a pair are run by servers, so that no model is loaded here."""
    named = any((server.engine, server.pair, server.method) == (engine, pair, method) for server in study.servers)
    return named or not engines()[engine].loads_pairs


def check_refusals(study: Study, problems: Problems) -> None:
    """Add a problem if the engines refuse all cells of the study; it names the three most frequent reasons."""
    if not study.grid.cells:
        reasons = Counter(refusal.reason for refusal in study.grid.refusals)
        listed = "; ".join(f"{reason} ({count} cells)" for reason, count in reasons.most_common(3))
        problems.key(["engines"], f"no engine can run any cell: {listed}", "install the engine, or choose another")


def check_pairs(study: Study, problems: Problems, *, from_table: bool = True) -> None:
    """Add a problem for each pair whose folders or files are missing, cannot be read, or do not fit each other.

    from_table: whether the pairs are rows of the study's table; else `--target` and `--draft` name the models.
    """

    def report(name: str, column: str, reason: str, fix: str) -> None:
        if from_table:
            location = ", ".join(filter(None, (f"row {name!r}", column)))
            problems.row(study.tables.pairs, None, location, reason, fix)
        else:
            problems.option(f"--{column or 'target'}", reason, fix)

    correct = "change the row, or leave the pair out" if from_table else "name models that fit"
    trained = ", or `trained`" if from_table else ""
    converted: dict[str, str] = {}  # folder -> the GGUF file that is converted into it
    for name, row in study.rows.pairs.items():
        if (reason := _folders_fault(study, name)) is not None:
            report(name, "", reason, correct)
        for column, source in row.gguf.items():
            if (other := converted.setdefault(gguf.slug(source, row.dtype), source)) != source:
                report(
                    name, column, f"{source} and {other} have one name", "rename one: the name is that of its folder"
                )
            try:
                gguf.config(source)
            except ModelError as error:
                report(name, column, str(error), "correct the file or the row, or leave the pair out")
        for column, model in (("target", row.target), ("draft", row.draft)):
            if model is None or model in row.gguf.values():
                continue
            local = looks_like_path(model)
            if row.weights == "random" and not local and facts.known(model) is None:
                shipped = nearest(model, facts.models(), what="shipped")
                fix = f"{shipped}; a folder with a config.json does as well"
                report(name, column, f"no shape of {model} is shipped", fix)
            folder = Path(model).expanduser()
            if row.trained_in(column) is None and local and not (folder / "config.json").is_file():
                fix = (
                    f"give a folder in Hugging Face format, a hub id (owner/name){trained if column == 'draft' else ''}"
                )
                if folder.is_dir():
                    report(name, column, f"{model} {weight_files.instead_of_model(folder)}", fix)
                else:
                    report(name, column, f"no model folder {model}", fix)
        for head in sorted(row.head_folders.keys() & set(study.grid.parts(name))):
            source = row.head_folders[head]
            if row.trained_in(head) is not None or row.weights == "random":
                continue
            folder = Path(source).expanduser()
            if folder.is_dir():
                if (reason := _head_fault(row, head, folder)) is not None:
                    report(name, "heads", f"{head}: {reason}", "name a head of this target, or leave it out")
            elif looks_like_path(source):
                fix = f"give a folder, relative to the current directory, or a hub id (owner/name){trained}"
                report(name, "heads", f"{head}: no folder {source}", fix)


def _head_fault(row: Pair, head: str, folder: Path) -> str | None:
    """Why a folder holds no head of this kind for the row's model; None: it does, as far as its files tell."""
    if (reason := head_fault(head, folder, _config_at_hand(row, head))) is not None or head not in CHECKS:
        return reason
    try:
        check_weights(folder)  # such a folder is a model's
    except ModelError as error:
        return str(error)
    return None


def _config_at_hand(row: Pair, head: str) -> dict[str, Any]:
    """The config.json of the model that a head is for, as far as it is on this disk or shipped; empty: it is neither."""
    column = "draft" if of_draft(head) else "target"
    model = row.draft if column == "draft" else row.target
    if model is None or row.trained_in(column) is not None:
        return {}
    try:
        return gguf.config(row.gguf[column]) if column in row.gguf else facts.config_at_hand(model) or {}
    except ModelError:
        return {}  # told of the model itself


def _folders_fault(study: Study, name: str) -> str | None:
    """What is wrong with a pair's local folders: they hold decoder-only models, and drafts and heads that
    were trained for the target. Models on the hub are checked when their job starts.
    """
    row, files = study.rows.pairs[name], study.paths.pair_files(name, study.root)
    local = {
        column: str(Path(model).expanduser())
        for column, model in (("target", row.target), ("draft", row.draft))
        if model is not None and (Path(model).expanduser() / "config.json").is_file()
    }
    loaded = any(engines()[engine].loads_pairs for engine in study.engines)  # else the weights lie with the servers
    target = study.paths.target_at_hand(name, study.root)
    parts = [part for part in files.sources if part != "target" and row.trained_in(part) is None]
    try:
        for column, folder in local.items():
            if row.weights == "random" or not loaded:
                check_decoder(folder)
            elif row.trained_in(column) is None:
                check_model(folder, drafts=column == "draft")
        if target is not None and row.trained_in("target") is None:
            check_trained_for(replace(files.only(parts), target=target))
    except ModelError as error:
        return str(error)
    return None


def check_trained(study: Study, problems: Problems) -> None:
    """Add a problem for each model that a row calls `trained` and that the workflow cannot train or take from there."""
    rows, file = study.rows.pairs, study.tables.pairs
    for name, row in rows.items():
        if row.target == TRAINED:
            fix = f"name the target; its draft and heads can be `{TRAINED}`"
            problems.row(file, None, f"row {name!r}, target", "a target is not trained from nothing", fix)
        if row.base is not None and not (row.base in rows and rows[row.base].trained_in("medusa") == row.base):
            reason = f"{row.base!r} is not a row whose Medusa heads are trained"
            fix = (
                f"name such a row after `{MEDUSA2}`: its target and its Medusa heads are then trained further together"
            )
            problems.row(file, None, f"row {name!r}, target", reason, fix)
        for part in dict.fromkeys([*study.grid.parts(name), *row.head_folders]):
            maker = row.trained_in(part)
            if maker is not None and (mistake := _training_mistake(row, part, maker, rows)) is not None:
                column = "draft" if part == "draft" else "heads"
                problems.row(file, None, f"row {name!r}, {column}", *mistake)


def check_initial_checkpoints(study: Study, problems: Problems) -> None:
    """Add a problem for each checkpoint that a training is to go on from, and that is not there or was trained for
    another target.
    """
    for pair, model in study.grid.trained:
        for folder in study.training.initial(model):
            key = ["training", trained()[model].name, "initial_checkpoint"]
            lacking = [file for file in CHECKPOINT if not (folder / file).is_file()]
            if lacking:
                reason = f"{folder} holds no {' and no '.join(lacking)}"
                problems.key(
                    key, reason, "name the folder of a head, seen from where the command runs, or leave it out"
                )
                continue
            target = study.paths.target_at_hand(pair, study.root)
            if target is None:
                continue  # the hub's is checked when its job starts
            files = study.paths.pair_files(pair, study.root)
            try:
                check_trained_for(replace(files.only([]), target=target, heads={model: folder}))
            except ModelError as error:
                problems.key(key, str(error), "name a head of this target")


def check_text_length(study: Study, problems: Problems) -> None:
    """Add a problem for texts that are longer than what a draft of the study's own training can read."""
    sequence, context = study.training.text.sequence, study.training.draft.context
    if sequence > context and any(part == "draft" for _, part in study.grid.trained):
        reason = f"{sequence} is longer than training.draft.context {context}"
        problems.key(["training", "text", "sequence"], reason, "lower it, or raise training.draft.context")


def _training_mistake(row: Pair, part: str, maker: str, rows: dict[str, Pair]) -> tuple[str, str] | None:
    """What is wrong with a part that the row `maker` is to train, and the fix; None: nothing."""
    if part not in STAGES:
        return f"there is no training for a head {part!r}", nearest(part, HEADS, what="trained can be")
    if maker != row.pair:
        other = rows.get(maker)
        if other is None or other.trained_in(part) != maker:
            reason = f"{maker!r} is not a row whose {part.replace('_', ' ')} is trained"
            return reason, f"name a row that says `{TRAINED}` itself"
        if (other.target, other.target_revision) != (row.target, row.target_revision):
            fix = f"write `{TRAINED}`: a draft or head learns from its own target"
            return f"{maker!r} has another target ({other.target}) than this row ({row.target})", fix
    elif row.quantization is not None and row.trained_in("target") is None:
        fix = f"train on a row of the target without quantization, and write `{TRAINED}:<that row>` here"
        return f"a target that its engine quantizes as {row.quantization} cannot teach", fix
    return None


def check_tasks(study: Study, problems: Problems) -> None:
    """Add a problem for each task with an unknown scorer or source, or with missing or unusable prompts.

    Local files are read here; prompts from the network are checked by the job that fetches them.
    """
    check_chat(study, problems)
    _check_contexts(study, problems)
    pairs: dict[str, dict[str, None]] = {}  # of each task, those that it is measured on
    for _, cell in study.grid.requested:
        pairs.setdefault(variant_of(cell.task).task, {})[cell.pair] = None
    for name in study.task_rows:
        row, file, where = study.rows.tasks[name], study.tables.tasks, f"row {name!r}"
        for scorer in row.scorer.split():
            if scorer not in scorers():
                reason = f"unknown scorer {scorer!r}"
                problems.row(file, None, f"{where}, scorer", reason, nearest(scorer, scorers()))
        if row.kind == "hub" and not re.fullmatch(r"[\w.-]+/[\w.-]+", row.source):
            kinds = (
                f"a {', '.join(DATA_FILES)} file, its https address, a data set on the hub (owner/name), or "
                "`package:<module>`"
            )
            problems.row(file, None, f"{where}, source", f"{row.source!r} is not a source of prompts", f"give {kinds}")
        elif row.kind == "hub" and not _has_datasets() and not study.paths.prompt_file(name, study.root).is_file():
            reason = f"{row.source} is a data set of the hub, which needs the library datasets"
            problems.row(file, None, f"{where}, source", reason, "`pip install 'specrig[data]'`")
        if row.kind == "package" and (wrong := packages.problem(row.source)):
            problems.row(file, None, f"{where}, source", *wrong)
        if not row.fetched:  # a fetched task is checked by a job of its own
            _check_own_prompts(study, name, row, pairs.get(name, ()), problems)


def _has_datasets() -> bool:
    return find_spec("datasets") is not None


def _check_own_prompts(study: Study, name: str, row: Task, pairs: Iterable[str], problems: Problems) -> None:
    try:
        prompts = study.prompts_of(name, study.root)
        for pair in () if row.chat else pairs:  # in a chat template they are longer
            if (target := study.paths.target_at_hand(pair, study.root)) is not None:
                files = replace(study.paths.pair_files(pair, study.root), target=target)
                fitting(prompts, name, files, study.max_new_tokens)
    except (PromptError, ModelError) as error:
        problems.row(study.tables.tasks, None, f"row {name!r}", str(error), "correct the row or the file")


def _check_contexts(study: Study, problems: Problems) -> None:
    """Add a problem for text of contexts that cannot be read, and for each context beyond what a target at hand can
    hold; of others the job says it.
    """
    try:
        _ = read_prompts(study.context_text) if study.contexts else []
    except PromptError as error:
        problems.key(["context_text"], str(error), "name a JSONL file of texts, seen from where the command runs")
    for pair, row in study.rows.pairs.items():
        try:
            config = gguf.config(row.target) if gguf.is_gguf(row.target) else facts.config_at_hand(row.target)
        except ModelError:
            continue  # reported as a problem of the pair
        limit = (config or {}).get("max_position_embeddings")
        for index, context in enumerate(study.contexts):
            if limit is not None and context > limit:
                reason = f"{context} tokens, the target of pair {pair!r} holds {limit}"
                problems.key(["contexts", index], reason, "leave it out, or take a target with a longer context")
