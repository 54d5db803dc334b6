"""Send the requests of one turn: a closed loop keeps so many under way, an open loop sends them as they arrive.

Each request waits in a thread of its own, and nothing but the server decides how long. The times are those of the
client's own `Completion`: when tokens arrived, by the server's token ids, without a tokenizer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np

from specrig.engines.base import EngineError
from specrig.engines.http.client import Completion
from specrig.errors import first_line
from specrig.http_client import CONNECTIONS, TimedOutError
from specrig.measurement.traffic.records import Request

Send = Callable[[int], Completion]
"""Sends request number n, from 0, and returns its answer. Raises EngineError."""
LOOK_S = 0.5
"""How often an open loop that waits for the next arrival looks whether the turn is over."""
GIVE_UP = 8
"""After so many failures in a row, and no fewer than are under way, a turn sends no more."""


class Requests:
    """The requests of one turn: the next number, the outcome of each, and when the turn is over."""

    def __init__(
        self, send: Send, prompt_ids: Sequence[str], *, warmup: int, counted: int, at_once: int, k: int = 0
    ) -> None:
        """warmup, counted: how many; at_once: how many are under way in a closed loop; k: most tokens drafted a round."""
        self._send, self._prompt_ids, self._k = send, prompt_ids, k
        self._warmup, self._counted, self._at_once = warmup, counted, at_once
        self._cool_down = max(counted, 2 * at_once)  # so many may be answered before the last one that counts is
        self._lock, self._began = Lock(), time.perf_counter()
        self._next = self._done = self._failed_in_a_row = self._under_way = 0
        self._stopped = False
        self._found: dict[int, Request] = {}

    @property
    def found(self) -> list[Request]:
        """Every request that was sent, in order."""
        return [self._found[number] for number in sorted(self._found)]

    def clock(self) -> float:
        """Seconds since the turn began."""
        return time.perf_counter() - self._began

    @property
    def over(self) -> bool:
        """Whether all that count are done, the server answers no more, or the turn was stopped."""
        give_up = max(GIVE_UP, self._at_once, self._under_way)
        return self._stopped or self._done >= self._counted or self._failed_in_a_row >= give_up

    def stop(self) -> None:
        """Send no more."""
        self._stopped = True

    def next(self) -> int | None:
        """The number of the next request; None: the turn is over, or enough were sent to cool down."""
        with self._lock:
            if self.over or self._next >= self._warmup + self._counted + self._cool_down:
                return None
            self._next += 1
            self._under_way += 1
            return self._next - 1

    def request(self, number: int, due_s: float | None = None) -> None:
        """Send a request and note what became of it. due_s: None means now."""
        sent = self.clock()
        due = sent if due_s is None else due_s
        place = number - self._warmup
        part = "warm-up" if place < 0 else "counted" if place < self._counted else "cool-down"
        about: dict[str, Any] = {"prompt_id": self._prompt_ids[number % len(self._prompt_ids)], "part": part}
        about |= {"due_s": due, "sent_s": sent}
        try:
            reply = self._send(number)
            if not reply.tokens:
                raise EngineError("the answer held no token")
            # What was not streamed round by round came at once, at the end.
            (first, early), (last, _) = reply.arrivals[-1 if reply.gathered(self._k) else 0], reply.arrivals[-1]
            times = {"first_s": sent + first, "last_s": sent + last, "first_tokens": early}
            made = Request.model_validate(about | times | {"tokens": reply.tokens})
        except EngineError as error:
            why = {"error": first_line(error), "timed_out": isinstance(error, TimedOutError)}
            made = Request.model_validate(about | why | {"last_s": self.clock()})
        except BaseException:  # no failure of a request: the turn cannot be used
            self.stop()
            raise
        with self._lock:
            self._found[number] = made
            self._done += part == "counted"
            self._under_way -= 1
            self._failed_in_a_row = self._failed_in_a_row + 1 if made.error else 0


def closed_loop(requests: Requests, concurrency: int) -> None:
    """Keep `concurrency` requests under way until all that count are done; those still under way end by themselves."""

    def work() -> None:
        while (number := requests.next()) is not None:
            requests.request(number)

    with _threads(requests, concurrency) as (pool, sent):
        sent += [pool.submit(work) for _ in range(concurrency)]


def open_loop(requests: Requests, rate: float, burstiness: float, seed: int) -> None:
    """Send requests as they arrive until all that count are done.

    rate: a second; the times between arrivals are gamma distributed with the shape `burstiness` and the mean 1 / rate.
    """
    random, due = np.random.default_rng(seed), 0.0
    with _threads(requests, 4 * CONNECTIONS) as (pool, sent):
        while (number := requests.next()) is not None:
            sent.append(pool.submit(requests.request, number, due))
            due += float(random.gamma(burstiness, 1 / (rate * burstiness)))
            while (wait := due - requests.clock()) > 0 and not requests.over:
                time.sleep(min(wait, LOOK_S))


@contextmanager
def _threads(requests: Requests, most: int) -> Iterator[tuple[ThreadPoolExecutor, list[Future[None]]]]:
    """(threads, the list for their futures); waits for all, and raises the first error of one."""
    sent: list[Future[None]] = []
    with ThreadPoolExecutor(most) as pool:
        try:
            yield pool, sent
            for future in sent:
                future.result()
        except BaseException:  # Ctrl-C too: else the other threads would send the rest of the turn
            requests.stop()
            raise
