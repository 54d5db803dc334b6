"""A draft or target service as its clients see it: a connection that stays open, and texts of which only what is new is
sent.
"""

from __future__ import annotations

import http.client
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from specrig.runtime.types import Passes
from specrig.services.protocol import (
    MEDIA_TYPE,
    PATH,
    ProtocolError,
    RowOutput,
    RowRequest,
    RowsRequest,
    pack,
    unpack_output,
)

TIMEOUT_S = 60.0
KEY_ENV = "SPECRIG_API_KEY"
"""Environment variable that holds the key of services that require one."""


class ServiceError(RuntimeError):
    """A service that is not there, late, busy or of another kind; the message names its address."""


class StatusError(ServiceError):
    """A service that answered with another HTTP status than 200."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class RemoteSession:
    """A growing text at a service. num_cached: how many of its tokens the service has, as far as is known."""

    id: int = field(default_factory=lambda: secrets.randbits(63))
    num_cached: int = 0

    def request(self, tokens: Sequence[int], **more: Any) -> RowRequest:
        """The row that sends what is new of the text `tokens`; more: other fields of `RowRequest`."""
        return RowRequest(self.id, self.num_cached, list(tokens[self.num_cached :]), **more)

    def update(self, tokens: Sequence[int], output: RowOutput) -> bool:
        """Note the output of a request for `tokens`; False where the service does not know the text and needs all of
        it.
        """
        self.num_cached = len(tokens) if output.known else 0
        return output.known


class RowsClient:
    """One connection to a draft or target service, for one request at a time.

    The key in `KEY_ENV`, where there is one, goes with every request. Every failure is a ServiceError.
    """

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:  # a port that is none, a bracket that is not closed
            host, port = None, None
        if host is None or parts.scheme != "http":
            raise ServiceError(f"{url!r} is no address of a service: write it as http://host:port")
        self.url, self.timeout_s = url.rstrip("/"), timeout_s
        self._connection = http.client.HTTPConnection(host, port or 80, timeout=timeout_s)
        self._headers = {"Content-Type": MEDIA_TYPE}
        if key := os.environ.get(KEY_ENV):
            self._headers["Authorization"] = f"Bearer {key}"

    def run(
        self, rows: Sequence[RowRequest], *, half: bool = False, ended: Sequence[int] = ()
    ) -> tuple[list[RowOutput], Passes]:
        """Send a batch. Returns the rows' outputs, and the passes that the model has made. See `RowsRequest`."""
        body = self.post(PATH, pack(RowsRequest(list(rows), half, list(ended))))
        try:
            output = unpack_output(body)
        except ProtocolError as error:
            raise ServiceError(
                f"{self.url}: cannot read its answer ({error}); does another version run there?"
            ) from error
        if len(output.rows) != len(rows):
            raise ServiceError(f"{self.url}: {len(output.rows)} outputs for {len(rows)} rows")
        return output.rows, output.passes

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
                    raise ServiceError(f"{self.url}: did not answer within {self.timeout_s:g} s") from error
                if fresh:  # one that was open from before may merely have been closed meanwhile
                    reason = str(error) or type(error).__name__
                    raise ServiceError(f"{self.url}: no service answers there ({reason})") from error
        if response.status != 200:
            message = content[:300].decode("utf-8", "replace")
            raise StatusError(f"{self.url}{path}: refused with status {response.status}: {message}", response.status)
        return content
