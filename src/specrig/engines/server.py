"""Any running server with OpenAI's completions or chat API (`servers:`): one that speculates against one that does not.

Requests carry token ids and get them back (`return_token_ids`, vLLM 0.10.2 and later; llama.cpp's server returns
them where `fields` have `verbose` and `return_tokens`). Acceptance is the server's own count, from its `/metrics` page, at batch size 1.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from specrig.cell import Cell
from specrig.engines.base import EngineError
from specrig.engines.http import counters
from specrig.engines.http.client import Completion, HttpEngine
from specrig.http_client import Client
from specrig.models.chat_template import PROBE, of_tokenizer
from specrig.models.endpoint import Endpoint, endpoint_of
from specrig.models.gate import vocab_size
from specrig.models.pair import PairFiles

TEXTS = ("text", "content", "reasoning", "reasoning_content")
"""Names under which a streamed choice, or its `delta`, holds text."""
SETTLE_S = 2.0
"""Longest lag of a server's counters behind its answers."""


class Server(HttpEngine):
    """One request a prompt, streamed; method and baseline are two endpoints, so they alternate prompt by prompt."""

    name = "server"
    loads_pairs = False

    def __init__(self, pair: PairFiles, *, device: str = "cpu", threads: int | None = None) -> None:
        super().__init__(pair, device=device, threads=threads)
        self._texts: dict[tuple[int, ...], str] = {}

    @classmethod
    def refuses(cls, cell: Cell) -> str | None:
        """Nothing: a server runs what it was started with."""
        return None

    def described(self, server: Endpoint) -> dict[str, Any]:
        """Its version and fields."""
        client = self.client(server.url, server)
        about = {"url": client.url, "endpoint": server.endpoint, "model": server.model, "fields": server.fields}
        return about | {"version": client.get_json("/version").get("version")}

    def encode(self, text: str) -> list[int]:
        """See `Engine`; keeps the text, which a chat endpoint is sent."""
        tokens = super().encode(text)
        self._texts[tuple(tokens)] = text
        return tokens

    def request_completion(
        self, cell: Cell, prompt: Sequence[int], *, max_new_tokens: int, seed: int, alone: bool
    ) -> Completion:
        """See `HttpEngine`."""
        server, client = self._served(cell)
        chat = server.endpoint == "chat"
        body = {
            "model": server.model or client.model,
            **({"messages": self._messages(prompt)} if chat else {"prompt": list(prompt)}),
            "max_tokens": max_new_tokens,
            "temperature": cell.temperature,
            "seed": seed,
            # Whole distributions: some servers filter them where a request does not say so.
            **({"top_p": 1, "top_k": -1} if cell.temperature > 0 else {}),
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            **server.fields,
        }
        reply = completion(self, cell, client, body, prompt_tokens=len(prompt), alone=alone)
        if strange := [token for token in reply.tokens if not 0 <= token < self._vocabulary]:
            raise EngineError(
                f"{client.url}: it answered the token {strange[0]}, the target of pair {self.pair.name} has "
                f"{self._vocabulary}: it serves another model"
            )
        return reply

    @cached_property
    def _vocabulary(self) -> int:
        return vocab_size(self.pair.target, self.pair.target_revision)

    def _messages(self, prompt: Sequence[int]) -> list[dict[str, str]]:
        """The one message of a prompt: its text without what the target's chat template puts around a user's.

        Raises EngineError for a prompt that the template wrote from more than one turn.
        """
        text = self._texts.get(tuple(prompt)) or self.decode(prompt)
        template = of_tokenizer(self.tokenizer, self.pair.target)
        if template.text:
            before, after = template.render([{"role": "user", "content": PROBE}]).split(PROBE)
            if text.startswith(before) and text.endswith(after):
                text = text.removeprefix(before).removesuffix(after)
            elif after.strip() and text.rstrip().endswith(after.strip()):
                raise EngineError(
                    "`endpoint: chat` sends one message of a user, and this prompt is a chat with a system turn or several "
                    "turns: use `endpoint: completions`, or a task without them"
                )
        return [{"role": "user", "content": text}]

    def counters(self, cell: Cell) -> counters.Counters:
        """See `HttpEngine`."""
        return counters.read(self._served(cell)[1])

    def _served(self, cell: Cell) -> tuple[Endpoint, Client]:
        server = endpoint_of(cell, self.pair.servers)
        if server is None:
            raise EngineError(f"no entry of `servers:` runs {cell.method} at k = {cell.k} on pair {cell.pair}")
        return server, self.client(server.url, server)


