"""Services that are asked badly: each request is refused in one sentence, and a proper one is then answered as before."""

from __future__ import annotations

import dataclasses
import json
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st
from models import Lab, listening

from specrig.audit.toy_pair import build
from specrig.models import hub
from specrig.services import protocol
from specrig.services.client import RowsClient
from specrig.services.coordinator import BatchedClient, Coordinator, DraftClient
from specrig.services.coordinator_app import coordinator_app
from specrig.services.protocol import RowRequest, RowsRequest
from specrig.services.worker_app import worker_app
from specrig.services.workers import DraftWorker, TargetWorker

V, CONTEXT, KEY = 8, 200, "a key"
FEW = settings(derandomize=True, max_examples=40)
PROPER = RowRequest(
    99, 0, [1, 2, 3], depth=2, draft=[3, 4], temperature=0.5, uniforms=[0.1, 0.2, 0.3], q=np.full((2, V), 1 / V, "f4")
)
NUMBERS = [0.0, -1.0, 1.0, 2.0, 1e-320, 1e-7, 1e30, 1e38, float("nan"), float("inf"), -float("inf")]


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The three services on loopback, in threads of this process; they want a key."""
    tokenizer, lab = hub.tokenizer(build(tmp_path_factory.mktemp("toy_pair")).target), Lab(vocab_size=V)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECRIG_API_KEY", KEY)
        works = {"target": TargetWorker(lab.target, 8, CONTEXT), "draft": DraftWorker(lab.model("draft"), 8, CONTEXT)}
        found = {name: listening(worker_app(work, batch=8, queue=64, key=KEY)) for name, work in works.items()}

        def made() -> Coordinator:
            drafts = DraftClient(RowsClient(found["draft"]), 8, 100, check=lambda: CONTEXT)
            return Coordinator(
                BatchedClient(RowsClient(found["target"]), 8, 100), drafts, eos=(), context=CONTEXT, running=4, queue=4
            )

        found["coordinator"] = listening(coordinator_app(made, tokenizer, "small", 4, key=KEY))
        yield found


def post(url: str, content: bytes, key: str = KEY) -> requests.Response:
    return requests.post(url, data=content, headers={"Authorization": f"Bearer {key}"}, timeout=20)


def refused(response: requests.Response) -> bool:
    """Whether a request was refused, and then with a sentence; never with an error of the service itself."""
    assert response.status_code < 500, response.text
    if response.status_code == 200:
        return False
    message = response.json()["error"]["message"]
    assert message and len(message) < 700 and "Traceback" not in message and " → " in message
    return True


def rows(url: str, content: bytes) -> None:
    """Send bytes for rows: what is not refused is answered with tokens and numbers that there are. Then a proper row is
    answered.
    """
    for sent in (content, protocol.pack(RowsRequest([PROPER], ended=[PROPER.session]))):
        response = post(url + protocol.PATH, sent)
        if not refused(response):
            answers = protocol.unpack_output(response.content).rows
            for answer in answers:
                assert all(token < V for token in answer.tokens)
                assert answer.q is None or np.isfinite(answer.q).all()
    assert len(answers) == 1 and answers[0].known and answers[0].tokens


row_requests = st.builds(
    RowRequest,
    session=st.sampled_from([0, 1, 2, (1 << 64) - 1]),
    num_cached=st.sampled_from([0, 0, 1, CONTEXT - 1, CONTEXT, (1 << 32) - 1]),
    tokens=st.lists(st.sampled_from([0, 1, V - 1, V, (1 << 32) - 1]), max_size=3) | st.just([1] * CONTEXT) | st.just([1] * (CONTEXT + 1)),
    depth=st.sampled_from([0, 1, 4, 16, 17, (1 << 32) - 1]),
    draft=st.lists(st.integers(0, V), max_size=3) | st.just([1] * 16) | st.just([1] * 17),
    temperature=st.sampled_from([0.5, 1.0, *NUMBERS]),
    uniforms=st.lists(st.floats(0, 1, width=32), max_size=17) | st.sampled_from([[number] * 17 for number in NUMBERS]),
    q=st.none()
    | st.builds(
        lambda shape, value, half: np.full(shape, value).astype("f2" if half else "f4"),
        st.tuples(st.integers(1, 16), st.sampled_from([1, V - 1, V, V])),
        st.sampled_from([1 / V, *[number for number in NUMBERS if not abs(number) >= 1e30]]),
        st.booleans(),
    ),
)  # fmt: skip


@pytest.mark.parametrize("kind", ["draft", "target"])
@FEW
@given(st.lists(row_requests, max_size=4))
def test_rows_of_any_content_are_answered_or_refused(
    urls: dict[str, str], kind: str, given_rows: list[RowRequest]
) -> None:
    rows(urls[kind], protocol.pack(RowsRequest(given_rows)))


MESSAGE = protocol.pack(RowsRequest([PROPER]))


@pytest.mark.parametrize("kind", ["draft", "target"])
@FEW
@given(at=st.integers(0, len(MESSAGE)), put=st.binary(max_size=9), cut=st.sampled_from([0, 1, 4, 8, len(MESSAGE)]))
def test_bytes_of_any_kind_are_answered_or_refused(
    urls: dict[str, str], kind: str, at: int, put: bytes, cut: int
) -> None:
    rows(urls[kind], MESSAGE[:at] + put + MESSAGE[at + cut :])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 1e-320}, "rows.0.temperature: a temperature is 0 (greedy decoding) or at least 1e-06"),
        ({"temperature": float("nan")}, "rows.0.temperature: a temperature is a finite number from 0 to 10"),
        ({"uniforms": [1.0] * 3}, "rows.0.uniforms.0: Input should be less than 1"),
        ({"uniforms": [float("nan")] * 3}, "rows.0.uniforms.0: Input should be a finite number"),
        *[
            ({"q": np.full((2, V), bad, "f4")}, "nothing can be drawn from")
            for bad in (-1, 0, float("nan"), float("inf"))
        ],
        ({"q": np.zeros((2, V), "f2")}, "nothing can be drawn from"),
    ],
)
def test_numbers_that_would_draw_tokens_which_there_are_not(
    urls: dict[str, str], change: dict[str, Any], message: str
) -> None:
    row = dataclasses.replace(PROPER, **change)
    for kind in ("draft", "target"):
        response = post(urls[kind] + protocol.PATH, protocol.pack(RowsRequest([row])))
        assert response.status_code == 422 and message in response.json()["error"]["message"]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from([1e-320, 10**30, "\ud800", "\0"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.just("\ud800"), inner, max_size=3)
    ),
    max_leaves=5,
)
FIELDS = [
    "prompt",
    "messages",
    "model",
    "temperature",
    "seed",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "n",
]
FIELDS += ["draft_tokens", "return_token_ids", "top_p", "top_k", "logprobs", "stop", "user", "\ud800", "é"]


def completed(url: str, first: bytes, path: str = "/v1/completions") -> requests.Response:
    """The answer to a request that may be bad, after which a proper one was answered."""
    response = post(url + path, first)
    refused(response)
    again = post(url + "/v1/completions", b'{"prompt": [1, 2], "max_tokens": 3, "temperature": 0}')
    assert again.status_code == 200 and again.json()["usage"]["completion_tokens"] == 3
    return response


@FEW
@given(
    st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3),
    st.sampled_from(["/v1/completions", "/v1/chat/completions"]),
)
def test_requests_of_any_content_are_answered_or_refused(
    urls: dict[str, str], change: dict[str, Any], path: str
) -> None:
    start = {"prompt": [1, 2]} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "a"}]}
    completed(urls["coordinator"], json.dumps({**start, "max_tokens": 3, **change}).encode(), path)


@FEW
@given(st.binary(max_size=40))
def test_bytes_that_are_no_json_are_refused(urls: dict[str, str], content: bytes) -> None:
    assert refused(completed(urls["coordinator"], content))


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (b'{"prompt": "a", "\\ud800": 1}', 422, "body: you gave"),
        (b'{"prompt": "\xff"}', 422, "body: you gave"),
        (b'{"seed": ' + b"9" * 5000 + b"}", 422, ""),
        (
            b'{"prompt": [1], "temperature": 1e-320}',
            422,
            "temperature: you gave 1e-320 → a temperature is 0 (greedy decoding) or at least 1e-06",
        ),
        (
            b'{"prompt": "' + b"a" * (15 << 20) + b'"}',
            422,
            "prompt: a prompt of 15728640 characters, the most are 12800",
        ),
        (b" " * (17 << 20), 413, "the request is longer than 16 MiB"),
    ],
    ids=range(6),
)
def test_requests_that_once_broke_or_held_up_the_service(
    urls: dict[str, str], content: bytes, status: int, message: str
) -> None:
    response = completed(urls["coordinator"], content)
    assert response.status_code == status and response.json()["error"]["message"].startswith(message)


@FEW
@given(
    st.text(st.characters(max_codepoint=255, exclude_categories=["Cc"]), max_size=12).filter(
        lambda key: key.strip() != KEY
    )
)
def test_no_other_key_opens(urls: dict[str, str], key: str) -> None:
    for url in urls.values():
        header = {"Authorization": f"Bearer {key}".encode("latin-1")}
        response = requests.get(url + "/metrics", headers=header, timeout=20)
        assert response.status_code == 401 and refused(response) and KEY not in response.text


HEADER = f"POST {protocol.PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: 100\r\n\r\n"


def test_a_disconnect_is_no_error_of_the_service(urls: dict[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    host, _, port = urls["draft"].removeprefix("http://").partition(":")
    for _ in range(3):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(f"{HEADER}half".encode())
    rows(urls["draft"], MESSAGE)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("GET", "/nowhere", b"", 404),
        ("GET", "/v1/completions", b"", 405),
        ("POST", "/v1/completions", b" " * ((16 << 20) + 1), 413),
    ],
)
def test_a_clients_errors_are_typed_as_such(
    urls: dict[str, str], method: str, path: str, content: bytes, status: int
) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    found = requests.request(method, urls["coordinator"] + path, data=content, headers=headers, timeout=20)
    assert found.status_code == status and found.json()["error"]["type"] == "invalid_request_error"
