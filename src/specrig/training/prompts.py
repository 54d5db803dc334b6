"""The requests that the target answers, so that it writes the text from which its draft and heads learn. No torch here.

Requests come from files, from data sets on the hub, or from the target itself (`training.prompts`,
`training.conversations`). None of them is a prompt of the study's evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specrig.models.chat_template import ChatTemplate, ChatTemplateError
from specrig.seeds import number
from specrig.tasks.shapes import Message, chat_of
from specrig.tasks.sources import PromptError, Row, hub_rows, read_rows
from specrig.tasks.wording import normalized
from specrig.training.prompt_sources import PromptSource


@dataclass(frozen=True, slots=True)
class Request:
    """What a user may ask. text: for a target that continues texts; turns: for one with a chat template, `role` and
    `content` each.
    """

    text: str
    turns: tuple[dict[str, str], ...]
    location: str
    """Where it is from, for error messages."""

    def texts(self) -> set[str]:
        """Everything in it that could be a prompt of an evaluation, as `normalized` compares it."""
        return {normalized(self.text), *(normalized(turn["content"]) for turn in self.turns if turn["role"] == "user")}


def requests_of(source: PromptSource, seed: int) -> list[Request]:
    """The requests of a file or data set, each once and none empty, in an order that depends on their wording and the seed
    alone.

    Raises PromptError for rows that cannot be read, and where there are none.
    """
    requests: dict[str, Request] = {}
    for _, location, row in _rows(source):
        if (request := _from_row(row, location)) is not None:
            requests.setdefault(normalized(request.text), request)
    if not requests:
        raise PromptError(f"{source.source}: no prompt in it; name another file or data set in training.prompts")
    return [requests[text] for text in sorted(requests, key=lambda text: number(seed, text))]


def asks_in_chat(chat: bool | str, template: ChatTemplate, target: Path) -> bool:
    """Whether prompts are put into the chat template. Raises PromptError where they must be and there is none."""
    if chat is True and not template.text:
        raise PromptError(
            f"training.chat is true and the tokenizer of {target} has no chat template; say auto or false"
        )
    return bool(template.text) and chat is not False


def rendered(request: Request, template: ChatTemplate) -> str:
    """The request in the chat template of the target's tokenizer."""
    try:
        return template.render(request.turns)
    except ChatTemplateError as error:
        raise PromptError(
            f"{request.location}: {error.reason}; change them (some templates want no system line, or users and "
            "assistants in turn), or say training.chat: false"
        ) from error


def _rows(source: PromptSource) -> Iterator[Row]:
    if source.kind == "hub":
        return hub_rows(source.source, source.config, source.split, source.revision)
    return read_rows(Path(source.source).expanduser())


def _from_row(row: dict[str, Any], location: str) -> Request | None:
    """A row's `prompt`, or of its chat what a task would ask (`shapes.chat_of`); None where it is empty."""
    prompt = row.get("prompt")
    before: Sequence[Message] = ()
    texts: Sequence[str] = ()
    if isinstance(prompt, str) and prompt:
        texts = (prompt,)
    elif (chat := chat_of(row, location)) is not None:
        before, texts = chat.asked(1)
    elif not isinstance(prompt, str):
        raise PromptError(
            f"{location}: no prompt to train on; a row needs `prompt` (a text), `turns` (a list of texts), or `messages` or "
            f"`conversations` (each with who speaks and a text); this one has {', '.join(map(repr, row)) or 'nothing'}"
        )
    if not texts or not texts[0].strip():
        return None
    turns = tuple({"role": role, "content": text} for role, text in (*before, ("user", texts[0])))
    return Request(texts[0], turns, location)
