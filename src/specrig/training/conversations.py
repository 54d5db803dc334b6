"""What a target writes, text by text: answers to requests that are there, and conversations whose requests it writes
itself.

Each function is a script of `training.generate`: it yields what is to be written next and returns the finished texts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from specrig.training.generate import Piece, Script
from specrig.training.prompt_sources import SELF, SELF_LONG, OwnRequests
from specrig.training.self_requests import (
    ABOUT,
    ARTICLES,
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
SHORTEST_ARTICLE = 40
"""Words of an article that requests are made about."""
QUESTION = 48
"""Longest end of a request about an article, in tokens."""
EVERY = 16
"""An answer is looked at for repetition every so many tokens."""


@dataclass(frozen=True, slots=True)
class Written:
    """A text that a target wrote, or answered."""

    kind: str
    """A task of the corpus, `file`, `hub`, `self` or `self_long`."""
    temperature: float
    """Of its answers."""
    requests: tuple[str, ...]
    """What its users ask."""
    tokens: list[int]
    spans: list[tuple[int, int]]
    """From where to where its tokens are answers of the target, ends of a text included."""


def answer(
    kind: str,
    requests: tuple[str, ...],
    prompt: list[int],
    width: int,
    temperature: float,
    ends: Callable[[list[int]], bool],
) -> Script[list[Written]]:
    """The target's answer to a prompt, in a text of at most `width` tokens. ends: see `Piece`."""
    written = yield Piece(prompt, width - len(prompt), ends, temperature)
    whole = prompt + written
    return [Written(kind, temperature, requests, whole, [(len(prompt), len(whole))])]


def ends_at(eos: Sequence[int], *, loops: bool) -> Callable[[list[int]], bool]:
    """Whether an answer is at its end: at an end token. loops: also where it does nothing but repeat itself."""
    return lambda tokens: tokens[-1] in eos or (loops and len(tokens) % EVERY == 0 and looping(tokens[-4 * LOOP :]))


class Conversations:
    """Conversations that a chat target writes, both sides of them."""

    def __init__(self, template: Template, eos: Sequence[int], width: int, settings: OwnRequests) -> None:
        """width: most tokens of a text."""
        self.template, self.eos, self.width, self.settings = template, eos, width, settings
        vocabulary = template.tokenizer.get_vocab()
        self._end = vocabulary.get(template.end)

    def short(self, chance: random.Random, temperature: float) -> Script[list[Written]]:
        """A conversation of one or several turns. temperature: of the answers."""
        messages: list[Message] = []
        line = chance.choice(SYSTEM_LINES)
        if chance.random() < SYSTEM_SHARE and self.template.takes(line):
            messages.append({"role": "system", "content": line})
        opening = chance.choice(OPENINGS) if chance.random() < self.settings.openings else ""
        request = yield from self._request(messages, opening)
        if request is None:
            return []
        return (yield from self._converse(SELF, messages, request, chance, temperature))

    def long(self, chance: random.Random, temperature: float) -> Script[list[Written]]:
        """An article, and a conversation about it."""
        request = yield from self._request([], chance.choice(ARTICLES))
        if request is None:
            return []
        room = int(self.settings.article * self.width)
        first = yield from self._answer(SELF, [{"role": "user", "content": request}], temperature, room)
        if first is None:
            return []
        article = self._last_answer(first)
        if first.tokens[-1] not in self.eos:
            article = article[: max(article.rfind(end) for end in ".!?") + 1]
        article = article.strip()
        form, open_end = chance.choice(ABOUT)
        if len(article.split()) < SHORTEST_ARTICLE:
            return [first]
        about: str | None = form.replace("{}", article)
        if open_end:
            about = yield from self._request([], str(about), QUESTION)
        if about is None:
            return [first]
        return [first, *(yield from self._converse(SELF_LONG, [], about, chance, temperature))]

    def _converse(
        self, kind: str, messages: list[Message], request: str, chance: random.Random, temperature: float
    ) -> Script[list[Written]]:
        """The answer to a request, and perhaps further turns; a list of one text or none."""
        found: Written | None = None
        question: str | None = request
        while question is not None:
            messages = [*messages, {"role": "user", "content": question}]
            answered = yield from self._answer(kind, messages, temperature, self.width, found)
            found = answered or found
            if answered is None or answered.tokens[-1] not in self.eos or chance.random() >= self.settings.turns:
                break
            messages.append({"role": "assistant", "content": self._last_answer(answered)})
            question = yield from self._request(messages, "")
        return [found] if found else []

    def _request(
        self, messages: list[Message], opening: str, longest: int | None = None
    ) -> Generator[Piece, list[int], str | None]:
        """A request that the target writes behind `opening`; None where it is none. longest: most tokens to write."""
        context = self.template.tokens(self.template.before_user(messages) + opening)
        most = self.settings.tokens if longest is None else longest
        room = min(most, self.width - SHORTEST_ANSWER - len(context))
        if room < FEWEST:
            return None
        settings = self.settings
        written = yield Piece(context, room, self._ends_request, settings.temperature, settings.top_p)
        text, end, _ = self.template.text(written).partition(self.template.end)
        whole = (opening + text).strip()
        judged = text if longest else whole  # of a request about an article what the target wrote
        return whole if end and is_request(judged, self.template.special) else None

    def _ends_request(self, tokens: list[int]) -> bool:
        if self._end is not None:
            return tokens[-1] == self._end or tokens[-1] in self.eos
        return tokens[-1] in self.eos or self.template.end in self.template.text(tokens[-FEWEST:])

    def _answer(
        self, kind: str, messages: list[Message], temperature: float, longest: int, before: Written | None = None
    ) -> Generator[Piece, list[int], Written | None]:
        """The answer to the last message; None where there is no room for it. before: the conversation so far."""
        context = self.template.tokens(self.template.before_answer(messages))
        room = min(longest, self.width - len(context))
        if room < SHORTEST_ANSWER:
            return None
        written = yield Piece(context, room, ends_at(self.eos, loops=True), temperature)
        # Earlier answers count where the template and the tokenizer leave them as they were written.
        spans = before.spans if before is not None and context[: len(before.tokens)] == before.tokens else []
        requests = tuple(message["content"] for message in messages if message["role"] == "user")
        whole = context + written
        return Written(kind, temperature, requests, whole, [*spans, (len(context), len(whole))])

    def _last_answer(self, text: Written) -> str:
        """The last answer of a text, without its end token."""
        start, end = text.spans[-1]
        return self.template.text([token for token in text.tokens[start:end] if token not in self.eos])


FEWEST = 8
"""Tokens that a request must have room for; and the last tokens in which its end is looked for."""
