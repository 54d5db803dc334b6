"""A draft or target service as its clients see it: a connection that stays open, and texts of which only what is new is
sent.
"""

from __future__ import annotations

import http.client
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from specrig.engines.base import EngineError
from specrig.engines.http import wire
from specrig.engines.http.wire import Answer, Ask, Passes

TIMEOUT_S = 60.0
LATE = "did not answer within"
KEY_ENV = "SPECRIG_API_KEY"
"""Environment variable that holds the key of services that ask for one."""


class ServiceError(EngineError):
    """A service that is not there, late, busy or of another kind; the message names its address."""


@dataclass(slots=True)
class Text:
    """A growing text at a service. held: how many of its tokens the service has, as far as is known."""

    session: int = field(default_factory=lambda: secrets.randbits(63))
    held: int = 0

    def ask(self, tokens: Sequence[int], **more: Any) -> Ask:
        """The question about the text `tokens`; more: other fields of `Ask`."""
        return Ask(self.session, self.held, list(tokens[self.held :]), **more)

    def told(self, tokens: Sequence[int], answer: Answer) -> bool:
        """Note the answer to a question about `tokens`; False where the service does not know the text and must be
        asked anew.
        """
        self.held = len(tokens) if answer.known else 0
        return answer.known


class RowsClient:
    """One connection to a draft or target service, for one question at a time.

    The key in `KEY_ENV`, where there is one, goes with every question. Every failure is a ServiceError.
    """

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ServiceError(f"{url!r} is no address of a service: write it as http://host:port")
        self.url, self.timeout_s = url.rstrip("/"), timeout_s
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=timeout_s)
        self._headers = {"Content-Type": wire.MEDIA_TYPE}
        if key := os.environ.get(KEY_ENV):
            self._headers["Authorization"] = f"Bearer {key}"

    def ask(self, asks: Sequence[Ask], *, half: bool = False, ended: Sequence[int] = ()) -> tuple[list[Answer], Passes]:
        """Send the rows of a question and return the answer's rows, and the passes that the model has made."""
        body = self.post(wire.PATH, wire.pack_asks(asks, half=half, ended=ended))
        try:
            answers, passes = wire.unpack_answers(body)
        except wire.WireError as error:
            raise ServiceError(
                f"{self.url}: its answer cannot be read ({error}); is another version running there?"
            ) from error
        if len(answers) != len(asks):
            raise ServiceError(f"{self.url}: {len(answers)} answers to {len(asks)} rows")
        return answers, passes

    def post(self, path: str, body: bytes | None, *, method: str = "POST") -> bytes:
        """Send a request; returns the body of a successful answer."""
        for fresh in (self._connection.sock is None, True):
            try:
                self._connection.request(method, path, body, self._headers)
                response = self._connection.getresponse()
                content = response.read()
                break
            except (http.client.HTTPException, OSError) as error:
                self._connection.close()
                if isinstance(error, TimeoutError):
                    raise ServiceError(f"{self.url}: {LATE} {self.timeout_s:g} s") from error
                if fresh:  # one that was open from before may merely have been closed meanwhile
                    raise ServiceError(
                        f"{self.url}: no service answers there ({str(error) or type(error).__name__})"
                    ) from error
        if response.status != 200:
            said = content[:300].decode("utf-8", "replace")
            raise ServiceError(f"{self.url}{path}: refused with status {response.status}: {said}")
        return content

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class Remote:
    """`decoding.types.RemoteModel` over HTTP: the draft model of the native engine in a service.

    latency_s: seconds that each round trip is made longer by. A service that fails raises ServiceError: in a
    measurement a method that silently goes on without its draft would be another method.
    """

    def __init__(self, client: RowsClient, *, latency_s: float, half: bool) -> None:
        self.client, self.latency_s, self.half = client, latency_s, half
        self._texts: list[Text] = []
        self._ended: list[int] = []
        self._passes: Passes = {}

    def begin(self, rows: Sequence[Sequence[int]]) -> None:
        """See `RemoteModel`."""
        self._ended, self._texts = [text.session for text in self._texts], [Text() for _ in rows]
        self._ask(list(enumerate(rows)), [{}] * len(rows))
        self._passes = {}  # the prompts' passes are prefill

    def propose(
        self,
        rows: Sequence[Sequence[int]],
        depths: Sequence[int],
        temperature: float,
        uniforms: Sequence[Sequence[float]],
    ) -> tuple[list[list[int]], Any]:
        """See `RemoteModel`."""
        import numpy as np

        width = max(depths)
        wanted = [(number, rows[number]) for number, depth in enumerate(depths) if depth]
        more = [
            {
                "depth": depths[number],
                "temperature": temperature,
                "uniforms": uniforms[number][:width] if uniforms else (),
            }
            for number, _ in wanted
        ]
        tokens: list[list[int]] = [[0] * width for _ in rows]
        q: Any = None
        for (number, _), answer in zip(wanted, self._ask(wanted, more), strict=True):
            tokens[number][: len(answer.tokens)] = answer.tokens
            if answer.q is not None:
                if q is None:  # where nothing was drafted it is one-hot on the padding
                    q = np.zeros((len(rows), width, answer.q.shape[1]), dtype=np.float32)
                    q[:, :, 0] = 1.0
                q[number, : len(answer.tokens)] = wire.distributions(answer.q)
        return tokens, q

    def passes(self) -> Passes:
        """See `RemoteModel`."""
        return dict(self._passes)

    def _ask(self, wanted: Sequence[tuple[int, Sequence[int]]], more: Sequence[dict[str, Any]]) -> list[Answer]:
        """Ask about the texts of some rows, and once more, with their whole texts, about those that the service does
        not hold.
        """
        found: dict[int, Answer] = {}
        for _ in range(2):
            open_rows = [(at, number, tokens) for at, (number, tokens) in enumerate(wanted) if number not in found]
            if not open_rows:
                break
            if self.latency_s:
                time.sleep(self.latency_s)
            asks = [self._texts[number].ask(tokens, **more[at]) for at, number, tokens in open_rows]
            answers, passes = self.client.ask(asks, half=self.half, ended=self._ended)
            self._ended = []
            for width, (calls, seconds) in passes.items():
                before = self._passes.get(width, (0, 0.0))
                self._passes[width] = before[0] + calls, before[1] + seconds
            for (_, number, tokens), answer in zip(open_rows, answers, strict=True):
                if self._texts[number].told(tokens, answer):
                    found[number] = answer
        if len(found) < len(wanted):
            raise ServiceError(f"{self.client.url}: it forgets texts at once: start it with more --sessions")
        return [found[number] for number, _ in wanted]
