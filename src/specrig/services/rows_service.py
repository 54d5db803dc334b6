"""The HTTP face of draft and target service: rows come in messages, and are run in batches over all messages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any, Protocol

from fastapi import FastAPI, Request
from fastapi.responses import Response

from specrig.engines.http import wire
from specrig.engines.http.wire import Answer, Ask, Passes
from specrig.runtime.model import CachedModel
from specrig.services.app import RefusedError, Sample, body_of, make_app
from specrig.services.batching import Batcher, FullError
from specrig.services.sessions import Sessions


class Work(Protocol):
    """What a service does with a batch: `draft.Draft` and `target.Target`."""

    name: str
    model: CachedModel
    sessions: Sessions

    def check(self, asks: Sequence[Ask]) -> None:
        """Raise WireError for a row that cannot be run."""

    def step(self, asks: Sequence[Ask], half: bool) -> list[Answer]:
        """Run a batch."""


def rows_app(
    work: Work,
    *,
    batch: int,
    queue: int,
    key: str | None,
    about: dict[str, Any] | None = None,
    thread: ThreadPoolExecutor | None = None,
) -> FastAPI:
    """The application of a draft or target service.

    batch: most rows in a pass. queue: most rows that wait; with more the service answers 503 and Retry-After. about:
    more for `/health`.
    thread: runs the model, so that nothing else locks it; it should be the one that loaded it (see `services.model`).
    """
    pool = thread or ThreadPoolExecutor(1)
    passes: Passes = {}  # those that no answer has told yet

    def run(items: list[tuple[Ask, bool]]) -> tuple[list[Answer], Passes]:
        answers: list[Answer | None] = [None] * len(items)
        for half in {flag for _, flag in items}:
            chosen = [at for at, (_, flag) in enumerate(items) if flag == half]
            for at, answer in zip(chosen, work.step([items[at][0] for at in chosen], half), strict=True):
                answers[at] = answer
        made = work.model.pass_totals()
        work.model.watch.clear()
        return [answer for answer in answers if answer is not None], made

    async def run_aside(items: list[tuple[Ask, bool]]) -> list[Answer]:
        answers, made = await asyncio.get_running_loop().run_in_executor(pool, run, items)
        for width, (calls, seconds) in made.items():
            before = passes.get(width, (0, 0.0))
            passes[width] = before[0] + calls, before[1] + seconds
        return answers

    batcher = Batcher(run_aside, min(batch, work.sessions.rows), queue)

    @contextlib.asynccontextmanager
    async def works() -> AsyncIterator[None]:
        task = asyncio.create_task(batcher.work())
        yield
        task.cancel()
        pool.shutdown(wait=False)

    def health() -> dict[str, Any]:
        sizes = {"batch": batcher.size, "sessions": work.sessions.rows, "context": work.sessions.context}
        return {**(about or {}), "vocabulary_size": work.model.vocab_size, **sizes, "open_sessions": len(work.sessions)}

    def samples() -> Iterable[Sample]:
        yield f"specrig:{work.name}_rows_total", "", "counter", batcher.items
        yield f"specrig:{work.name}_batches_total", "", "counter", batcher.batches
        yield f"specrig:{work.name}_rows_waiting", "", "gauge", batcher.waiting
        yield f"specrig:{work.name}_sessions", "", "gauge", len(work.sessions)

    app = make_app(work.name, health, samples, works, key)

    @app.post(wire.PATH)
    async def rows(request: Request) -> Response:
        try:
            asks, half, ended = wire.unpack_asks(await body_of(request))
            work.check(asks)
        except wire.WireError as error:
            raise RefusedError(
                422, str(error), "send rows as engines/http/wire.py lays them out", where="body"
            ) from error
        if batcher.waiting + len(asks) > queue:
            raise RefusedError(
                503, f"{batcher.waiting} rows wait already, {queue} may", "come again later, with fewer rows", retry_s=1
            )
        work.sessions.end(ended)
        try:
            answers = await asyncio.gather(*[batcher.submit((ask, half)) for ask in asks])
        except FullError as error:
            raise RefusedError(503, str(error), "come again later", retry_s=1) from error
        packed = wire.pack_answers(answers, passes)
        passes.clear()
        return Response(packed, media_type=wire.MEDIA_TYPE)

    return app


def vocabulary_digest(tokens: dict[str, int]) -> str:
    """A digest of which token has which id: equal for models of one vocabulary."""
    named = "\n".join(f"{number} {token!r}" for token, number in sorted(tokens.items(), key=lambda item: item[1]))
    return sha256(named.encode()).hexdigest()[:16]
