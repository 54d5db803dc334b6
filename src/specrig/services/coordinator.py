"""Requests decoded side by side: the rounds of `decoding.loop`, with draft and target in services."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from specrig.decoding.loop import stop_at
from specrig.decoding.sampling import Sampler
from specrig.http_client import ServerError
from specrig.services.app import Sample
from specrig.services.batching import Batcher, FullError
from specrig.services.client import RemoteSession, RowsClient
from specrig.services.protocol import RowOutput, RowRequest

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0
"""How long a draft service that failed is left alone, doubled with each failure."""


class BatchedClient:
    """A service's client for many requests: their rows go there in one message after the other.

    `ended` collects the sessions of requests that are over; the next message names them.
    """

    def __init__(self, client: RowsClient, batch: int, queue: int, *, half: bool = False) -> None:
        self.client, self.half = client, half
        self.batcher: Batcher[RowRequest, RowOutput] = Batcher(self._send, batch, queue)
        self.ended: list[int] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=client.url)

    async def run(self, session: RemoteSession, tokens: Sequence[int], **more: object) -> RowOutput:
        """The output for a text, which is sent whole where the service does not hold it. Raises ServerError."""
        for _ in range(3):
            output = await self.batcher.submit(session.request(tokens, **more))
            if session.update(tokens, output):
                return output
        raise ServerError(f"{self.client.url}: it forgets texts at once: start it with more --sessions")

    async def _send(self, rows: list[RowRequest]) -> list[RowOutput]:
        ended, self.ended = self.ended, []
        send = lambda: self.client.run(rows, half=self.half, ended=ended)[0]  # noqa: E731
        return await asyncio.get_running_loop().run_in_executor(self._thread, send)


class DraftClient(BatchedClient):
    """A draft service that may fail. It is then left alone for a while, and requests go on without drafts."""

    def __init__(
        self, client: RowsClient, batch: int, queue: int, *, check: Callable[[], int], half: bool = False
    ) -> None:
        """check: the most tokens of a text that the service takes; raises ServerError where no fitting draft service
        answers. It is called before the first rows, and after each failure.
        """
        super().__init__(client, batch, queue, half=half)
        self._check, self._checking = check, asyncio.Lock()
        self._context: int | None = None
        self._pause_s, self._until = 0.0, 0.0
        self.failures = 0

    @property
    def available(self) -> bool:
        """Whether the service is used now."""
        return time.monotonic() >= self._until

    async def propose(self, session: RemoteSession, tokens: Sequence[int], **more: object) -> RowOutput | None:
        """A chain, or at depth 0 that the text was run; None where the text is too long for the service, or it fails, is
        late or is left alone.
        """
        if not self.available:
            return None
        try:
            return await self.run(session, tokens, **more) if len(tokens) <= await self._room() else None
        except (ServerError, FullError):
            session.num_cached = 0
            return None

    async def _send(self, rows: list[RowRequest]) -> list[RowOutput]:
        await self._room()  # it may have failed while these waited
        try:
            outputs = await super()._send(rows)
        except ServerError as error:
            self._leave_alone(error)
            raise
        self._pause_s = 0.0
        return outputs

    async def _room(self) -> int:
        """The most tokens of a text that the service takes. Raises ServerError where it is left alone or has failed."""
        async with self._checking:
            if not self.available:
                raise ServerError(f"{self.client.url}: it is left alone for a while")
            if self._context is None:
                try:
                    self._context = await asyncio.get_running_loop().run_in_executor(self._thread, self._check)
                except ServerError as error:
                    self._leave_alone(error)
                    raise
            return self._context

    def _leave_alone(self, error: ServerError) -> None:
        """Note a failure: the service is not used for a while, and checked then."""
        if not self._pause_s:  # the first one since it last answered
            print(f"{error}; decoding goes on without drafts", file=sys.stderr, flush=True)
        self.failures, self._context = self.failures + 1, None
        self._pause_s = min(max(2 * self._pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)
        self._until = time.monotonic() + self._pause_s


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """k: most tokens drafted a round; 0: plain decoding."""

    prompt: Sequence[int]
    max_tokens: int
    temperature: float
    seed: int
    k: int


class Coordinator:
    """Decodes requests side by side, each in rounds of its own, and counts as vLLM counts.

    running: most requests that are decoded at once. queue: most that wait; one more raises FullError.
    """

    def __init__(
        self,
        target: BatchedClient,
        draft: DraftClient | None,
        *,
        eos: Collection[int],
        context: int,
        running: int,
        queue: int,
    ) -> None:
        self.target, self.draft, self.eos, self.context = target, draft, frozenset(eos), context
        self.queue, self.waiting, self.running = queue, 0, 0
        self._slots = asyncio.Semaphore(running)
        self.counts: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()
        self.accepted_at: Counter[int] = Counter()

    async def decode(self, request: DecodeRequest) -> AsyncIterator[list[int]]:
        """The output's tokens as rounds emit them. Raises FullError where too many wait, ServerError where the target
        fails.
        """
        if self.waiting >= self.queue:
            raise FullError(f"{self.queue} requests wait already")
        self.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        draft_session, target_session = RemoteSession(), RemoteSession()
        try:
            self.counts["prompt_tokens"] += len(request.prompt)
            async for tokens in self._rounds(request, draft_session, target_session):
                self.counts["generation_tokens"] += len(tokens)
                yield tokens
        finally:
            self.running -= 1
            self._slots.release()
            self.target.ended.append(target_session.id)
            if self.draft is not None:
                self.draft.ended.append(draft_session.id)

    async def _rounds(
        self, request: DecodeRequest, draft_session: RemoteSession, target_session: RemoteSession
    ) -> AsyncIterator[list[int]]:
        sampler = Sampler(request.temperature, [request.seed])

        def uniforms(count: int) -> list[float]:
            return [] if sampler.greedy else sampler.uniforms([count])[0].tolist()

        text, room = list(request.prompt), request.max_tokens
        # The draft runs the prompt while the target does.
        first = self.target.run(target_session, text, temperature=request.temperature, uniforms=uniforms(1))
        opening = self.draft.propose(draft_session, text) if self.draft is not None and request.k else asyncio.sleep(0)
        output, _ = await asyncio.gather(first, opening)
        while True:
            emitted = stop_at(output.tokens, room, self.eos)
            room -= len(emitted)
            text += emitted
            over = "stop" if emitted[-1] in self.eos else "length" if room == 0 else None
            if over is not None:  # counted before the last tokens leave: who reads them looks no further
                self.finished[over] += 1
            yield emitted
            if over is not None:
                return
            draft = await self._propose(draft_session, text, request, uniforms)
            numbers = uniforms(len(draft.tokens) + 1)
            output = await self.target.run(
                target_session, text, draft=draft.tokens, q=draft.q, temperature=request.temperature, uniforms=numbers
            )
            if draft.tokens:
                self._count(len(draft.tokens), min(len(output.tokens) - 1, len(stop_at(output.tokens, room, self.eos))))

    async def _propose(
        self,
        draft_session: RemoteSession,
        text: list[int],
        request: DecodeRequest,
        uniforms: Callable[[int], list[float]],
    ) -> RowOutput:
        """The draft of a round; an empty one where there is none to be had."""
        depth = min(request.k, self.context - len(text))
        if self.draft is None or depth <= 0:
            return RowOutput(known=True)
        found = await self.draft.propose(
            draft_session, text, depth=depth, temperature=request.temperature, uniforms=uniforms(depth)
        )
        if found is None:
            self.counts["undrafted"] += 1
        return found or RowOutput(known=True)

    def _count(self, drafted: int, accepted: int) -> None:
        self.counts["drafts"] += 1
        self.counts["drafted"] += drafted
        self.counts["accepted"] += accepted
        self.accepted_at.update(range(accepted))

    def samples(self) -> list[Sample]:
        """The metrics, under vLLM's names where vLLM has one."""
        counts = self.counts
        return [
            ("vllm:spec_decode_num_drafts_total", "", counts["drafts"]),
            ("vllm:spec_decode_num_draft_tokens_total", "", counts["drafted"]),
            ("vllm:spec_decode_num_accepted_tokens_total", "", counts["accepted"]),
            ("vllm:generation_tokens_total", "", counts["generation_tokens"]),
            ("vllm:prompt_tokens_total", "", counts["prompt_tokens"]),
            ("specrig:rounds_without_a_draft_total", "", counts["undrafted"]),
            ("specrig:draft_failures_total", "", self.draft.failures if self.draft else 0),
            *[
                ("vllm:spec_decode_num_accepted_tokens_per_pos_total", f'position="{position}"', count)
                for position, count in sorted(self.accepted_at.items())
            ],
            *[
                ("vllm:request_success_total", f'finished_reason="{reason}"', count)
                for reason, count in sorted(self.finished.items())
            ],
            ("vllm:num_requests_running", "", self.running),
            ("vllm:num_requests_waiting", "", self.waiting),
            ("specrig:draft_available", "", int(self.draft is not None and self.draft.available)),
        ]
