"""Draft, target and coordinator as real processes on loopback: under load, when the draft dies, is slow or comes back,
and asked badly.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import requests
from models import listening

from specrig.audit.toy_pair import PROMPT, build
from specrig.cell import Cell
from specrig.cli import main
from specrig.decoding.types import Generation
from specrig.engines.base import EngineError
from specrig.engines.http import counters
from specrig.engines.http.launch import ServerProcess, free_port
from specrig.engines.native import Native
from specrig.engines.server import Server
from specrig.http_client import ServerError
from specrig.models import hub
from specrig.models.endpoint import Endpoint
from specrig.models.pair import PairFiles
from specrig.services import protocol
from specrig.services.app import ServingError
from specrig.services.client import RowsClient
from specrig.services.coordinator import BatchedClient, Coordinator
from specrig.services.coordinator_app import _expect, coordinator_app
from specrig.services.protocol import RowRequest

K, LENGTH = 4, 24
REQUESTS = 60


@dataclass
class Fleet:
    """The three processes and their addresses."""

    pair: PairFiles
    urls: dict[str, str]
    processes: dict[str, ServerProcess]

    def start(self, kind: str) -> None:
        more = {
            "target": [self.pair.target, "--threads=1"],
            "draft": [str(self.pair.draft), "--threads=1"],
            "coordinator": [
                f"--target={self.urls['target']}",
                f"--draft={self.urls['draft']}",
                "--draft-timeout-ms=3000",
            ],
        }[kind]
        port = self.urls[kind].rpartition(":")[2]
        command = [sys.executable, "-m", "specrig", "serve", kind, *more, f"--port={port}"]
        self.processes[kind] = ServerProcess(command, self.urls[kind], health="/health", ready_s=240)

    def ask(self, **body: Any) -> requests.Response:
        body = {"prompt": list(PROMPT), "max_tokens": LENGTH, "temperature": 0, "return_token_ids": True} | body
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        return requests.post(self.urls["coordinator"] + path, json=body, timeout=120)

    def tokens(self, **body: Any) -> list[int]:
        response = self.ask(**body)
        assert response.status_code == 200, response.text
        found: list[int] = response.json()["choices"][0]["token_ids"]
        return found

    def page(self) -> defaultdict[str, float]:
        """The coordinator's metrics by name, those with labels summed."""
        found: defaultdict[str, float] = defaultdict(float)
        for line in requests.get(self.urls["coordinator"] + "/metrics", timeout=30).text.splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                name = name.partition("{")[0].partition(":")[2]
                found[name] += float(value)
        return found


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> PairFiles:
    return build(tmp_path_factory.mktemp("toy_pair"))


@pytest.fixture(scope="module")
def fleet(pair: PairFiles) -> Iterator[Fleet]:
    fleet = Fleet(pair, {kind: f"http://127.0.0.1:{free_port()}" for kind in ("target", "draft", "coordinator")}, {})
    with ThreadPoolExecutor(3) as pool:  # open to the end: a child dies with the thread that started it
        list(pool.map(fleet.start, fleet.urls))
        yield fleet
        list(pool.map(ServerProcess.close, fleet.processes.values()))


@pytest.fixture(scope="module")
def native(pair: PairFiles) -> Native:
    return Native(pair, threads=1)


def generated(
    native: Native, prompt: list[int], method: str = "draft_model", temperature: float = 0.0, seed: int = 0
) -> Generation:
    options = {"acceptance": "exact"} if method == "draft_model" else {}
    k = K if method == "draft_model" else 0
    cell = Cell(engine="native", pair="p", method=method, k=k, task="t", temperature=temperature, options=options)
    return native.generate(cell, [prompt], max_new_tokens=LENGTH, seeds=[seed])[0]


def some_prompts(count: int) -> list[list[int]]:
    draw = random.Random(5)
    return [[draw.randrange(8) for _ in range(draw.randrange(3, 40))] for _ in range(count)]


