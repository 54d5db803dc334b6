"""Dynamic batching: whatever waits when a batch is done goes into the next one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class FullError(RuntimeError):
    """The queue is full; the message says of what."""


class Batcher(Generic[Item, Result]):
    """Runs single items in batches, one batch at a time, in the order in which they came.

    run: takes up to `size` items and returns one result each; an error fails that batch's items only. queue: most items
    that wait; more raise FullError.
    """

    def __init__(self, run: Callable[[list[Item]], Awaitable[list[Result]]], size: int, queue: int) -> None:
        self._run, self.size, self.queue = run, size, queue
        self._waiting: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        self._arrived = asyncio.Event()
        self.batches = self.items = 0

    @property
    def waiting(self) -> int:
        """How many items wait for their batch."""
        return len(self._waiting)

    def submit(self, item: Item) -> asyncio.Future[Result]:
        """Queue an item; the future holds its result. Raises FullError."""
        if len(self._waiting) >= self.queue:
            raise FullError(f"{self.queue} rows wait already")
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        self._arrived.set()
        return future

    async def work(self) -> None:
        """Run batches for ever."""
        while True:
            await self._arrived.wait()
            batch = [self._waiting.popleft() for _ in range(min(self.size, len(self._waiting)))]
            if not self._waiting:
                self._arrived.clear()
            batch = [(item, future) for item, future in batch if not future.cancelled()]  # the client has gone
            if not batch:
                continue
            self.batches += 1
            self.items += len(batch)
            try:
                results = await self._run([item for item, _ in batch])
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(result)
