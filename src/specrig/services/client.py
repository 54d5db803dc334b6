"""A draft or target service as its clients see it: texts of which only what is new is sent."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from specrig.http_client import Client, ServerError
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
    """A draft or target service. The key in `KEY_ENV`, where there is one, goes with every request. Every failure is a
    ServerError.
    """

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self.http = Client(url, key_env=KEY_ENV if os.environ.get(KEY_ENV) else None, limit_s=timeout_s)
        self.url = self.http.url

    def run(
        self, rows: Sequence[RowRequest], *, half: bool = False, ended: Sequence[int] = ()
    ) -> tuple[list[RowOutput], Passes]:
        """Send a batch. Returns the rows' outputs, and the passes that the model has made. See `RowsRequest`."""
        body = self.http.post_bytes(PATH, pack(RowsRequest(list(rows), half, list(ended))), MEDIA_TYPE)
        try:
            output = unpack_output(body)
        except ProtocolError as error:
            raise ServerError(
                f"{self.url}: cannot read its answer ({error}); does another version run there?"
            ) from error
        if len(output.rows) != len(rows):
            raise ServerError(f"{self.url}: {len(output.rows)} outputs for {len(rows)} rows")
        return output.rows, output.passes