def stream(url: str, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream, which ends as it should."""
    events = []
    with requests.post(url, json={"stream": True, **body}, stream=True, timeout=120) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == b"data: [DONE]"
    for line in lines[:-1]:
        events.append(json.loads(line.removeprefix(b"data: ")))
    return events


def test_sampled_and_greedy_outputs_are_those_of_the_native_loop_and_are_counted(fleet: Fleet, native: Native) -> None:
    before = fleet.page()
    prompts, temperatures = some_prompts(12), [0.0, 0.7, 1.3]
    truth = [generated(native, prompt, temperature=temperatures[n % 3], seed=n) for n, prompt in enumerate(prompts)]
    with ThreadPoolExecutor(len(prompts)) as pool:
        requested = [
            pool.submit(fleet.tokens, prompt=p, temperature=temperatures[n % 3], seed=n) for n, p in enumerate(prompts)
        ]
        assert [future.result() for future in requested] == [generation.tokens for generation in truth]
    rounds = [entry for generation in truth for entry in generation.rounds]
    grown = {name: value - before[name] for name, value in fleet.page().items()}
    assert grown["spec_decode_num_drafts_total"] == len(rounds)
    assert grown["spec_decode_num_draft_tokens_total"] == sum(entry.drafted for entry in rounds)
    assert grown["spec_decode_num_accepted_tokens_total"] == sum(entry.accepted for entry in rounds) > 0
    assert grown["spec_decode_num_accepted_tokens_per_pos_total"] == grown["spec_decode_num_accepted_tokens_total"]
    assert grown["generation_tokens_total"] == LENGTH * len(prompts)
    assert grown["request_success_total"] == len(prompts)
    assert grown["rounds_without_a_draft_total"] == 0


def test_the_server_engine_measures_the_coordinator(fleet: Fleet, native: Native) -> None:
    url = fleet.urls["coordinator"]
    plain = Endpoint(pair="p", method="autoregressive", url=url, fields={"draft_tokens": 0})
    servers = (plain, Endpoint(pair="p", method="draft_model", k=K, url=url))
    truth = generated(native, list(PROMPT))
    with Server(PairFiles("p", fleet.pair.target, servers=servers)) as engine:
        for server in servers:
            cell = Cell(engine="server", pair="p", method=server.method, k=server.k, task="t", temperature=0.0)
            (found,) = engine.generate(cell, [list(PROMPT)], max_new_tokens=LENGTH, seeds=[0])
            assert found.tokens == truth.tokens and found.counts is not None
            drafted = sum(entry.drafted for entry in truth.rounds) if server.k else 0
            assert found.counts.drafted == drafted
            assert found.counts.accepted == (sum(entry.accepted for entry in truth.rounds) if server.k else 0)


def test_streams_come_in_order_and_say_what_the_whole_answer_says(fleet: Fleet) -> None:
    url = fleet.urls["coordinator"] + "/v1/completions"
    prompts = some_prompts(16)
    wholes = [fleet.ask(prompt=prompt).json() for prompt in prompts]

    def one(prompt: list[int]) -> list[dict[str, Any]]:
        more = {"return_token_ids": True, "stream_options": {"include_usage": True}}
        return stream(url, prompt=prompt, max_tokens=LENGTH, temperature=0, **more)

    with ThreadPoolExecutor(16) as pool:
        streams = list(pool.map(one, prompts))
    for prompt, whole, (*events, last) in zip(prompts, wholes, streams, strict=True):
        choices = [event["choices"][0] for event in events]
        assert [token for choice in choices for token in choice["token_ids"]] == whole["choices"][0]["token_ids"]
        assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
        assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
        assert len(choices) > 3 and {event["id"] for event in [*events, last]} == {last["id"]}
        assert last["usage"] == whole["usage"] == {
            "prompt_tokens": len(prompt), "completion_tokens": LENGTH, "total_tokens": len(prompt) + LENGTH
        }  # fmt: skip


def test_the_script_that_loads_services(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`benchmarks/serving.py` at small size, on services that run already."""
    spec = importlib.util.spec_from_file_location("serving", Path(__file__).parents[2] / "benchmarks/serving.py")
    assert spec and spec.loader
    serving = sys.modules["serving"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(serving)
    url = fleet.urls["coordinator"]
    ways = {"plain": serving.Way(url, {"draft_tokens": 0}), "drafting": serving.Way(url, {})}
    monkeypatch.setattr(serving, "services", lambda *_: ways)
    monkeypatch.setattr(serving.importlib.util, "find_spec", lambda _: None)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n')
    words = ["serving.py", "PAIR", str(tmp_path), "--clients", "2", "--tokens=4", "--requests=4", "--turns=1"]
    monkeypatch.setattr(sys, "argv", words)
    serving.main()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [line[:2] for line in lines] == [["2", "plain"], ["2", "drafting"]]
    assert all(float(line[2]) > 0 for line in lines)


def test_no_request_is_lost_when_the_draft_is_killed_and_started_again(fleet: Fleet, native: Native) -> None:
    """60 clients ask again and again while the draft is killed, is away, and is back."""
    prompts = some_prompts(REQUESTS)
    truth = [generated(native, prompt, "autoregressive").tokens for prompt in prompts]
    before, drafting_again = fleet.page(), threading.Event()

    def client(prompt: list[int]) -> list[list[int]]:
        found = [fleet.tokens(prompt=prompt)]
        while not drafting_again.wait(0.25):  # a processor is left to the draft that starts again
            found.append(fleet.tokens(prompt=prompt))
        return found

    def until(name: str, value: float) -> defaultdict[str, float]:
        for _ in range(2000):
            if (page := fleet.page())[name] > value:
                return page
            time.sleep(0.05)
        pytest.fail(f"{name} stays at {value:.0f}")

    with ThreadPoolExecutor(REQUESTS) as pool:
        clients = [pool.submit(client, prompt) for prompt in prompts]
        try:
            until("request_success_total", before["request_success_total"] + REQUESTS / 5)
            os.kill(fleet.processes["draft"].process.pid, signal.SIGKILL)
            killed = until("rounds_without_a_draft_total", before["rounds_without_a_draft_total"])
            fleet.processes["draft"].close()
            fleet.start("draft")
            back = until("spec_decode_num_drafts_total", fleet.page()["spec_decode_num_drafts_total"])
        finally:
            drafting_again.set()
        found = [future.result() for future in clients]
    assert all(tokens == expected for each, expected in zip(found, truth, strict=True) for tokens in each)
    assert killed["draft_failures_total"] > before["draft_failures_total"]
    after, count = fleet.page(), sum(map(len, found))
    assert after["request_success_total"] - before["request_success_total"] == count >= REQUESTS
    without = after["rounds_without_a_draft_total"] - before["rounds_without_a_draft_total"]
    at = [int(page["request_success_total"] - before["request_success_total"]) for page in (killed, back)]
    print(
        f"{count} requests, none lost: draft killed after {at[0]}, back after {at[1]}; {without:.0f} rounds without a "
        "draft"
    )


def until_it_drafts(fleet: Fleet, drafts: float) -> None:
    """Ask until the draft service is asked again: it is left alone for some seconds after a failure."""
    for _ in range(200):
        fleet.tokens()
        if fleet.page()["spec_decode_num_drafts_total"] > drafts:
            return
        time.sleep(0.1)
    pytest.fail("the draft service was not asked again")


def test_a_draft_that_is_late_is_done_without(fleet: Fleet, native: Native) -> None:
    truth, before = generated(native, list(PROMPT), "autoregressive").tokens, fleet.page()
    process = fleet.processes["draft"].process
    process.send_signal(signal.SIGSTOP)  # it lives and takes connections, but answers nothing
    try:
        assert fleet.tokens() == truth
        stopped = fleet.page()
        assert stopped["draft_failures_total"] > before["draft_failures_total"]
    finally:
        process.send_signal(signal.SIGCONT)
    until_it_drafts(fleet, stopped["spec_decode_num_drafts_total"])
    assert fleet.tokens() == truth


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"max_tokens": 0}, "max_tokens: you gave 0 → it should be greater than or equal to 1"),
        ({"temperature": -1}, "temperature: you gave -1 → it should be greater than or equal to 0"),
        ({"prompt": ""}, "prompt: you gave '' → it should have at least 1 character"),
        ({"prompt": [8]}, "prompt: token 8, the model has 8"),
        ({"prompt": [3, -1]}, "prompt.1: you gave -1 → it should be greater than or equal to 0"),
        ({"messages": [{"role": "user"}], "return_token_ids": False}, "messages.0.content: it is missing → add it"),
        ({"stream_options": {"all": True}}, "stream_options.all: no such field here → leave it out"),
        (
            {"max_tokens": 10_000},
            "max_tokens: a prompt of 13 tokens and 10000 new ones need 10013, there is room for 506",
        ),
        ({"top_p": 0.5}, "top_p: you gave 0.5 → it should be greater than or equal to 1"),
        ({"n": 2}, "n: you gave 2 → it should be 1"),
        ({"draft_tokens": 7}, "draft_tokens: you gave 7 → it should be less than or equal to 6"),
        ({"beams": 3}, "beams: no such field here → leave it out"),
        ({"messages": [{"role": "user", "content": "a"}]}, "prompt: no such field here"),
    ],
)
def test_bad_requests_are_told_what_where_and_how(fleet: Fleet, body: dict[str, Any], message: str) -> None:
    response = fleet.ask(**body)
    assert response.status_code == 422 and response.json()["error"]["message"].startswith(message), response.text
    assert "Traceback" not in response.text and len(response.text) < 800


