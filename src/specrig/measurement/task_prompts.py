"""Prepares a task's prompts for a pair: fetches them, renders them once and checks that they fit the context.

All of this happens before a model is loaded. No torch here.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specrig.cell import digest
from specrig.errors import first_line
from specrig.files import file_sha256, write_atomically
from specrig.models.pair import ModelError, PairFiles
from specrig.provenance.digests import code_digest
from specrig.tasks.chat import Answers, join_turns, require_chat_template
from specrig.tasks.contexts import behind_text
from specrig.tasks.lengths import counter, fitting, too_long
from specrig.tasks.packages import package_rows
from specrig.tasks.prompts import Prompt, map_prompts, read_prompts
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
        "url": lambda: fetch_rows(row.source, row.sha256, row.encoding),
    }
    rows = read[row.kind]()
    left_out = Counter[str]()
    prompts = map_prompts(rows, row.source, limit=study.grid.prompts_read(task), left_out=left_out, **row.mapping)
    for why, count in left_out.items():
        print(f"task {task}: {count} rows are left out: {why}", file=sys.stderr)
    text = "".join(json.dumps(_line(prompt), ensure_ascii=False) + "\n" for prompt in prompts)
    write_atomically(study.paths.prompt_file(task, root), text)


def _line(prompt: Prompt) -> dict[str, Any]:
    """A prompt as a row that `tasks.prompts` reads back: as `messages` where some stand in front of it."""
    asked: dict[str, Any] = {"prompt": prompt.turns or prompt.text}
    if prompt.before:
        said = [*prompt.before, *(("user", text) for text in prompt.asks())]
        asked = {"messages": [{"role": role, "content": text} for role, text in said]}
    return {"id": prompt.id, **asked, "reference": prompt.reference}


def prepared(study: Study, task: str, pair: PairFiles, root: Path) -> list[Prompt]:
    """A task's prompts as the pair's engine encodes them, without those that are too long, which are named once.

    Raises PromptError for unusable prompts, and where none fits. They are rendered once and stored in `study.paths.rendered(…)`, from where every later stage and engine reads them,
    until something that decides them changes.
    """
    prompts, variant = study.prompts_of(task, root), variant_of(task)
    answers: Answers = {}
    if variant.turn > 1:
        answers = _answers(study.paths.answers(pair.name, task, root), prompts, variant.turn - 1)
        prompts = [prompt for prompt in prompts if prompt.id in answers]
    file, decides = study.paths.rendered(pair.name, task, root), _decides(study, task, pair, prompts, answers)
    texts = _stored(file, decides)
    if texts is None:
        if variant.context:
            prompts = _behind_text(study, task, pair, prompts, variant.context - study.max_new_tokens)
        prompts = as_encoded(study, task, pair, prompts, answers)
        _store(file, study, task, decides, prompts)
        for name, reason in too_long(prompts, pair, study.max_new_tokens).items():
            print(f"task {task}: prompt {name!r} is left out: {reason}", file=sys.stderr)
    else:
        prompts = [replace(prompt, text=texts[prompt.id]) for prompt in prompts]
    return fitting(prompts, task, pair, study.max_new_tokens)


def as_encoded(study: Study, task: str, pair: PairFiles, prompts: list[Prompt], answers: Answers) -> list[Prompt]:
    """The prompts, behind the turns that have answers, as the pair's engine encodes them. Raises PromptError."""
    if study.rows.tasks[task].chat:
        form = study.chat_form(task, require_chat_template(task, pair))
        prompts = [form.rendered(prompt, answers.get(prompt.id, ())) for prompt in prompts]
    elif answers or any(prompt.before for prompt in prompts):
        prompts = join_turns(prompts, answers)
    return prompts


def _behind_text(study: Study, task: str, pair: PairFiles, prompts: list[Prompt], room: int) -> list[Prompt]:
    """The prompts behind the text of `context_text`."""
    try:
        texts, count = [prompt.text for prompt in read_prompts(study.context_text)], counter(pair)
    except ModelError as error:
        raise PromptError(f"task {task!r}: {error}") from error
    chat = bool(study.rows.tasks[task].chat)
    render = study.chat_form(task, require_chat_template(task, pair)).rendered if chat else lambda prompt: prompt
    return behind_text(prompts, task, texts, room, lambda prompt: count([render(prompt).text])[0])


def _decides(study: Study, task: str, pair: PairFiles, prompts: Sequence[Prompt], answers: Answers) -> str:
    """Digest of all that decides how a task's prompts are rendered for a pair: prompts, answers, row, clock, template
    and code.
    """
    row, variant, folder = study.rows.tasks[task], variant_of(task), Path(pair.target)
    parts: list[Any] = [[(prompt.id, prompt.before, prompt.asks()) for prompt in prompts], answers, code_digest(*CODE)]
    if row.chat:
        parts += [row.system, row.template_args, study.clock.isoformat()]
    if variant.context:
        parts += [variant.context, study.max_new_tokens, file_sha256(study.context_text)]
    if row.chat or variant.context:
        files = [file for name in TOKENIZER for file in sorted(folder.glob(name)) if file.is_file()]
        parts += [[(file.name, file_sha256(file)) for file in files]] if folder.is_dir() else [pair.target]
        parts += [pair.target_revision]
    return digest(parts)


CODE = ("measurement", "models", "tasks")
"""The packages that render prompts."""
TOKENIZER = ("tokenizer*", "chat_template*", "additional_chat_templates/*", "special_tokens_map.json", "vocab*")
"""Files of a model folder that decide how prompts are rendered, and how many tokens they have."""


def _stored(file: Path, decides: str) -> dict[str, str] | None:
    """Id of each prompt -> its stored text; None where nothing is stored for what decides it."""
    try:
        content = json.loads(file.read_bytes())
        return {each["id"]: each["text"] for each in content["prompts"]} if content["decides"] == decides else None
    except (OSError, ValueError, TypeError, LookupError):
        return None


def _store(file: Path, study: Study, task: str, decides: str, prompts: Sequence[Prompt]) -> None:
    row = study.rows.tasks[task]
    form = {"clock": study.clock.isoformat(), "system": row.system, "template_args": row.template_args}
    texts = [{"id": prompt.id, "text": prompt.text} for prompt in prompts]
    content = {"decides": decides, **(form if row.chat else {}), "prompts": texts}
    write_atomically(file, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _answers(file: Path, prompts: list[Prompt], count: int) -> dict[str, list[str]]:
    """Id of each prompt -> the answers to its first `count` turns, for those that did not grow too long before.

    Raises PromptError for a file that lacks a prompt.
    """
    again = "run the study again, or `specrig stage answers`, which writes it"
    if not file.is_file():
        raise PromptError(f"{file} is not there yet: {again}")
    try:
        rows = {row["id"]: row for row in map(json.loads, file.read_bytes().splitlines())}
        found = {prompt.id: rows[prompt.id]["answers"][:count] for prompt in prompts}
        found = {name: said for name, said in found.items() if len(said) == count}
        same = all(list(prompt.turns) == rows[prompt.id]["turns"] for prompt in prompts)
    except (ValueError, KeyError, TypeError) as error:
        raise PromptError(f"{file}: not the answers to this task's turns ({first_line(error)}); {again}") from error
    if not same:
        raise PromptError(f"{file}: it answers other turns than the task has now; {again}")
    return found
