"""The coordinator's end of a service: rows of many requests go there in one message after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from specrig.engines.http.remote import RowsClient, ServiceError, Text
from specrig.engines.http.wire import Answer, Ask
from specrig.services.batching import Batcher, FullError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0
"""How long a draft service that failed is left alone, doubled with each failure."""


class Link:
    """A service, asked in batches. `ended` collects sessions whose requests are over; the next message tells the
    service.
    """

    def __init__(self, client: RowsClient, batch: int, queue: int, *, half: bool = False) -> None:
        self.client, self.half = client, half
        self.batcher: Batcher[Ask, Answer] = Batcher(self._send, batch, queue)
        self.ended: list[int] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=client.url)

    async def ask(self, text: Text, tokens: Sequence[int], **more: object) -> Answer:
        """The answer about a text, which is sent whole where the service does not hold it. Raises ServiceError."""
        for _ in range(3):
            answer = await self.batcher.submit(text.ask(tokens, **more))
            if text.told(tokens, answer):
                return answer
        raise ServiceError(f"{self.client.url}: it forgets texts at once: start it with more --sessions")

    async def _send(self, asks: list[Ask]) -> list[Answer]:
        ended, self.ended = self.ended, []
        send = lambda: self.client.ask(asks, half=self.half, ended=ended)[0]  # noqa: E731
        return await asyncio.get_running_loop().run_in_executor(self._thread, send)


class DraftLink(Link):
    """A draft service that may fail. It is then left alone for a while, and requests go on without drafts."""

    def __init__(
        self, client: RowsClient, batch: int, queue: int, *, check: Callable[[], object], half: bool = False
    ) -> None:
        """check: raises ServiceError where no fitting draft service answers; called before the first rows, and after
        each failure.
        """
        super().__init__(client, batch, queue, half=half)
        self._check, self._checked = check, False
        self._pause_s, self._until = 0.0, 0.0
        self.failures = 0

    @property
    def available(self) -> bool:
        """Whether the service is asked now."""
        return time.monotonic() >= self._until

    async def propose(self, text: Text, tokens: Sequence[int], **more: object) -> Answer | None:
        """A chain, or that the text was run (depth 0); None where the service fails, is late or is left alone."""
        if not self.available:
            return None
        try:
            return await self.ask(text, tokens, **more)
        except (ServiceError, FullError):
            text.held = 0
            return None

    async def _send(self, asks: list[Ask]) -> list[Answer]:
        if not self.available:  # it failed while these waited
            raise ServiceError(f"{self.client.url}: it is left alone for a while")
        try:
            if not self._checked:
                await asyncio.get_running_loop().run_in_executor(self._thread, self._check)
                self._checked = True
            answers = await super()._send(asks)
        except ServiceError:
            self.failures, self._checked = self.failures + 1, False
            self._pause_s = min(max(2 * self._pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)
            self._until = time.monotonic() + self._pause_s
            raise
        self._pause_s = 0.0
        return answers