def test_requests_that_are_no_requests(fleet: Fleet) -> None:
    url = fleet.urls["coordinator"]
    chat = requests.post(
        url + "/v1/chat/completions", json={"messages": [{"role": "user", "content": "a"}]}, timeout=30
    )
    assert (
        chat.status_code == 422
        and "has no chat template → send it to /v1/completions" in chat.json()["error"]["message"]
    )
    for content in (b"", b"{", b"[" * 100_000, b"[]", b"\xff\xfe"):
        response = requests.post(url + "/v1/completions", data=content, timeout=30)
        assert response.status_code == 422 and response.json()["error"]["message"].startswith("body: "), content[:20]
    other = requests.post(url + "/v1/completions", json={"model": "gpt", "prompt": "a"}, timeout=30)
    assert other.status_code == 404 and "'gpt' is not served here" in other.json()["error"]["message"]
    assert requests.get(url + "/v1/embeddings", timeout=30).status_code == 404
    for kind in ("draft", "target"):
        response = requests.post(fleet.urls[kind] + protocol.PATH, data=b"SRIG1Qnonsense", timeout=30)
        assert (
            response.status_code == 422
            and "is no safetensors file with a message" in response.json()["error"]["message"]
        )
    with pytest.raises(ServerError, match=r"status 422: .*holds token 99"):
        RowsClient(fleet.urls["draft"]).run([RowRequest(1, 0, [99], depth=1)])


