"""A task's prompts as one pair reads them: fetched, in the chat template of its tokenizer, none longer than the context.

All of it happens before a model is loaded. No torch here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specrig.engines import gate, hub
from specrig.engines.base import EngineError, PairFiles
from specrig.measurement.records import write_atomically
from specrig.tasks.prompts import Prompt, map_prompts
from specrig.tasks.sources import PromptError, fetch_rows, hub_rows

if TYPE_CHECKING:
    from specrig.study import Study


def fetch_prompts(study: Study, task: str, root: Path) -> None:
    """Bring the prompts of a task that the study runs from its address or the hub to `Study.prompt_file`. Raises PromptError."""
    row = study.rows.tasks[task]
    on_hub = row.kind == "hub"
    rows = hub_rows(row.source, row.config, row.split, row.revision) if on_hub else fetch_rows(row.source, row.sha256)
    found = map_prompts(rows, row.source, limit=study.prompts_wanted(task), **row.mapping)
    lines = ({"id": prompt.id, "prompt": prompt.text, "reference": prompt.reference} for prompt in found)
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    write_atomically(study.prompt_file(task, root), text)


def prepared(study: Study, task: str, pair: PairFiles, root: Path) -> list[Prompt]:
    """The prompts that a pair's engine encodes. Raises PromptError for data that cannot be used, and for a prompt too long."""
    prompts = study.prompts_of(task, root)
    if study.rows.tasks[task].chat:
        prompts = in_chat_template(prompts, task, pair)
    check_lengths(prompts, task, pair, study.max_new_tokens)
    return prompts


def in_chat_template(prompts: Sequence[Prompt], task: str, pair: PairFiles) -> list[Prompt]:
    """Each text as the user's turn, up to where the answer begins. Raises PromptError where the tokenizer has no template."""
    if pair.simulated_acceptance is not None:
        raise PromptError(
            f"task {task!r} wants a chat template and pair {pair.name!r} has random weights, thus none; leave one out"
        )
    tokenizer = hub.tokenizer(pair.target, pair.target_revision)
    if not tokenizer.chat_template:
        raise PromptError(
            f"task {task!r} wants a chat template and the tokenizer of {pair.target} has none: take an instruction-tuned model, or a "
            "row of the task without `chat`"
        )
    # The tokenizer will put its first token in front by itself, so one in the template would stand there twice.
    first = tokenizer.bos_token if tokenizer("")["input_ids"][:1] == [tokenizer.bos_token_id] else None
    found = []
    for prompt in prompts:
        turn = [{"role": "user", "content": prompt.text}]
        text = str(tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))
        found.append(replace(prompt, text=text.removeprefix(first or "")))
    return found


def check_lengths(prompts: Sequence[Prompt], task: str, pair: PairFiles, new_tokens: int) -> None:
    """Raise PromptError for a prompt that leaves no room for `new_tokens` in the target's context."""
    context = gate.context(pair)
    if context is None:
        return
    if pair.simulated_acceptance is not None:
        lengths = [len(prompt.text.encode()) for prompt in prompts]
    else:
        try:
            file = hub.fetch(pair.target, "tokenizer.json", pair.target_revision)
        except EngineError:
            return  # a tokenizer in another format: the loop checks what it encodes
        from tokenizers import Tokenizer

        lengths = [len(entry.ids) for entry in Tokenizer.from_file(str(file)).encode_batch([prompt.text for prompt in prompts])]
    for prompt, length in zip(prompts, lengths, strict=True):
        if length + new_tokens > context:
            raise PromptError(
                f"prompt {prompt.id!r} of task {task!r} has {length} tokens and {new_tokens} are to follow, the context of {pair.target} "
                f"holds {context}: shorten it, leave it out, or lower max_new_tokens"
            )
