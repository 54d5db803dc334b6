"""Puts prompts into the chat template of a pair's tokenizer. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from specrig.models import hub
from specrig.models.pair import PairFiles
from specrig.tasks.prompts import Prompt
from specrig.tasks.sources import PromptError


def renderer(task: str, pair: PairFiles, *, chat: bool) -> Callable[[Prompt], str]:
    """What turns a single request into the text that is encoded. Raises PromptError like `apply_chat_template`."""
    if not chat:
        return lambda prompt: prompt.text
    tokenizer = require_chat_template(task, pair)
    return lambda prompt: render_chat(tokenizer, _messages(prompt, {}))


Answers = Mapping[str, Sequence[str]]
"""Id of a prompt -> the answers to its first turns."""


def apply_chat_template(
    prompts: Sequence[Prompt], task: str, pair: PairFiles, answers: Answers | None = None
) -> list[Prompt]:
    """Return the prompts as a user's turn in the template of the target's tokenizer, up to where the answer begins.

    answers: of conversations; the turns that they answer, and the one that follows, become the text. Raises PromptError
    if the tokenizer has no chat template.
    """
    tokenizer = require_chat_template(task, pair)
    return [replace(prompt, text=render_chat(tokenizer, _messages(prompt, answers or {}))) for prompt in prompts]


def join_turns(prompts: Sequence[Prompt], answers: Answers) -> list[Prompt]:
    """The same without a template: turns and answers as paragraphs."""
    return [
        replace(prompt, text="\n\n".join(message["content"] for message in _messages(prompt, answers)))
        for prompt in prompts
    ]


def _messages(prompt: Prompt, answers: Answers) -> list[dict[str, str]]:
    turns, found = prompt.turns or (prompt.text,), []
    answered = answers.get(prompt.id, ())
    for turn, answer in zip(turns, answered, strict=False):
        found += [{"role": "user", "content": turn}, {"role": "assistant", "content": answer}]
    return [*found, {"role": "user", "content": turns[len(answered)]}]


def require_chat_template(task: str, pair: PairFiles) -> Any:
    """The tokenizer of a pair's target. Raises PromptError if it has no chat template, which `task` needs."""
    if pair.random_weights:
        raise PromptError(
            f"task {task!r} needs a chat template; pair {pair.name!r} has random weights and no template: leave one out"
        )
    tokenizer = hub.tokenizer(pair.target, pair.target_revision)
    if not tokenizer.chat_template:
        raise PromptError(
            f"the tokenizer of {pair.target} has no chat template, which task {task!r} needs: "
            "take an instruction-tuned model, or a row of the task without `chat`"
        )
    return tokenizer


def render_chat(tokenizer: Any, turns: Sequence[dict[str, str]]) -> str:
    """The turns (`role`, `content`) in the tokenizer's chat template, up to where the answer begins."""
    # The tokenizer will put its first token in front by itself, so one in the template would stand there twice.
    first = tokenizer.bos_token if tokenizer("")["input_ids"][:1] == [tokenizer.bos_token_id] else None
    return str(tokenizer.apply_chat_template(list(turns), tokenize=False, add_generation_prompt=True)).removeprefix(
        first or ""
    )
