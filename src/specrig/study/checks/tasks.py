"""Checks of the tasks: each has prompts that fit into the context of its pairs, and its scorers exist."""

from __future__ import annotations

import re
from pathlib import Path

from specrig.corpus.example import TASKS as CORPUS_TASKS
from specrig.models.pair import ModelError
from specrig.study.problems import Problems, nearest
from specrig.study.rows import CORPUS, DATA_FILES, TRAINED
from specrig.study.study import Study
from specrig.tasks import PromptError
from specrig.tasks.lengths import check_lengths
from specrig.tasks.scorers import registry as scorers


def check_tasks(study: Study, problems: Problems) -> None:
    """Add a problem for each task with an unknown scorer or source, with too few prompts in the corpus, or with unusable prompts.

    Local files are read here; prompts from the network are checked by the job that fetches them.
    """
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
