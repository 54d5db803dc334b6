"""Any running server with OpenAI's completions API (`servers:`): one that speculates against one that does not.

Requests carry token ids and get them back (`return_token_ids`, vLLM 0.10.2 and later; llama.cpp's server gives
`tokens`). Acceptance is the server's own count, from its `/metrics` page, at batch size 1.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from specrig.cell import Cell
from specrig.engines.base import EngineError
from specrig.engines.http import counters
from specrig.engines.http.client import Client, Completion, HttpEngine
from specrig.models.endpoint import Endpoint, endpoint_of

SETTLE_S = 2.0
"""Longest lag of a server's counters behind its answers."""


class Server(HttpEngine):
    """One request a prompt, streamed; method and baseline are two endpoints, so they alternate prompt by prompt."""

    name = "server"
    loads_pairs = False

    @classmethod
    def refuses(cls, cell: Cell) -> str | None:
        """Nothing: a server runs what it was started with."""
        return None

    def described(self, server: Endpoint) -> dict[str, Any]:
        """Its version and fields."""
        client = self.client(server.url, server)
        version = client.get_or_none("/version")
        try:
            about = version.json() if version else {}
        except ValueError:
            about = {}
        return {"url": client.url, "model": server.model, "fields": server.fields, "version": about.get("version")}

    def request_completion(
        self, cell: Cell, prompt: Sequence[int], *, max_new_tokens: int, seed: int, alone: bool
    ) -> Completion:
        """See `HttpEngine`."""
        server, client = self._served(cell)
        body = {
            "model": server.model or client.model,
            "prompt": list(prompt),
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
        return completion(self, cell, client, body, alone=alone)

    def counters(self, cell: Cell) -> counters.Counters:
        """See `HttpEngine`."""
        return self._served(cell)[1].counters()

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


def completion(engine: HttpEngine, cell: Cell, client: Client, body: dict[str, Any], *, alone: bool) -> Completion:
    """`complete`; where the request runs alone, with what the cell's server counted meanwhile."""
    before = engine.counters(cell) if alone else None
    reply = complete(client, body)
    if before is not None:
        after = settled(engine.counters, cell, before, len(reply.tokens))
        reply.counts = counters.counts(before, after, len(reply.tokens), len(reply.arrivals))
    return reply


def complete(client: Client, body: dict[str, Any]) -> Completion:
    """Stream one completion. Raises EngineError unless ids, finish reason and usage are there and agree."""
    reply = Completion()
    finish: str | None = None
    usage: dict[str, Any] = {}
    unnamed = 0
    for seconds, event in client.stream("/v1/completions", body):
        usage = event.get("usage") or usage
        for choice in event.get("choices") or []:
            ids = token_ids(choice)
            unnamed += ids is None and bool(choice.get("text"))
            reply.tokens += ids or []
            reply.note_arrival(seconds)
            finish = choice.get("finish_reason") or finish
    if unnamed:
        raise EngineError(
            f"{client.url}: it streams text without token ids, and text tokenized again is no count; use a server that "
            "returns them (vLLM 0.10.2 or later, llama.cpp)"
        )
    if finish not in ("stop", "length"):
        raise EngineError(f"{client.url}: the answer ended with finish_reason {finish!r}, not with `stop` or `length`")
    reply.stop = "eos" if finish == "stop" else "length"
    for key, ours in (("completion_tokens", len(reply.tokens)), ("prompt_tokens", len(body["prompt"]))):
        if usage.get(key, ours) != ours:
            raise EngineError(
                f"{client.url}: its usage says {usage[key]} {key.replace('_', ' ')}, its stream and request {ours}"
            )
    return reply


def token_ids(choice: dict[str, Any]) -> list[int] | None:
    """The new ids of a streamed choice: vLLM's `token_ids`, llama.cpp's `tokens`, or logprobs' `token_id:5`, or None."""
    for key in ("token_ids", "tokens"):
        if isinstance(choice.get(key), list):
            return [int(token) for token in choice[key]]
    named = (choice.get("logprobs") or {}).get("tokens")
    if named and all(str(token).startswith("token_id:") for token in named):
        return [int(str(token).removeprefix("token_id:")) for token in named]
    return None
