"""Prepares a task's prompts for a pair: fetches them, applies the chat template and checks that they fit the context.

All of this happens before a model is loaded. No torch here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from specrig.corpus import gather
from specrig.corpus.example import CorpusError
from specrig.errors import first_line
from specrig.files import write_atomically
from specrig.models.pair import ModelError, PairFiles
from specrig.tasks.chat import Answers, apply_chat_template, join_turns, renderer
from specrig.tasks.contexts import behind_text
from specrig.tasks.lengths import check_lengths, counter
from specrig.tasks.packages import package_rows
from specrig.tasks.prompts import Prompt, map_prompts
from specrig.tasks.sources import PromptError, Row, fetch_rows, hub_rows
from specrig.tasks.variants import variant_of

if TYPE_CHECKING:
    from specrig.study.study import Study


def fetch_prompts(study: Study, task: str, root: Path) -> None:
    """Write the prompts of a task from its address, package or the hub to `study.paths.prompt_file(task, root)`.

    Raises PromptError if they cannot be fetched or used.
    """
    row = study.rows.tasks[task]
    read: dict[str, Callable[[], Iterable[Row]]] = {
        "hub": lambda: hub_rows(row.source, row.config, row.split, row.revision),
        "package": lambda: package_rows(row.source, row.config),
        "url": lambda: fetch_rows(row.source, row.sha256),
    }
    rows = read[row.kind]()
    found = map_prompts(rows, row.source, limit=study.grid.prompts_read(task), **row.mapping)
    lines = ({"id": each.id, "prompt": each.turns or each.text, "reference": each.reference} for each in found)
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    write_atomically(study.paths.prompt_file(task, root), text)


def prepared(study: Study, task: str, pair: PairFiles, root: Path) -> list[Prompt]:
    """A task's prompts as the pair's engine encodes them. Raises PromptError for unusable or too long ones."""
    prompts = study.prompts_of(task, root)
    if context := variant_of(task).context:
        prompts = _behind_text(study, task, pair, prompts, context - study.max_new_tokens)
    answered = variant_of(task).turn - 1
    answers = _answers(study.paths.answers(pair.name, task, root), prompts, answered) if answered > 0 else {}
    return as_encoded(study, task, pair, prompts, answers)


def as_encoded(study: Study, task: str, pair: PairFiles, prompts: list[Prompt], answers: Answers) -> list[Prompt]:
    """The prompts, behind the turns that have answers, as the pair's engine encodes them. Raises PromptError."""
    if study.rows.tasks[task].chat:
        prompts = apply_chat_template(prompts, task, pair, answers)
    elif answers:
        prompts = join_turns(prompts, answers)
    check_lengths(prompts, task, pair, study.max_new_tokens)
    return prompts


def _behind_text(study: Study, task: str, pair: PairFiles, prompts: list[Prompt], room: int) -> list[Prompt]:
    """The prompts behind held-out text of the corpus, whose four tasks take turns."""
    try:
        rows, count = gather.read(study.paths.context_text(study.root)), counter(pair)
    except (CorpusError, ModelError) as error:
        raise PromptError(f"task {task!r}: {error}") from error
    kinds: dict[str, list[str]] = {}
    for row in rows:
        kinds.setdefault(row["task"], []).append(row["text"])
    texts = [text for each in zip_longest(*kinds.values()) for text in each if text]
    render = renderer(task, pair, chat=bool(study.rows.tasks[task].chat))
    return behind_text(prompts, task, texts, room, lambda prompt: count([render(prompt)])[0])


def _answers(file: Path, prompts: list[Prompt], count: int) -> dict[str, list[str]]:
    """Id of each prompt -> the answers to its first `count` turns. Raises PromptError for a file that lacks some."""
    again = "run the study again, or `specrig stage answers`, which writes it"
    if not file.is_file():
        raise PromptError(f"{file} is not there yet: {again}")
    try:
        rows = {row["id"]: row for row in map(json.loads, file.read_bytes().splitlines())}
        found = {prompt.id: rows[prompt.id]["answers"][:count] for prompt in prompts}
        same = all(list(prompt.turns) == rows[prompt.id]["turns"] for prompt in prompts)
    except (ValueError, KeyError, TypeError) as error:
        raise PromptError(f"{file}: not the answers to this task's turns ({first_line(error)}); {again}") from error
    if not same:
        raise PromptError(f"{file}: it answers other turns than the task has now; {again}")
    return found