def test_full_queues_say_when_to_come_again(fleet: Fleet, pair: PairFiles) -> None:
    """A coordinator for one request at a time, with room for one that waits; both of its requests are answered."""

    def made() -> Coordinator:
        target = BatchedClient(RowsClient(fleet.urls["target"]), 8, 100)
        return Coordinator(target, None, eos=(), context=512, running=1, queue=1)

    url = listening(coordinator_app(made, hub.tokenizer(pair.target), "small", 0, key=None)) + "/v1/completions"
    with ThreadPoolExecutor(12) as pool:
        body = {"prompt": list(PROMPT), "max_tokens": 100, "temperature": 0}
        found = list(pool.map(lambda _: requests.post(url, json=body, timeout=120), range(12)))
    codes = sorted(response.status_code for response in found)
    assert codes[0] == 200 and codes[-1] == 429
    assert {response.json()["choices"][0]["text"] for response in found if response.ok} == {found_text(found)}
    for response in found:
        if not response.ok:
            assert (
                response.headers["Retry-After"] == "1"
                and "1 requests wait already" in response.json()["error"]["message"]
            )
    rows = [RowRequest(number, 0, [1]) for number in range(1033)]  # 1,024 may wait, beside the 8 of a batch
    with pytest.raises(ServerError, match=r"status 503: .*rows wait already"):
        RowsClient(fleet.urls["target"]).run(rows)
    found, _ = RowsClient(fleet.urls["target"]).run(rows[:1032])
    assert len(found) == 1032


