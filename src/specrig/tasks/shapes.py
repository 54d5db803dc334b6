"""The shapes in which people keep chats, recognised in a row: `messages`, ShareGPT's `conversations`, rows of OpenAI's batch
files, and the `turns` of Spec-Bench and MT-Bench. No torch here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from specrig.tasks.sources import FIELDS, PromptError

Message = tuple[str, str]
"""(`system`, `user` or `assistant`; what it says)"""
ROLES = {
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bing", "bard", "model", "bot"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
}
"""What a message calls who speaks -> the role in a chat template."""
IDS = ("id", "question_id", "custom_id", "prompt_id", "task_id")
"""The fields with a row's id, where a task's row does not say which."""
LEAVE_OUT = "take the row out (a task may choose others with `where`)"


@dataclass(frozen=True, slots=True)
class Chat:
    """A row's messages. request: whether it is one request with its history; else a conversation, of which the target
    answers the first turns.
    """

    messages: Sequence[Message]
    request: bool

    def asked(self, turns: int) -> tuple[tuple[Message, ...], tuple[str, ...]]:
        """(messages in front, what the user then says): one turn, or all turns of the user where `turns` is above 1.

        Nothing where the user says nothing.
        """
        users = [index for index, (role, _) in enumerate(self.messages) if role == "user"]
        if not users:
            return (), ()
        if turns == 1 and self.request:
            return tuple(self.messages[: users[-1]]), (self.messages[users[-1]][1],)
        system = tuple(message for message in self.messages[: users[0]] if message[0] == "system")
        texts = tuple(self.messages[index][1] for index in users)
        return system, texts if turns > 1 else texts[:1]


def chat_of(row: Mapping[str, Any], location: str) -> Chat | None:
    """The chat in a row, which is empty where its field is; None for a row of another shape. Raises PromptError for
    images and tools.
    """
    body = row.get("body")
    if isinstance(body, dict):  # of OpenAI's batches
        asked = body.get("prompt")
        return Chat([("user", asked)], request=True) if isinstance(asked, str) else chat_of(body, location)
    empty = False
    for field in FIELDS:
        turns = listed(row.get(field))
        if field != "prompt" and isinstance(turns, list) and turns and all(isinstance(turn, str) for turn in turns):
            return Chat([("user", text) for text in turns], request=False)
        if is_messages(turns):
            if tools := next((name for name in ("tools", "functions") if row.get(name)), None):
                raise PromptError(f"{location}: the request has {tools}, which no method is measured with; {LEAVE_OUT}")
            return Chat(messages_of(turns, location), request=field in ("prompt", "messages"))
        empty = empty or (field in row and turns in ([], None))
    return Chat([], request=True) if empty else None


def listed(value: Any) -> Any:
    """A list of messages that a cell of a table holds as JSON text, as a list; every other value as it is."""
    if isinstance(value, str) and value.lstrip().startswith("[{"):
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            return value
        return found if is_messages(found) else value
    return value


def is_messages(value: Any) -> TypeGuard[list[Mapping[str, Any]]]:
    """Whether a value is a list of messages, each of which says who speaks."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(message, dict) and ("role" in message or "from" in message) for message in value)
    )


def messages_of(rows: Sequence[Mapping[str, Any]], location: str) -> list[Message]:
    """A list of messages in their roles. Raises PromptError for another role, and for what is no text."""
    messages = []
    for number, message in enumerate(rows, 1):
        speaker, place = str(message.get("role", message.get("from"))), f"{location}: message {number}"
        role = ROLES.get(speaker.lower())
        if role is None or message.get("tool_calls") or message.get("function_call"):
            what = f"is from {speaker!r}" if role is None else "calls a tool"
            raise PromptError(f"{place} {what}: only texts of system, user and assistant are measured; {LEAVE_OUT}")
        messages.append((role, _text(message.get("content", message.get("value")), place)))
    return messages


def _text(content: Any, place: str) -> str:
    """The text of a message, whose content may be a list of parts."""
    if isinstance(content, str):
        return content
    texts = []
    for part in content if isinstance(content, list) else [content]:
        text = part if isinstance(part, str) else part.get("text") if isinstance(part, dict) else None
        if not isinstance(text, str):
            kind = part.get("type", "an object") if isinstance(part, dict) else json.dumps(part)[:40]
            raise PromptError(f"{place} holds {kind}, no text: only texts are measured; {LEAVE_OUT}")
        texts.append(text)
    return "\n".join(texts)
