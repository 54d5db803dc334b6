"""Checks of the tasks: each has prompts that fit into the context of its pairs, and its scorers exist."""

from __future__ import annotations

import re
from pathlib import Path

from specrig.corpus.example import PROMPT_FILES
from specrig.models.gate import without_chat_template
from specrig.models.pair import ModelError
from specrig.study.problems import Problems, nearest
from specrig.study.rows import CORPUS, DATA_FILES
from specrig.study.study import Study
from specrig.tasks import PromptError
from specrig.tasks.lengths import check_lengths
from specrig.tasks.scorers import registry as scorers


def check_tasks(study: Study, problems: Problems) -> None:
    """Add a problem for each task with an unknown scorer or source, with too few prompts in the corpus, or with
    unusable prompts.

    Local files are read here; prompts from the network are checked by the job that fetches them.
    """
    available = study.training.corpus.prompts
    _check_templates(study, problems)
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
            if name not in PROMPT_FILES:
                problems.row(
                    study.tables.tasks,
                    None,
                    where,
                    "the corpus has no such task",
                    nearest(name, PROMPT_FILES, what="it has"),
                )
            elif (wanted := study.grid.prompts_read(name)) > available:
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
                if Path(files.target).is_dir() and study.rows.pairs[pair].trained_in("target") is None:
                    check_lengths(prompts, name, files, study.max_new_tokens)
        except (PromptError, ModelError) as error:
            problems.row(study.tables.tasks, None, where, str(error), row.notes or "correct the row or the file")


def _check_templates(study: Study, problems: Problems) -> None:
    """Targets at hand that no chat task can be put to, and none that `training.chat: true` can; one on the hub is asked
    by its jobs.
    """
    asked = {(cell.pair, cell.task) for cell in study.grid.cells if study.rows.tasks[cell.task].chat}
    if study.training.chat is True:
        asked |= {(pair, "training.chat") for pair, _ in study.grid.trained}
    for pair, task in sorted(asked):
        row = study.rows.pairs[pair]
        try:
            bare = row.trained_in("target") is not None or row.weights == "random" or without_chat_template(row.target)
        except ModelError:
            continue  # said of the pair
        if bare:
            path: list[str | int] = (
                ["training", "chat"] if task == "training.chat" else ["tasks", study.tasks.index(task)]
            )
            reason = f"{task} wants a chat template and the target of pair {pair!r} has none"
            problems.key(
                path,
                reason,
                "take an instruction-tuned target, or a task without `chat` (`pairs:` and `tasks:` restrict an entry)",
            )