def test_draft_tokens_are_refused_where_nothing_drafts(fleet: Fleet, pair: PairFiles) -> None:
    def made() -> Coordinator:
        target = BatchedClient(RowsClient(fleet.urls["target"]), 8, 100)
        return Coordinator(target, None, eos=(), context=512, running=4, queue=4)

    url = listening(coordinator_app(made, hub.tokenizer(pair.target), "small", 0, key=None)) + "/v1/completions"
    body = {"prompt": list(PROMPT), "max_tokens": 4, "temperature": 0}
    refused = requests.post(url, json=body | {"draft_tokens": 3}, timeout=30)
    assert refused.status_code == 422 and "draft_tokens: 3 draft tokens, but no service drafts" in refused.text
    assert requests.post(url, json=body | {"draft_tokens": 0}, timeout=30).status_code == 200


def found_text(found: list[requests.Response]) -> str:
    return next(str(response.json()["choices"][0]["text"]) for response in found if response.ok)


def test_a_key_is_asked_for_and_needed_where_it_listens_widely(
    fleet: Fleet, pair: PairFiles, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SPECRIG_API_KEY", raising=False)
    for words in (["draft", "nowhere"], ["target", "nowhere"], ["coordinator"]):
        assert main(["serve", *words, "--host", "0.0.0.0"]) == 2
        assert "set a key in the environment variable SPECRIG_API_KEY" in capsys.readouterr().err

    def made() -> Coordinator:
        return Coordinator(
            BatchedClient(RowsClient(fleet.urls["target"]), 8, 100), None, eos=(), context=512, running=4, queue=4
        )

    url = listening(coordinator_app(made, hub.tokenizer(pair.target), "small", 0, key="a secret"))
    with monkeypatch.context() as patch:  # `/health` needs no key, so a wrong one is found by asking for more
        patch.setenv("SPECRIG_API_KEY", "another")
        with pytest.raises(ServingError, match=r"--coordinator: .*no valid key"):
            _expect(RowsClient(url), "coordinator", 0.0)
    body = {"prompt": list(PROMPT), "max_tokens": 4}
    for headers in ({}, {"Authorization": "Bearer another"}, {"Authorization": "a secret"}):
        for path in ("/v1/completions", "/v1/chat/completions"):
            refused = requests.post(url + path, json=body, headers=headers, timeout=30)
            assert refused.status_code == 401 and "a secret" not in refused.text
        assert requests.get(url + "/metrics", headers=headers, timeout=30).status_code == 401
    assert requests.get(url + "/health", timeout=30).json()["status"] == "ok"
    right = {"Authorization": "Bearer a secret"}
    assert requests.post(url + "/v1/completions", json=body, headers=right, timeout=30).status_code == 200
    assert counters.parse(requests.get(url + "/metrics", headers=right, timeout=30).text)[counters.GENERATED, -1] == 4


def test_the_drafter_is_draft_model_with_a_network_between(pair: PairFiles, native: Native) -> None:
    """Through the native engine, which starts the service by itself: the same tokens and rounds, sampled ones too."""
    options = {"acceptance": "exact", "latency_ms": 2.0, "precision": "float32"}
    with Native(pair, threads=1) as engine:
        for temperature in (0.0, 1.0):
            cell = Cell(
                engine="native",
                pair="p",
                method="remote_draft",
                k=K,
                task="t",
                temperature=temperature,
                options=options,
            )
            found = engine.generate(cell, some_prompts(3), max_new_tokens=LENGTH, seeds=[0, 1, 2])
            local = cell.model_copy(update={"method": "draft_model", "options": {"acceptance": "exact"}})
            truth = native.generate(local, some_prompts(3), max_new_tokens=LENGTH, seeds=[0, 1, 2])
            assert [row.tokens for row in found] == [row.tokens for row in truth]
            assert [row.rounds for row in found] == [row.rounds for row in truth]
            rounds = max(len(row.rounds) for row in found)
            assert found[0].decode_s > rounds * 2e-3, "each round trip is made longer"
            assert sum(calls for calls, _ in found[0].draft_passes.values()) == rounds * K
        service = engine._service
        assert service is not None
        health = RowsClient(service.url).http.get_json("/health")
        assert health["open_sessions"] == 3, "the texts of the first batch have ended"
        os.kill(service.process.process.pid, signal.SIGKILL)
        service.process.died(5)
        with pytest.raises(EngineError, match="no server answers there"):
            engine._drafters[next(iter(engine._drafters))].remote.begin([[1, 2]])


def test_a_trained_draft_without_a_tokenizer_drafts_behind_a_network_what_it_drafts_here(
    pair: PairFiles, tmp_path: Path
) -> None:
    """It has its target's tokenizer, and drafts some tokens only, as those in weights/ do."""
    folder = tmp_path / "draft"
    shutil.copytree(str(pair.draft), folder, ignore=shutil.ignore_patterns("*token*"))
    settings = json.loads((folder / "config.json").read_text())
    settings["specrig"] = {"drafted": [1, 2, 3, 5, 7], "tokenizer": "target"}
    (folder / "config.json").write_text(json.dumps(settings))
    found = {}
    with Native(replace(pair, draft=str(folder)), threads=1) as engine:
        for method, options in (("draft_model", {}), ("remote_draft", {"latency_ms": 0.0, "precision": "float32"})):
            cell = Cell(
                engine="native", pair="p", method=method, k=K, task="t", temperature=1.0,
                options=options | {"acceptance": "exact"},
            )  # fmt: skip
            found[method] = engine.generate(cell, some_prompts(3), max_new_tokens=LENGTH, seeds=[0, 1, 2])
    here, behind = ([(row.tokens, row.rounds) for row in rows] for rows in found.values())
    assert here == behind


def test_a_service_of_another_kind_or_vocabulary_is_refused(
    fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from specrig.services.coordinator_app import _check_vocabulary

    assert main(["serve", "coordinator", f"--target={fleet.urls['draft']}"]) == 2
    assert "a draft service answers there, not a target service" in capsys.readouterr().err.replace("\n", " ")
    for address in ("ftp://x", "http://x:80x", "http://x:99999"):
        assert main(["serve", "coordinator", f"--target={address}"]) == 2
        assert "is no address of a server" in capsys.readouterr().err
    target = RowsClient(fleet.urls["target"]).http.get_json("/health")
    with pytest.raises(ServerError, match="does not share the vocabulary"):
        _check_vocabulary(target, target | {"vocabulary": "0" * 16})
    with pytest.raises(ServerError, match="start the draft service with --vocab-size"):
        _check_vocabulary(target, target | {"vocabulary_size": 6})
