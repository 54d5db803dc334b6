"""What engines behind HTTP share: the client, and the times of a stream.

The client measures the times, from sending a request to each arrival, so they include the network. Token ids are the
server's own; text is never tokenized again.
"""

from __future__ import annotations

import json
import math
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from http.client import RemoteDisconnected
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from specrig.cell import Cell
from specrig.decoding.types import Counts, Generation
from specrig.engines.base import EngineError, TokenizerEngine
from specrig.engines.http import counters
from specrig.models import hub
from specrig.models.endpoint import Endpoint
from specrig.models.pair import PairFiles

if TYPE_CHECKING:
    from requests import RequestException, Response

CONNECT_S = 10.0
SILENCE_S = 300.0
"""A server that sends nothing for so long counts as hung; a long prompt on a busy machine takes far less."""
CONNECTIONS = 256
READ_BYTES = 1 << 16
"""Most bytes of one read. A read of a stream ends with its chunk."""


class TimedOutError(EngineError):
    """A server that was silent, or not done, for too long."""


@dataclass(slots=True)
class Completion:
    """One completion. arrivals: (seconds since the request was sent, tokens that had arrived by then), growing."""

    tokens: list[int] = field(default_factory=list)
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    stop: Literal["eos", "length"] = "length"
    counts: Counts | None = None

    def note_arrival(self, seconds: float) -> None:
        """Note that the tokens since the last arrival, if any, came at `seconds`."""
        if len(self.tokens) > (self.arrivals[-1][1] if self.arrivals else 0):
            self.arrivals.append((seconds, len(self.tokens)))


