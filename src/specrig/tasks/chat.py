"""Puts prompts into the chat template of a pair's tokenizer. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from specrig.models import hub
from specrig.models.chat_template import CLOCK, ChatTemplate, ChatTemplateError, of_tokenizer
from specrig.models.pair import PairFiles
from specrig.tasks.prompts import Prompt
from specrig.tasks.sources import PromptError

Answers = Mapping[str, Sequence[str]]
"""Id of a prompt -> the answers to its first turns."""


@dataclass(frozen=True, slots=True)
class ChatForm:
    """How the prompts of a task become text for a model: its template, and what the task's row gives it."""

    task: str
    template: ChatTemplate
    system: str = ""
    """A system turn in front of prompts that have none; empty: none."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """Further variables of the template, e.g. `enable_thinking`."""
    clock: datetime = CLOCK

    def rendered(self, prompt: Prompt, answers: Sequence[str] = ()) -> Prompt:
        """The prompt in the template, up to where the answer begins.

        answers: to the first turns of a conversation; the turns that they answer, and the one that follows, become the
        text. Raises PromptError for a template that refuses or drops what is said.
        """
        own = any(role == "system" for role, _ in prompt.before)
        system = [{"role": "system", "content": self.system}] if self.system and not own else []
        try:
            text = self.template.render([*system, *_messages(prompt, answers)], self.args, self.clock)
        except ChatTemplateError as error:
            raise PromptError(f"prompt {prompt.id!r} of task {self.task!r}: {error}") from error
        return replace(prompt, text=text)


def join_turns(prompts: Sequence[Prompt], answers: Answers) -> list[Prompt]:
    """The same without a template: turns and answers as paragraphs."""
    return [
        replace(
            prompt, text="\n\n".join(message["content"] for message in _messages(prompt, answers.get(prompt.id, ())))
        )
        for prompt in prompts
    ]


def _messages(prompt: Prompt, answers: Sequence[str]) -> list[dict[str, str]]:
    turns = prompt.turns or (prompt.text,)
    found = [{"role": role, "content": text} for role, text in prompt.before]
    for turn, answer in zip(turns, answers, strict=False):
        found += [{"role": "user", "content": turn}, {"role": "assistant", "content": answer}]
    return [*found, {"role": "user", "content": turns[len(answers)]}]


def require_chat_template(task: str, pair: PairFiles) -> ChatTemplate:
    """The chat template of a pair's target. Raises PromptError if it has none, which `task` needs."""
    if pair.random_weights:
        raise PromptError(
            f"task {task!r} needs a chat template; pair {pair.name!r} has random weights and no template: leave one out"
        )
    template = of_tokenizer(hub.tokenizer(pair.target, pair.target_revision), pair.target)
    if not template.text:
        raise PromptError(
            f"the tokenizer of {pair.target} has no chat template, which task {task!r} needs: "
            "take an instruction-tuned model, or a row of the task without `chat`"
        )
    return template
