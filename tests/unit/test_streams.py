"""Servers as people have them: streams of every shape, refusals and errors, over a real socket."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from specrig.audit.toy_pair import PROMPT, build
from specrig.cell import Cell
from specrig.decoding.types import Generation
from specrig.engines.http.client import GATHERED
from specrig.engines.server import Server
from specrig.errors import EngineError
from specrig.measurement.traffic.loops import Requests, closed_loop
from specrig.models.endpoint import Endpoint
from specrig.models.pair import PairFiles

TOKENS = [[3], [4, 5], [6], [1, 2]]
N = 6
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
Part = bytes | float
"""Bytes of a body, or seconds to wait."""


class Scripted(ThreadingHTTPServer):
    """Gives each POST the next of its answers, the last one again and again."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[Callable[[Handler], None]] = []
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_: object) -> None:
        """A client that gave up is no news."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Scripted

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self.whole(404, b"{}")

    def do_POST(self) -> None:
        self.server.bodies.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
        answers = self.server.answers
        (answers.pop(0) if len(answers) > 1 else answers[0])(self)

    def whole(self, status: int, content: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def stream(self, parts: list[Part], *, chunked: bool = True) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header(*(("Transfer-Encoding", "chunked") if chunked else ("Connection", "close")))
        self.end_headers()
        for part in [*parts, b""]:
            if isinstance(part, float):
                time.sleep(part)
            elif chunked:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            else:
                self.wfile.write(part)
        self.close_connection = self.close_connection or not chunked


@pytest.fixture(scope="module")
def server() -> Iterator[Scripted]:
    found = Scripted()
    yield found
    found.shutdown()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build(tmp_path_factory.mktemp("toy_pair")).target


def event(content: object) -> bytes:
    return b"data: " + (content if isinstance(content, bytes) else json.dumps(content).encode()) + b"\n\n"


def choice(endpoint: str, ids: list[int], finish: str | None = None) -> dict[str, Any]:
    text = "".join(map(str, ids))
    said = {"delta": {"content": text}} if endpoint == "chat" else {"text": text}
    return {"choices": [{"index": 0, "token_ids": ids, "finish_reason": finish, **said}]}


def usage(**more: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": len(PROMPT), "completion_tokens": N, **more}}


def said(endpoint: str, *more: object, pause: float = 0.02, finish: str = "length") -> list[Part]:
    """A stream of `TOKENS`, a read each, with what follows."""
    pieces: list[Part] = []
    for number, ids in enumerate(TOKENS, 1):
        pieces += [event(choice(endpoint, ids, finish if number == len(TOKENS) else None)), pause]
    return [*pieces, *map(event, more)]


def ask(
    server: Scripted, target: str, endpoint: str, *answers: Callable[[Handler], None], limit: int = N, k: int = 1
) -> Generation:
    """What the engine makes of the last of these answers."""
    server.answers = list(answers)
    named = Endpoint(pair="p", method="ngram", k=k, url=server.url, model="m", endpoint=endpoint)  # type: ignore[arg-type]
    with Server(PairFiles("p", target, servers=(named,))) as engine:
        cell = Cell(engine="server", pair="p", method="ngram", k=k, task="t", temperature=0.0)
        return engine.generate(cell, [list(PROMPT)], max_new_tokens=limit, seeds=[0])[0]


DONE = b"[DONE]"
SHAPES: dict[str, Callable[[str], tuple[list[Part], bool]]] = {
    "whole": lambda endpoint: (said(endpoint, usage(), DONE), True),
    "without [DONE] and usage": lambda endpoint: (said(endpoint), True),
    "an end of the connection": lambda endpoint: (said(endpoint, usage(), DONE), False),
    "usage null": lambda endpoint: (said(endpoint, {"choices": [], "usage": None}, DONE), True),
    "usage of nulls": lambda endpoint: (said(endpoint, usage(completion_tokens=None), DONE), True),
    "comments and empty data": lambda endpoint: (
        [b": ping\n\n", b"data:\n\n", b"\n", b"data: \r\n\r\n", b"id: 4\nretry: 9\n", *said(endpoint, usage(), DONE)],
        True,
    ),
    "llama.cpp's verbose": lambda endpoint: (
        [
            part
            for ids in TOKENS
            for part in (
                event({"choices": [{"index": 0, "text": "x", "logprobs": None}], "__verbose": {"tokens": ids}}),
                0.004,
            )
        ]
        + [event({"choices": [{"index": 0, "finish_reason": "length"}], "__verbose": {"tokens": []}})],
        True,
    ),
    "a byte order mark": lambda endpoint: ([b"\xef\xbb\xbf", *said(endpoint, DONE)], True),
    "lines in pieces, CRLF": lambda endpoint: (
        [
            half
            for part in said(endpoint, DONE)
            for half in (
                [part] if isinstance(part, float) else [part[:9], part[9:].replace(b"\n", b"\r\n")]
            )
        ],
        True,
    ),
    "roles and keep-alives": lambda endpoint: (
        [
            event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}),
            event({"choices": []}),
            *said(endpoint, DONE),
        ],
        True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
@pytest.mark.parametrize("shape", SHAPES)
def test_streams_of_every_shape_are_read(server: Scripted, target: str, shape: str, endpoint: str) -> None:
    parts, chunked = SHAPES[shape](endpoint)
    got = ask(server, target, endpoint, lambda handler: handler.stream(parts, chunked=chunked))
    assert got.tokens == [token for ids in TOKENS for token in ids] and got.stop == "length" and got.notes == []
    assert got.prefill_tokens == 1 and got.decode_s > 0
    path, body = server.bodies[-1]
    assert path == ("/v1/chat/completions" if endpoint == "chat" else "/v1/completions")
    assert body["stream"] and ("prompt" in body) == (endpoint == "completions") != ("messages" in body)


def failing(*parts: Part) -> Callable[[Handler], None]:
    return lambda handler: handler.stream([event(choice("completions", [3])), *parts])


FAULTS: dict[str, tuple[Callable[[Handler], None], str]] = {
    "error in OpenAI's form": (
        failing(event({"error": {"message": "out of memory", "code": 500}})),
        "reports: out of memory",
    ),
    "error as an event": (failing(b'event: error\ndata: {"message": "out of memory"}\n\n'), "reports: out of memory"),
    "error as a field": (failing(b'error: {"code": 500, "message": "no slot"}\n\n'), "reports: no slot"),
    "error as text": (failing(b"event: error\ndata: shutting down\n\n"), "reports: shutting down"),
    "error as an object": (
        failing(event({"object": "error", "message": "too long", "code": 400})),
        "reports: too long",
    ),
    "no end": (failing(), r"ended without a finish_reason; has the server died\?"),
    "filtered": (
        lambda handler: handler.stream(said("completions", DONE, finish="content_filter")),
        "finish_reason 'content_filter'",
    ),
    "another prompt": (
        lambda handler: handler.stream(said("completions", usage(prompt_tokens=99))),
        "its usage says 99 prompt tokens, the study's prompt has 13",
    ),
    "moved": (
        lambda handler: handler.whole(301, b"", Location="https://new.example/v1/completions"),
        r"redirects \(status 301\) to https://new.example/v1/completions",
    ),
    "refused": (
        lambda handler: handler.whole(400, b'{"detail": "prompt is too long"}'),
        "status 400: prompt is too long",
    ),
    "a proxy's page": (
        lambda handler: handler.whole(502, b"<html>\n<head><title>502 Bad Gateway</title></head></html>"),
        "refused with status 502: 502 Bad Gateway$",
    ),
    "a page": (
        lambda handler: handler.whole(200, b"<html>Please log in</html>", Content_Type="text/html; charset=utf-8"),
        r"its answer is no stream of events \(text/html: '<html>Please log in</html>'\)",
    ),
    "not streamed": (
        lambda handler: handler.whole(200, b'{"choices": []}', Content_Type="application/json"),
        r"no stream of events \(application/json: .*can it stream\?",
    ),
    "two answers": (failing(event({"choices": [{"index": 1, "token_ids": [3]}]})), "several answers .*leave `n` out"),
    "another form": (failing(event({"choices": [[1]]})), r"an event is not of OpenAI's form: \{'choices': \[\[1\]\]\}"),
    "another model": (
        lambda handler: handler.stream([event(choice("completions", [999_999], "length"))]),
        r"it answered the token 999999, the target of pair p has \d+: it serves another model",
    ),
    "no answer": (
        lambda handler: setattr(handler, "close_connection", True),
        r"no server answers there \(Remote end closed connection without response\)",
    ),
    "busy until some time": (lambda handler: handler.whole(429, b"later", Retry_After="soon"), "status 429: later$"),
    "busy without a time": (lambda handler: handler.whole(503, b"overloaded"), "status 503: overloaded"),
    "busy for too long": (
        lambda handler: handler.whole(429, b"slow down", Retry_After="3600"),
        r"status 429: slow down \(come again in 3600 s\)",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named_in_the_servers_words(server: Scripted, target: str, fault: str) -> None:
    answer, message = FAULTS[fault]
    with pytest.raises(EngineError, match=message):
        ask(server, target, "completions", answer)


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again_before_the_clock_starts(server: Scripted, target: str, status: int) -> None:
    begun = time.monotonic()
    got = ask(
        server,
        target,
        "completions",
        lambda handler: handler.whole(status, b"{}", Retry_After="1"),
        lambda handler: handler.stream(said("completions", DONE)),
    )
    assert len(got.tokens) == N and got.ttft_s < time.monotonic() - begun - 1


@pytest.mark.parametrize(
    ("limit", "more", "note"),
    [
        (
            N,
            usage(prompt_tokens_details={"cached_tokens": 9}),
            "answers began with a prompt that the server had cached",
        ),
        (9, usage(), "an answer was shorter than asked: 6 tokens, not 9"),
        (4, usage(), "an answer was longer than asked: 6 tokens, not 4"),
    ],
)
def test_what_an_answer_suffers_from_is_said_once_and_recorded(
    server: Scripted, target: str, limit: int, more: Any, note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    got = ask(server, target, "completions", lambda handler: handler.stream(said("completions", more)), limit=limit)
    assert len(got.tokens) == N and [text.startswith(note) for text in got.notes] == [True]
    assert capsys.readouterr().err.count(note) == 1


@pytest.mark.parametrize("at_once", [True, False])
def test_a_stream_that_arrives_at_once_has_no_decode_time(server: Scripted, target: str, at_once: bool) -> None:
    """Whether as one chunk or as many of one write: what a proxy that buffers sends."""
    parts = b"".join(part for part in said("completions", usage(), DONE) if isinstance(part, bytes))

    def answer(handler: Handler) -> None:
        time.sleep(0.05)
        if at_once:
            handler.stream([parts])
            return
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunks = [line + b"\n\n" for line in parts.split(b"\n\n") if line]
        handler.wfile.write(head + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in [*chunks, b""]))

    got = ask(server, target, "completions", answer)
    assert got.decode_s == 0 and got.prefill_tokens == len(got.tokens) == N and got.notes == [GATHERED]
    assert 0.05 <= got.ttft_s == got.prefill_s

    named = Endpoint(pair="p", method="ngram", k=1, url=server.url, model="m")
    with Server(PairFiles("p", target, servers=(named,))) as engine:
        engine.limit_s = 5.0
        cell = Cell(engine="server", pair="p", method="ngram", k=1, task="t", temperature=0.0)

        def requests_under_load() -> list[Any]:
            """The two that count, one after the other."""
            requests = Requests(
                lambda _: engine.stream(cell, list(PROMPT), max_new_tokens=N, seed=0),
                ["a"], warmup=0, counted=2, at_once=1, k=1,
            )  # fmt: skip
            closed_loop(requests, 1)
            return requests.found[:2]

        for request in requests_under_load():
            assert request.first_s == request.last_s >= request.sent_s + 0.05 and request.first_tokens == N
        server.answers = [lambda handler: handler.stream(said("completions", DONE, pause=0.1))]
        for request in requests_under_load():
            assert request.last_s >= request.first_s + 0.1 and request.first_tokens == len(TOKENS[0])
        server.answers = [lambda handler: handler.whole(429, b"{}", Retry_After="0")]
        assert all("status 429" in request.error for request in requests_under_load()), "under load a refusal counts"


def test_a_chat_is_sent_as_its_user_wrote_it(server: Scripted, target: str, tmp_path: Path) -> None:
    named = Endpoint(pair="p", method="ngram", k=1, url=server.url, model="m", endpoint="chat")
    with Server(PairFiles("p", target, servers=(named,))) as engine:
        engine.tokenizer.chat_template = TEMPLATE
        cell = Cell(engine="server", pair="p", method="ngram", k=1, task="t", temperature=0.0)
        server.answers = [lambda handler: handler.stream(said("chat", DONE))]
        for text, content in (("<user>Why is it?\n<assistant>", "Why is it?"), ("Why is it?", "Why is it?")):
            engine.generate(cell, [engine.encode(text)], max_new_tokens=N, seeds=[0])
            assert server.bodies[-1][1]["messages"] == [{"role": "user", "content": content}]
        with pytest.raises(EngineError, match="a system turn or several turns"):
            text = "<system>Be brief\n<user>Why is it?\n<assistant>"
            engine.generate(cell, [engine.encode(text)], max_new_tokens=N, seeds=[0])
        server.answers = [lambda handler: handler.stream(said("chat", usage(prompt_tokens=99)))]
        got = engine.generate(cell, [engine.encode("Why?")], max_new_tokens=N, seeds=[0])[0]
        assert [note.partition(":")[0] for note in got.notes] == ["answers are to other prompts than the study's"]