class Client:
    """The connection to one server. key_env: environment variable with the server's key.

    limit_s: the longest time of a whole stream, and of a silence in it; None: only `SILENCE_S` for a silence. Every
    failure is an EngineError that names the address and the fix.
    """

    def __init__(self, url: str, *, key_env: str | None = None, limit_s: float | None = None) -> None:
        # Not at the top: planning a study imports every engine, and requests takes as long as pydantic.
        from requests import Session
        from requests.adapters import HTTPAdapter

        self.url = url.rstrip("/").removesuffix("/v1")
        self.limit_s, self.silence_s = limit_s or math.inf, limit_s or SILENCE_S
        self.session = Session()
        adapter = HTTPAdapter(pool_maxsize=CONNECTIONS)
        self.session.mount("http://", adapter)
        self.session.mount("https://", adapter)
        if urlsplit(self.url).hostname in ("127.0.0.1", "localhost", "::1"):
            self.session.trust_env = False  # no proxy reaches this machine's own servers
        if key_env is not None:
            key = os.environ.get(key_env)
            if not key:
                raise EngineError(
                    f"{self.url}: its key belongs into the environment variable {key_env}, which is not set"
                )
            self.session.headers["Authorization"] = f"Bearer {key}"

    def get(self, path: str) -> Response:
        """A GET answered with success. Raises EngineError otherwise."""
        from requests import RequestException

        try:
            response = _twice_if_closed(lambda: self.session.get(self.url + path, timeout=CONNECT_S))
        except RequestException as error:
            raise self._unreachable(error) from error
        return self._checked(response, path)

    def get_or_none(self, path: str) -> Response | None:
        """The answer to a GET, or None where there is no such path or no server."""
        try:
            return self.get(path)
        except EngineError:
            return None

    def post(self, path: str, body: dict[str, Any], *, more_s: float = 0.0) -> dict[str, Any]:
        """The JSON answer to a POST. more_s: how much longer than usual the server may be silent. Raises EngineError as
        `stream` does.
        """
        from requests import RequestException

        try:
            response = self._checked(self._sent(path, body, more_s=more_s), path)
        except RequestException as error:
            raise self._broken(error, 0, more_s) from error
        return self._event(response.content)

    def counters(self) -> counters.Counters:
        """What the server's `/metrics` page has counted; empty where there is no such page."""
        page = self.get_or_none("/metrics")
        return counters.parse(page.text) if page is not None else counters.Counters()

    @cached_property
    def model(self) -> str:
        """The name of the first model that the server lists."""
        listed = self._event(self.get("/v1/models").content).get("data") or [{}]
        if not listed[0].get("id"):
            raise EngineError(f"{self.url}: it lists no model; name it as `model:` of the server")
        return str(listed[0]["id"])

    def stream(
        self, path: str, body: dict[str, Any], *, is_last: Callable[[dict[str, Any]], bool] = lambda event: False
    ) -> Iterator[tuple[float, dict[str, Any]]]:
        """(seconds since sending, event) of a server-sent-event stream, up to its `[DONE]`.

        is_last: recognises the last event of a server that sends no `[DONE]`. Raises EngineError when the server cannot
        be reached, refuses, reports an error or breaks off, TimedOutError when it takes too long.
        """
        from requests import RequestException

        events, ended = 0, False
        started = time.perf_counter()
        try:
            with self._sent(path, body, stream=True) as response:
                self._checked(response, path)
                for line in response.iter_lines(chunk_size=READ_BYTES):
                    now = time.perf_counter() - started
                    if now > self.limit_s:  # comments that keep the connection open are no answer
                        raise TimedOutError(f"{self.url}: not done after {self.limit_s:g} s, with {events} events")
                    if not line.startswith(b"data:"):
                        continue
                    text = line.removeprefix(b"data:").strip()
                    if text == b"[DONE]":
                        return
                    event = self._event(text)
                    events, ended = events + 1, is_last(event)
                    yield now, event
        except RequestException as error:
            raise self._broken(error, events) from error
        if not ended:
            raise EngineError(
                f"{self.url}: the stream ended after {events} events without [DONE]; has the server died?"
            )

    def _sent(self, path: str, body: dict[str, Any], *, stream: bool = False, more_s: float = 0.0) -> Response:
        """The response to a POST."""
        timeout = min(CONNECT_S, self.silence_s), self.silence_s + more_s
        return _twice_if_closed(lambda: self.session.post(self.url + path, json=body, stream=stream, timeout=timeout))

    def _event(self, text: bytes) -> dict[str, Any]:
        try:
            event = json.loads(text)
        except ValueError as error:
            raise EngineError(f"{self.url}: an answer is not JSON: {text[:200]!r}") from error
        if not isinstance(event, dict) or event.get("error"):
            raise EngineError(f"{self.url}: the server reports: {_message(event)}")
        return event

    def _checked(self, response: Response, path: str) -> Response:
        if response.ok:
            return response
        try:
            message = _message(response.json())
        except ValueError:
            message = response.text[:300].strip()
        raise EngineError(f"{self.url}{path}: refused with status {response.status_code}: {message or response.reason}")

    def _broken(self, error: RequestException, events: int, more_s: float = 0.0) -> EngineError:
        """The error for a request that broke off after so many events. more_s: see `post`."""
        from requests.exceptions import ChunkedEncodingError, ConnectTimeout

        if isinstance(error, ConnectTimeout):
            return TimedOutError(f"{self.url}: it accepted no connection in time; is the server hung?")
        if "Read timed out" in str(error):  # wrapped differently before and within the stream
            return TimedOutError(
                f"{self.url}: silent for {self.silence_s + more_s:g} s after {events} events; is the server hung?"
            )
        if events or isinstance(error, ChunkedEncodingError):
            return EngineError(
                f"{self.url}: broke off in the middle of an answer, after {events} events; has the server died?"
            )
        return self._unreachable(error)

    def _unreachable(self, error: Exception) -> EngineError:
        # The innermost cause is the shortest, e.g. "[Errno 111] Connection refused".
        text = str(getattr(error.args[0], "reason", error) if error.args else error) or type(error).__name__
        reason = text.rsplit(": ", 1)[-1].strip("')> ")
        return EngineError(
            f"{self.url}: no server answers there ({reason}); start it, or correct the url under `servers:`"
        )


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
    """The message of an error of OpenAI's API, vLLM or SGLang."""
    found = event.get("error", event) if isinstance(event, dict) else event
    if isinstance(found, dict):
        found = found.get("message") or found.get("detail") or found
    return str(found)[:300]