def settled(
    read: Callable[[Cell], counters.Counters], cell: Cell, before: counters.Counters, tokens: int
) -> counters.Counters:
    """The counters once they show all `tokens` of the answers. Raises EngineError where others use the server too."""
    generated = (counters.GENERATED, -1)
    deadline = time.monotonic() + SETTLE_S
    while True:
        after = read(cell) or before
        grown = after[generated] - before[generated]
        if grown == tokens or generated not in after:
            return after
        if grown > tokens:
            raise EngineError(
                f"the server of {cell.name} generated {grown} tokens where {tokens} were requested: others use it too, "
                "so neither its counters nor its times are this study's; measure a server that is left alone"
            )
        if time.monotonic() > deadline:
            raise EngineError(
                f"the counters of {cell.name}'s server still show {grown} of {tokens} tokens after {SETTLE_S:g} s"
            )
        time.sleep(0.01)


def completion(
    engine: HttpEngine, cell: Cell, client: Client, body: dict[str, Any], *, prompt_tokens: int, alone: bool
) -> Completion:
    """`complete`; where the request runs alone, with what the cell's server counted meanwhile."""
    before = engine.counters(cell) if alone else None
    reply = complete(client, body, prompt_tokens, patient=alone)
    if before is not None:
        after = settled(engine.counters, cell, before, len(reply.tokens))
        reply.counts = counters.counts(before, after, len(reply.tokens), reply.events)
    return reply


def complete(client: Client, body: dict[str, Any], prompt_tokens: int, *, patient: bool = False) -> Completion:
    """Stream one completion, of a chat where the body holds messages. patient: where the server is busy, ask again when
    it says. Raises EngineError unless ids and finish reason are there, and usage, where there is one, agrees.
    """
    reply = Completion()
    finish: str | None = None
    usage: dict[str, Any] = {}
    unnamed = 0
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    for seconds, event in client.stream(path, body, patient=patient):
        try:
            usage = dict(event.get("usage") or usage)
            for choice in event.get("choices") or []:
                if choice.get("index"):
                    raise EngineError(
                        f"{client.url}: it gives several answers (choices) to a request; leave `n` out of `fields`"
                    )
                ids = token_ids(choice, event)
                delta = choice.get("delta") or {}
                unnamed += ids is None and any(each.get(name) for each in (choice, delta) for name in TEXTS)
                reply.tokens += ids or []
                reply.note_arrival(seconds)
                finish = choice.get("finish_reason") or finish
        except (AttributeError, TypeError, ValueError) as error:
            raise EngineError(f"{client.url}: an event is not of OpenAI's form: {str(event)[:200]}") from error
    if unnamed:
        raise EngineError(
            f"{client.url}: it streams text without token ids, and text tokenized again is no count; use a server that "
            "returns them (vLLM 0.10.2 or later, llama.cpp with `fields: {verbose: true, return_tokens: true}`)"
        )
    if finish is None:
        raise EngineError(f"{client.url}: the stream ended without a finish_reason; has the server died?")
    if finish not in ("stop", "length"):
        raise EngineError(f"{client.url}: the answer ended with finish_reason {finish!r}, not with `stop` or `length`")
    reply.stop = "eos" if finish == "stop" else "length"
    counted = usage.get("completion_tokens")
    if counted is not None and counted != len(reply.tokens):
        raise EngineError(f"{client.url}: its usage says {counted} completion tokens, its stream {len(reply.tokens)}")
    counted = usage.get("prompt_tokens")
    if counted is not None and counted != prompt_tokens:
        prompts = f"its usage says {counted} prompt tokens, the study's prompt has {prompt_tokens}"
        if "messages" not in body:
            raise EngineError(f"{client.url}: {prompts}")
        reply.notes.append("answers are to other prompts than the study's: the server's chat template is another")
    if (usage.get("prompt_tokens_details") or {}).get("cached_tokens"):
        reply.notes.append(
            "answers began with a prompt that the server had cached, so times to the first token lack it"
        )
    return reply


def token_ids(choice: dict[str, Any], event: dict[str, Any]) -> list[int] | None:
    """The new ids of a streamed choice, or None: vLLM's `token_ids`, llama.cpp's `tokens` in `__verbose`, or in logprobs
    its `id` or `token_id:5`.
    """
    for listed in (choice.get("token_ids"), choice.get("tokens"), (event.get("__verbose") or {}).get("tokens")):
        if isinstance(listed, list):
            return [int(token) for token in listed]
    logprobs = choice.get("logprobs") or {}
    entries = logprobs.get("content") or []
    if entries and all("id" in entry for entry in entries):
        return [int(entry["id"]) for entry in entries]
    named = logprobs.get("tokens") or [entry.get("token") for entry in entries]
    if named and all(str(token).startswith("token_id:") for token in named):
        return [int(str(token).removeprefix("token_id:")) for token in named]
    return None
