"""The HTTP client of engines and services: JSON, bytes, and streams of events with the time of each read.

Every failure is a ServerError that names the address and, where there is one, the fix.
"""

from __future__ import annotations

import codecs
import json
import math
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from http.client import RemoteDisconnected
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from specrig.errors import EngineError

if TYPE_CHECKING:
    from requests import Response

CONNECT_S = 10.0
SILENCE_S = 300.0
"""A server that sends nothing for so long counts as hung; a long prompt on a busy machine takes far less."""
CONNECTIONS = 256
PATIENCE_S = 60.0
"""How long a request is sent again where a server is busy and says when to come again."""
BUSY = (429, 503)
READ_BYTES = 1 << 16


class ServerError(EngineError):
    """A server that is not there, late, busy, or answers wrongly. status: of its answer, where it refused."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class TimedOutError(ServerError):
    """A server that was silent, or not done, for too long."""


class Client:
    """The connections to one server. key_env: environment variable with the server's key.

    limit_s: the longest time of a whole answer, and of a silence in it; None: only `SILENCE_S` for a silence. Raises
    ServerError for an address that is none, or a key that is not set.
    """

    def __init__(self, url: str, *, key_env: str | None = None, limit_s: float | None = None) -> None:
        # Not at the top: planning a study imports every engine, and requests takes as long as pydantic.
        from requests import Session
        from requests.adapters import HTTPAdapter

        self.url = url.rstrip("/").removesuffix("/v1")
        self.limit_s, self.silence_s = limit_s or math.inf, limit_s or SILENCE_S
        self.session = Session()
        try:
            parts = urlsplit(self.url)
            usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
        except ValueError:  # a port that is none, a bracket that is not closed
            usable = False
        if not usable:
            raise ServerError(f"{url!r} is no address of a server: write it as http://host:port")
        for scheme in ("http://", "https://"):
            self.session.mount(scheme, HTTPAdapter(pool_maxsize=CONNECTIONS))
        if parts.hostname in ("127.0.0.1", "localhost", "::1"):
            self.session.trust_env = False  # no proxy reaches this machine's own servers
        if key_env is not None:
            key = os.environ.get(key_env)
            if not key:
                raise ServerError(
                    f"{self.url}: its key belongs into the environment variable {key_env}, which is not set"
                )
            self.session.headers["Authorization"] = f"Bearer {key}"

    def get(self, path: str) -> Response:
        """A GET answered with success. Raises ServerError otherwise."""
        return self._request("GET", path)[1]

    def get_or_none(self, path: str) -> Response | None:
        """The answer to a GET, or None where there is no such path or no server."""
        try:
            return self.get(path)
        except ServerError:
            return None

    def get_json(self, path: str) -> dict[str, Any]:
        """The JSON object of a GET; empty where there is no such path, or something else."""
        page = self.get_or_none(path)
        try:
            content = page.json() if page is not None else {}
        except ValueError:
            return {}
        return content if isinstance(content, dict) else {}

    def post(self, path: str, body: dict[str, Any], *, more_s: float = 0.0, patient: bool = False) -> dict[str, Any]:
        """The JSON answer to a POST. more_s: how much longer than usual the server may be silent. patient: where the
        server is busy, send the request again when it says. Raises ServerError as `stream` does.
        """
        _, response = self._request("POST", path, more_s=more_s, patient=patient, json=body)
        return self._event(response.content)

    def post_bytes(self, path: str, body: bytes, media_type: str) -> bytes:
        """The answer to a POST, both of any form."""
        _, response = self._request("POST", path, data=body, headers={"Content-Type": media_type})
        return response.content

    @cached_property
    def model(self) -> str:
        """The name of the first model that the server lists."""
        listed = self._event(self.get("/v1/models").content).get("data") or [{}]
        if not listed[0].get("id"):
            raise ServerError(f"{self.url}: it lists no model; name it as `model:` of the server")
        return str(listed[0]["id"])

    def stream(
        self, path: str, body: dict[str, Any], *, patient: bool = False
    ) -> Iterator[tuple[float, dict[str, Any]]]:
        """(seconds, event) of a stream of server-sent events, up to its `[DONE]` or its end.

        seconds: from sending the request to the read of the socket that completed the event, so that events which came
        together have one time. patient: see `post`. Raises ServerError when the server cannot be reached, refuses,
        reports an error or breaks off, TimedOutError when it takes too long.
        """
        from requests import RequestException
        from urllib3.exceptions import HTTPError

        events, name = 0, b""
        try:
            started, response = self._request("POST", path, patient=patient, json=body, stream=True)
            first = b""
            with response:
                for at, line in _lines(response):
                    line, first = line if first else line.removeprefix(codecs.BOM_UTF8), first or line
                    if at - started > self.limit_s:  # comments that keep the connection open are no answer
                        raise TimedOutError(f"{self.url}: not done after {self.limit_s:g} s, with {events} events")
                    field, _, text = line.partition(b":")
                    text = text.strip()
                    if text == b"[DONE]":
                        return
                    if field == b"event" or not line:
                        name = text
                    elif field == b"error" or (field == b"data" and text):
                        event = self._event(text, failed=b"error" in (field, name))
                        events += 1
                        yield at - started, event
            if not events:
                kind = response.headers.get("Content-Type", "no type").partition(";")[0]
                raise ServerError(
                    f"{self.url}{path}: its answer is no stream of events ({kind}: {first[:100].decode('utf-8', 'replace')!r}); "
                    "is this the address of the server itself, and can it stream?"
                )
        except (RequestException, HTTPError) as error:
            raise self._broken(error, events) from error

    def _request(
        self,
        method: str,
        path: str,
        *,
        more_s: float = 0.0,
        patient: bool = False,
        **content: Any,
    ) -> tuple[float, Response]:
        """(when it was sent, the answer), an answer with success. Raises ServerError."""
        from requests import RequestException
        from urllib3.exceptions import HTTPError

        connect_s = min(CONNECT_S, self.silence_s)
        limits = connect_s, connect_s if method == "GET" else self.silence_s + more_s
        give_up = time.monotonic() + PATIENCE_S

        def send() -> Response:
            return self.session.request(method, self.url + path, timeout=limits, allow_redirects=False, **content)

        while True:
            started = time.perf_counter()
            try:
                response = _twice_if_closed(send)
                if response.status_code < 300:
                    return started, response
                wait_s = _retry_after(response) if response.status_code in BUSY else None
                if not patient or wait_s is None or time.monotonic() + wait_s > give_up:
                    raise self._refused(response, path, wait_s)
            except (RequestException, HTTPError) as error:
                raise self._broken(error, 0, more_s) from error
            response.close()
            time.sleep(wait_s)

    def _event(self, text: bytes, *, failed: bool = False) -> dict[str, Any]:
        """The JSON object that a server sent. failed: it comes as an error."""
        try:
            event = json.loads(text)
        except ValueError as error:
            if failed:
                raise ServerError(f"{self.url}: the server reports: {text[:300].decode('utf-8', 'replace')}") from error
            raise ServerError(f"{self.url}: an answer is not JSON: {text[:200]!r}") from error
        if failed or not isinstance(event, dict) or event.get("error") or event.get("object") == "error":
            raise ServerError(f"{self.url}: the server reports: {_message(event)}")
        return event

    def _refused(self, response: Response, path: str, retry_after_s: float | None) -> ServerError:
        """The error for an answer without success."""
        status = response.status_code
        if 300 <= status < 400:
            place = response.headers.get("Location", "nowhere")
            what = f"it redirects (status {status}) to {place}, and no request is repeated there; name that address"
            return ServerError(f"{self.url}{path}: {what}", status)
        try:
            message = _message(response.json())
        except ValueError:
            title = re.search(r"<title>(.*?)</title>", response.text)  # of a proxy's page
            message = title[1] if title else _message(response.text)
        later = "" if retry_after_s is None else f" (come again in {retry_after_s:g} s)"
        return ServerError(
            f"{self.url}{path}: refused with status {status}: {message or response.reason}{later}", status
        )

    def _broken(self, error: Exception, events: int, more_s: float = 0.0) -> ServerError:
        """The error for a request that broke off after so many events. more_s: see `post`."""
        from requests.exceptions import ChunkedEncodingError, ConnectTimeout
        from urllib3.exceptions import ProtocolError

        if isinstance(error, ConnectTimeout):
            return TimedOutError(f"{self.url}: it accepted no connection in time; is the server hung?")
        if "Read timed out" in str(error):  # wrapped differently before and within the stream
            waited = self.silence_s + more_s
            return TimedOutError(f"{self.url}: silent for {waited:g} s after {events} events; is the server hung?")
        if events or isinstance(error, ChunkedEncodingError | ProtocolError):
            return ServerError(
                f"{self.url}: broke off in the middle of an answer, after {events} events; has the server died?"
            )
        # The innermost cause is the shortest, e.g. "[Errno 111] Connection refused".
        cause: Any = getattr(error.args[0], "reason", error) if error.args else error
        while cause.args and isinstance(cause.args[-1], Exception):
            cause = cause.args[-1]
        reason = (str(cause) or type(cause).__name__).rsplit(": ", 1)[-1].strip("')> \r\n")
        return ServerError(f"{self.url}: no server answers there ({reason}); start it, or correct its address")


def _lines(response: Response) -> Iterator[tuple[float, bytes]]:
    """(time of the read that completed it, line) of a body, as they come."""
    raw, arrived = response.raw, time.perf_counter()
    if raw._fp.fp is None:  # an empty body
        return
    socket_file = raw._fp.fp.raw  # what urllib3's response reads, below its buffer
    read_into = socket_file.readinto

    def timed(buffer: Any) -> Any:
        nonlocal arrived
        count = read_into(buffer)
        arrived = time.perf_counter()
        acknowledge()
        return count

    def acknowledge() -> None:
        """Acknowledge at once: a server with Nagle's algorithm waits for it, up to 40 ms, before it sends a next event."""
        if hasattr(socket, "TCP_QUICKACK"):  # Linux; it holds for one acknowledgement
            socket_file._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    acknowledge()

    socket_file.readinto = timed
    rest = b""
    while part := raw.read1(READ_BYTES, decode_content=True):
        *lines, rest = (rest + part).split(b"\n")
        yield from ((arrived, line.strip()) for line in lines)
    if rest:
        yield arrived, rest.strip()


def _retry_after(response: Response) -> float | None:
    """After how many seconds a busy server wants the request again; None: it does not say."""
    from urllib3.exceptions import InvalidHeader
    from urllib3.util import Retry

    try:
        return Retry().get_retry_after(response.raw)
    except InvalidHeader:
        return None


def _twice_if_closed(send: Callable[[], Response]) -> Response:
    """The response, sent once more where the server closed the idle connection meanwhile (RFC 9112, 9.3.1)."""
    from requests.exceptions import ConnectionError as Unconnected

    try:
        return send()
    except Unconnected as error:
        if not isinstance(getattr(error.args[0], "args", [None])[-1], RemoteDisconnected):
            raise
        return send()


def _message(event: Any) -> str:
    """The message of an error of OpenAI's API, vLLM, llama.cpp or SGLang."""
    error = event.get("error", event) if isinstance(event, dict) else event
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return " ".join(str(error).split())[:300]
