"""What a target writes, text by text: answers to requests that are there, and conversations whose requests it writes
itself.

Each function is a script of `training.generate`: it yields what is to be written next and returns the finished texts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from specrig.training.generate import Piece, Script
from specrig.training.prompt_sources import OwnRequests
from specrig.training.self_requests import (
    LOOP,
    OPENINGS,
    SYSTEM_LINES,
    Message,
    Template,
    is_request,
    looping,
)

SYSTEM_SHARE = 0.15
"""Share of conversations with one of `SYSTEM_LINES`."""
SHORTEST_ANSWER = 24
"""Tokens that an answer must have room for."""
EVERY = 16
"""An answer is looked at for repetition every so many tokens."""


@dataclass(frozen=True, slots=True)
class Written:
    """A text that a target wrote, or answered."""

    temperature: float
    """Of its answers."""
    requests: tuple[str, ...]
    """What its users ask."""
    tokens: list[int]
    spans: list[tuple[int, int]]
    """From where to where its tokens are answers of the target, ends of a text included."""


def answer(
    requests: tuple[str, ...],
    prompt: list[int],
    width: int,
    temperature: float,
    ends: Callable[[list[int]], bool],
) -> Script[Written | None]:
    """The target's answer to a prompt, in a text of at most `width` tokens. ends: see `Piece`."""
    written = yield Piece(prompt, width - len(prompt), ends, temperature)
    whole = prompt + written
    return Written(temperature, requests, whole, [(len(prompt), len(whole))])


def ends_at(eos: Sequence[int]) -> Callable[[list[int]], bool]:
    """Whether an answer is at its end: at an end token, or where it does nothing but repeat itself."""
    return lambda tokens: tokens[-1] in eos or (len(tokens) % EVERY == 0 and looping(tokens[-4 * LOOP :]))


class Conversations:
    """Conversations that a chat target writes, both sides of them."""

    def __init__(self, template: Template, eos: Sequence[int], width: int, settings: OwnRequests) -> None:
        """width: most tokens of a text."""
        self.template, self.eos, self.width, self.settings = template, eos, width, settings
        vocabulary = template.tokenizer.get_vocab()
        self._end = vocabulary.get(template.end)

    def conversation(self, chance: random.Random, temperature: float) -> Script[Written | None]:
        """A conversation of one or several turns; None where the target asks nothing usable. temperature: of the
        answers.
        """
        messages: list[Message] = []
        line = chance.choice(SYSTEM_LINES)
        if chance.random() < SYSTEM_SHARE and self.template.takes(line):
            messages.append({"role": "system", "content": line})
        opening = chance.choice(OPENINGS) if chance.random() < self.settings.openings else ""
        text: Written | None = None
        question = yield from self._request(messages, opening)
        while question is not None:
            messages.append({"role": "user", "content": question})
            answered = yield from self._answer(messages, temperature, text)
            text = answered or text
            if answered is None or answered.tokens[-1] not in self.eos or chance.random() >= self.settings.turns:
                break
            messages.append({"role": "assistant", "content": self._last_answer(answered)})
            question = yield from self._request(messages, "")
        return text

    def _request(self, messages: list[Message], opening: str) -> Generator[Piece, list[int], str | None]:
        """A request that the target writes behind `opening`; None where it is none."""
        context = self.template.tokens(self.template.before_user(messages) + opening)
        room = min(self.settings.tokens, self.width - SHORTEST_ANSWER - len(context))
        if room < FEWEST:
            return None
        settings = self.settings
        written = yield Piece(context, room, self._ends_request, settings.temperature, settings.top_p)
        text, end, _ = self.template.text(written).partition(self.template.end)
        request = (opening + text).strip()
        return request if end and is_request(request, self.template.special) else None

    def _ends_request(self, tokens: list[int]) -> bool:
        if self._end is not None:
            return tokens[-1] == self._end or tokens[-1] in self.eos
        return tokens[-1] in self.eos or self.template.end in self.template.text(tokens[-FEWEST:])

    def _answer(
        self, messages: list[Message], temperature: float, before: Written | None
    ) -> Generator[Piece, list[int], Written | None]:
        """The answer to the last message; None where there is no room for it. before: the conversation so far."""
        context = self.template.tokens(self.template.before_answer(messages))
        room = self.width - len(context)
        if room < SHORTEST_ANSWER:
            return None
        written = yield Piece(context, room, ends_at(self.eos), temperature)
        # Earlier answers count where the template and the tokenizer leave them as they were written.
        spans = before.spans if before is not None and context[: len(before.tokens)] == before.tokens else []
        requests = tuple(message["content"] for message in messages if message["role"] == "user")
        whole = context + written
        return Written(temperature, requests, whole, [*spans, (len(context), len(whole))])

    def _last_answer(self, text: Written) -> str:
        """The last answer of a text, without its end token."""
        start, end = text.spans[-1]
        return self.template.text([token for token in text.tokens[start:end] if token not in self.eos])


FEWEST = 8
"""Tokens that a request must have room for; and the last tokens in which its end is looked for."""