def generations_of(replies: Sequence[Completion], k: int) -> list[Generation]:
    """Generations of a batch that was sent at once; times are the batch's.

    `ttft_s` ends when each row has its first token, so that no row's prefill counts as decoding; `decode_s` runs from
    there to the last token. Tokens that came before have no measured time, so the time of the others is scaled to all.
    Raises EngineError for an answer in one piece that is too long for one round: the server does not stream.
    """
    first = max(reply.arrivals[0][0] for reply in replies)
    last = max(reply.arrivals[-1][0] for reply in replies)
    tokens = sum(len(reply.tokens) - 1 for reply in replies)
    together = sum(max(count for at, count in reply.arrivals if at <= first) - 1 for reply in replies)
    if tokens == together and tokens > len(replies) * (k + 1):
        raise EngineError(
            "the whole answer came in one piece: times per token need a server (and proxies) that stream each token"
        )
    decode_s = (last - first) * (tokens / (tokens - together) if tokens > together else 1.0)
    return [
        Generation(
            tokens=reply.tokens,
            stop=reply.stop,
            rounds=[],
            overlap=0.0,
            reached=0,
            ttft_s=first,
            prefill_s=first,
            decode_s=decode_s,
            counts=reply.counts,
        )
        for reply in replies
    ]


class HttpEngine(TokenizerEngine):
    """Sends token ids to a server, a batch at once, one request a prompt."""

    serves = True
    limit_s: float | None = None
    """The longest time of a streamed answer, for clients that are made from now on."""

    def __init__(self, pair: PairFiles, *, device: str = "cpu", threads: int | None = None) -> None:
        super().__init__(pair, device=device, threads=threads)
        self.tokenizer = hub.tokenizer(pair.target, pair.target_revision)
        self._clients: dict[tuple[str, str | None], Client] = {}

    @abstractmethod
    def request_completion(
        self, cell: Cell, prompt: Sequence[int], *, max_new_tokens: int, seed: int, alone: bool
    ) -> Completion:
        """The completion of one prompt. alone: no other request runs, so the server's counters count this prompt."""

    def environment(self) -> dict[str, Any]:
        """See `Engine`; also what the servers that the study names say of themselves."""
        known = super().environment()
        mine = [server for server in self.pair.servers if server.engine == self.name]
        if mine:
            known["engine"]["servers"] = {
                " ".join(filter(None, (server.method, server.variant, f"k={server.k}"))): self.described(server)
                for server in mine
            }
        return known

    def described(self, server: Endpoint) -> dict[str, Any]:
        """What a server that the study names says of itself."""
        return {}

    def ready(self, cell: Cell) -> None:
        """Start the cell's server where needed, before any time is measured."""

    @property
    def beside(self) -> bool:
        """Whether the servers of a method and its baseline run at the same time."""
        return True

    def stream(self, cell: Cell, prompt: Sequence[int], *, max_new_tokens: int, seed: int) -> Completion:
        """The completion of one prompt among others, with the arrival of each token. Call `ready` before."""
        return self.request_completion(cell, prompt, max_new_tokens=max_new_tokens, seed=seed, alone=False)

    def counters(self, cell: Cell) -> counters.Counters:
        """What the cell's server has counted of its speculation so far; empty if it does not say."""
        return counters.Counters()

    def ended(self, cell: Cell, within_s: float = 0.2) -> str:
        """How the cell's server ended that this engine had started; empty where it still runs after `within_s`."""
        return ""

    def generate(
        self, cell: Cell, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, seeds: Sequence[int]
    ) -> list[Generation]:
        """See `Engine`."""
        self.ready(cell)

        def request_completion(prompt: Sequence[int], seed: int) -> Completion:
            try:
                reply = self.request_completion(
                    cell, prompt, max_new_tokens=max_new_tokens, seed=seed, alone=len(prompts) == 1
                )
            except EngineError as error:
                if reason := self.ended(cell, within_s=1.0):
                    raise EngineError(reason) from error
                raise
            if not reply.tokens:
                raise EngineError(f"an answer of the server for {cell.name} held no token")
            return reply

        if len(prompts) == 1:
            return generations_of([request_completion(prompts[0], seeds[0])], cell.k)
        with ThreadPoolExecutor(max_workers=min(len(prompts), CONNECTIONS)) as pool:
            return generations_of(list(pool.map(request_completion, prompts, seeds)), cell.k)

    def client(self, url: str, endpoint: Endpoint | None = None) -> Client:
        """The client of an address and a key, kept so that no request pays for a new connection."""
        key_env = endpoint.api_key_env if endpoint else None
        if (url, key_env) not in self._clients:
            self._clients[url, key_env] = Client(url, key_env=key_env, limit_s=self.limit_s)
        return self._clients[url, key_env]

    def peak_memory_mb(self) -> float:
        """0: the memory is the server's."""
        return 0.0

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            client.session.close()
