"""Engines over HTTP against a real small server: streams, clocks, counters, faults, process control; and a whole study
by URL.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import make_dataclass, replace
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest
from inference_server import PAUSE_S, STORIES, InferenceServer

from runs import own_study
from specrig.analysis import acceptance
from specrig.cell import Cell
from specrig.decoding.types import Counts
from specrig.engines.base import EngineError
from specrig.engines.http import counters
from specrig.engines.http.client import Completion, generations_of
from specrig.engines.http.launch import ServerProcess, free_port
from specrig.engines.native import Native
from specrig.engines.server import Server
from specrig.engines.sglang import Sglang, counts
from specrig.http_client import Client
from specrig.measurement.records import read_records
from specrig.measurement.runner import measure
from specrig.models.endpoint import Endpoint
from specrig.models.pair import PairFiles
from specrig.study.load import load_study
from specrig.study.problems import StudyError

SCRIPT = Path(__file__).with_name("inference_server.py")
PROMPT = "Once upon a time, there was a little girl"
K = 4

pytestmark = pytest.mark.skipif(not STORIES.is_dir(), reason="needs ../shared/data/stories260K, which is not here")


def cell(engine: str, method: str, k: int, temperature: float = 0.0) -> Cell:
    return Cell(engine=engine, pair="p", method=method, k=k, task="t", temperature=temperature)


@pytest.fixture(scope="module")
def native() -> Native:
    return Native(PairFiles("p", str(STORIES), str(STORIES)), threads=1)


@pytest.fixture(scope="module")
def plain(native: Native) -> Iterator[InferenceServer]:
    server = InferenceServer(native, "autoregressive", 0).run()
    yield server
    server.shutdown()


@pytest.fixture(scope="module")
def speculating(native: Native) -> Iterator[InferenceServer]:
    server = InferenceServer(native, "ngram", K).run()
    yield server
    server.shutdown()


def endpoint(server: InferenceServer, engine: str = "server", **more: Any) -> Endpoint:
    return Endpoint(engine=engine, pair="p", method=server.method, k=server.k, url=server.url, **more)


def expected(native: Native, method: str, k: int, tokens: int = 40) -> Any:
    options = {"n": 3, "min_n": 1} if method == "ngram" else {}
    known = cell("native", method, k).model_copy(update={"options": options})
    return native.generate(known, [native.encode(PROMPT)], max_new_tokens=tokens, seeds=[0])[0]


@pytest.mark.parametrize("kind", [Server, Sglang])
def test_tokens_times_and_counts_are_the_servers_own(kind: type, native: Native, plain: Any, speculating: Any) -> None:
    servers = (endpoint(plain, kind.name), endpoint(speculating, kind.name))
    with kind(PairFiles("p", str(STORIES), servers=servers)) as engine:
        prompt = engine.encode(PROMPT)
        assert prompt == native.encode(PROMPT)
        found = {
            method: engine.generate(cell(kind.name, method, k), [prompt], max_new_tokens=40, seeds=[0])[0]
            for method, k in (("autoregressive", 0), ("ngram", K))
        }
    truth = expected(native, "ngram", K)
    assert found["ngram"].tokens == found["autoregressive"].tokens == truth.tokens
    assert found["ngram"].stop == truth.stop == "length"
    accepted = [entry.accepted for entry in truth.rounds]
    per_position = [sum(taken >= position for taken in accepted) for position in range(1, max(accepted) + 1)]
    taken = found["ngram"].counts
    assert taken is not None
    # Counters know of what was accepted beyond the limit, not where a round without a draft ended: one round may be
    # between.
    assert abs(taken.rounds - len(truth.rounds)) <= 1
    assert (taken.drafted, taken.accepted) == (sum(entry.drafted for entry in truth.rounds), sum(accepted))
    assert [count for count in taken.per_position or [] if count] == per_position
    assert found["autoregressive"].counts is None
    for generation, rounds in ((found["ngram"], len(truth.rounds)), (found["autoregressive"], 39)):
        # The last event leaves so long after the first; a busy machine may stamp the first late.
        assert generation.ttft_s + generation.decode_s >= rounds * PAUSE_S
        assert 0 < generation.ttft_s == generation.prefill_s and generation.decode_s > 0


@pytest.mark.parametrize("incremental", [False, True])
def test_both_ways_that_sglang_streams(native: Native, incremental: bool) -> None:
    server = InferenceServer(native, "ngram", K, incremental=incremental).run()
    with Sglang(PairFiles("p", str(STORIES), servers=(endpoint(server, "sglang"),))) as engine:
        got = engine.generate(cell("sglang", "ngram", K), [engine.encode(PROMPT)], max_new_tokens=24, seeds=[0])[0]
        assert engine.environment()["engine"]["servers"] == {
            "ngram k=4": {
                "url": server.url,
                "version": "0.5.9",
                "speculative_num_steps": 4,
            }
        }
    assert got.tokens == expected(native, "ngram", K, 24).tokens
    server.shutdown()


def test_a_batch_is_one_group_and_its_counters_are_nobodys(native: Native, speculating: InferenceServer) -> None:
    with Server(PairFiles("p", str(STORIES), servers=(endpoint(speculating),))) as engine:
        prompts = [engine.encode(text) for text in (PROMPT, "The dog ran", "One day")]
        rows = engine.generate(cell("server", "ngram", K), prompts, max_new_tokens=12, seeds=[0, 1, 2])
    assert [len(row.tokens) for row in rows] == [12, 12, 12]
    assert rows[0].tokens == expected(native, "ngram", K, 12).tokens
    assert {row.counts for row in rows} == {None}
    assert len({(row.ttft_s, row.decode_s) for row in rows}) == 1


def test_seeds_and_temperature_reach_the_server(speculating: InferenceServer) -> None:
    with Server(PairFiles("p", str(STORIES), servers=(endpoint(speculating, fields={"top_p": 1.0}),))) as engine:
        prompt = engine.encode(PROMPT)
        runs = [
            engine.generate(cell("server", "ngram", K, 1.0), [prompt], max_new_tokens=16, seeds=[seed])[0].tokens
            for seed in (7, 7, 8)
        ]
    assert runs[0] == runs[1] != runs[2]
    assert speculating.bodies[-1]["top_p"] == 1.0 and speculating.bodies[-1]["temperature"] == 1.0


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (Server, {"die_after": 3}, "broke off in the middle of an answer, after 3 events"),
        (Sglang, {"die_after": 3}, "broke off in the middle of an answer, after 3 events"),
        (Server, {"refuse": True}, "refused with status 400: prompt is too long"),
        (Server, {"no_ids": True}, "streams text without token ids"),
        (Server, {"miscount": 1}, "its usage says 41 completion tokens, its stream 40"),
        (Server, {"finish": "abort"}, "finish_reason 'abort'"),
        (Server, {"others": 5}, "others use it too"),
    ],
)
def test_faults_are_named(speculating: InferenceServer, kind: type, fields: dict[str, Any], message: str) -> None:
    server = endpoint(speculating, kind.name, fields=fields)
    with kind(PairFiles("p", str(STORIES), servers=(server,))) as engine, pytest.raises(EngineError, match=message):
        engine.generate(cell(kind.name, "ngram", K), [engine.encode(PROMPT)], max_new_tokens=40, seeds=[0])


def test_nobody_there_and_no_key() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(EngineError, match=rf"{url}: no server answers there \(.*refused\)"):
        Client(url).get("/v1/models")
    with pytest.raises(EngineError, match="no server answers"):
        list(Client(url).stream("/v1/completions", {}))
    with pytest.raises(EngineError, match="SPECRIG_TEST_KEY, which is not set"):
        Client(url, key_env="SPECRIG_TEST_KEY")


def test_a_key_is_sent_and_not_written(speculating: InferenceServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECRIG_TEST_KEY", "secret")
    with Server(
        PairFiles("p", str(STORIES), servers=(endpoint(speculating, api_key_env="SPECRIG_TEST_KEY"),))
    ) as engine:
        engine.generate(cell("server", "ngram", K), [engine.encode(PROMPT)], max_new_tokens=4, seeds=[0])
        assert "secret" not in json.dumps(engine.environment())
    assert speculating.bodies[-1]["authorization"] == "Bearer secret"


def test_a_server_without_metrics_offers_no_acceptance(native: Native) -> None:
    server = InferenceServer(native, "ngram", K, metrics=False).run()
    with Server(PairFiles("p", str(STORIES), servers=(endpoint(server),))) as engine:
        got = engine.generate(cell("server", "ngram", K), [engine.encode(PROMPT)], max_new_tokens=16, seeds=[0])[0]
    assert got.counts is None and len(got.tokens) == 16
    server.shutdown()


def test_endpoints_of_one_address_keep_their_own_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_A", "a")
    monkeypatch.setenv("KEY_B", "b")
    engine = Server.__new__(Server)
    engine._clients = {}
    url = "http://127.0.0.1:9"
    found = [
        engine.client(url, Endpoint(pair="p", method="ngram", k=2, url=url, api_key_env=name))
        for name in ("KEY_A", "KEY_B", "KEY_A")
    ]
    assert [client.session.headers["Authorization"] for client in found] == ["Bearer a", "Bearer b", "Bearer a"]
    assert found[0] is found[2]


def test_the_clock_by_hand() -> None:
    alone = Completion([1, 2, 3, 4, 5], [(0.5, 1), (0.7, 3), (0.9, 5)])
    (got,) = generations_of([alone], 4)
    assert (got.ttft_s, got.decode_s) == (0.5, pytest.approx(0.4))
    # Three tokens came with the first: 2 of 5 took 0.4 s, so 5 take 1.0 s.
    (got,) = generations_of([Completion([1] * 6, [(0.5, 4), (0.9, 6)])], 4)
    assert got.decode_s == pytest.approx(0.4 * 5 / 2)
    rows = generations_of([alone, Completion([1, 2], [(0.6, 1), (1.1, 2)])], 4)
    # The clock starts when both have a token. None of the five others came before.
    assert {(row.ttft_s, round(row.decode_s, 6)) for row in rows} == {(0.6, 0.5)}
    # When the last row's first token comes, another one has three tokens: 4 of 6 others are timed.
    rows = generations_of([alone, Completion([1, 2, 3], [(0.8, 1), (1.1, 3)])], 4)
    assert {(row.ttft_s, round(row.decode_s, 6)) for row in rows} == {(0.8, round(0.3 * 6 / 4, 6))}


def test_counters_by_hand() -> None:
    """10 tokens: 9 decoded, of which 4 accepted, so 5 passes, 3 of them with a draft."""
    before = counters.parse(
        'vllm:spec_decode_num_drafts_total{engine="0"} 2.0\nvllm:spec_decode_num_drafts_created{a="b"} 1.6e+09\n'
    )
    page = """# TYPE vllm:spec_decode_num_drafts counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="a b"} 4.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="a b"} 1.0
vllm:spec_decode_num_draft_tokens_total{engine="0"} 12.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 4.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 1.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 3.0
"""
    assert counters.counts(before, counters.parse(page), 10) == Counts(5, 12, 4, [3, 1])
    # Without rounds between drafts and with an end that was cut: the drafts are the passes.
    assert counters.counts(before, counters.parse(page), 6) == Counts(3, 12, 4, [3, 1])
    # Both at once, as vLLM 0.32 counts: the stream's events tell.
    assert counters.counts(before, counters.parse(page), 7, 6) == Counts(5, 12, 4, [3, 1])
    # Each token by itself, as llama.cpp sends them: events are no passes.
    assert counters.counts(before, counters.parse(page), 10, 10) == Counts(5, 12, 4, [3, 1])
    assert counters.counts(before, counters.parse("vllm:generation_tokens_total 3"), 10) is None


@pytest.mark.parametrize(
    "names",
    [("spec_num_correct_drafts", "spec_num_proposed_drafts"), ("spec_accept_token_num", "spec_draft_token_num")],
)
def test_sglangs_totals_in_all_its_versions(names: tuple[str, str]) -> None:
    meta = {"spec_verify_ct": 7, names[0]: 5, names[1]: 28, "spec_accept_histogram": [3, 3, 1]}
    assert counts(meta) == Counts(7, 28, 5, [4, 1])
    assert counts({"spec_verify_ct": 3}) == Counts(3)
    assert counts({"spec_verify_ct": 0}) is None
    assert counts({}) is None


# ---- process control
# -------------------------------------------------------------------------------------------------------


class Launched(Sglang):
    """SGLang's place is taken by the small server; flags, waiting, stream and end are the engine's own."""

    def command(self) -> list[str]:
        return [sys.executable, str(SCRIPT)]


EMPTY = """import http.server, subprocess, sys
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[-1])), Ready).serve_forever()
"""


class Emptied(Sglang):
    """The same with a server that loads nothing, and is ready at once."""

    def command(self) -> list[str]:
        return [sys.executable, "-c", EMPTY]


def gone(pids: list[int]) -> bool:
    return not [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


def family(server: ServerProcess) -> list[int]:
    """The ids of a server and its worker."""
    children = psutil.Process(server.process.pid).children(recursive=True)
    return [server.process.pid, *(child.pid for child in children)]


def test_a_server_is_started_with_its_flags_and_quoted_when_it_dies(native: Native) -> None:
    with Launched(PairFiles("p", str(STORIES), str(STORIES))) as engine:
        prompt, drafted = engine.encode(PROMPT), cell("sglang", "draft_model", K)
        got = engine.generate(drafted, [prompt], max_new_tokens=21, seeds=[0])[0]
        first = engine._server
        assert first is not None
        started = family(first)
        assert len(started) == 2 and os.getpgid(first.process.pid) == first.process.pid != os.getpgid(0)
        # A draft that is the target: 4 rounds of 5 tokens after the first.
        assert got.tokens == expected(native, "autoregressive", 0, 21).tokens
        assert got.counts == Counts(4, 16, 16, [4, 4, 4, 4])
        threading.Timer(0.1, os.kill, (first.process.pid, signal.SIGKILL)).start()
        with pytest.raises(EngineError, match=r"was killed by SIGKILL .*while it answered .*its log ends with: \w"):
            engine.generate(drafted, [prompt], max_new_tokens=450, seeds=[0])
        assert engine._server is first, "k is as before"
    assert gone(started), "the dead server's worker went with it"


def test_one_server_runs_at_a_time_again_when_it_died_and_leaves_nothing_behind() -> None:
    drafted, plain = cell("sglang", "draft_model", K), cell("sglang", "autoregressive", 0)
    with Emptied(PairFiles("p", str(STORIES), str(STORIES))) as engine:
        servers = list[ServerProcess]()
        families = list[list[int]]()
        for wanted in (drafted, plain, plain):
            engine.ready(wanted)
            assert engine._server is not None and engine._server not in servers
            assert all(map(gone, families))
            servers.append(engine._server)
            families.append(family(engine._server))
            assert len(families[-1]) == 2
            if len(servers) == 2:
                servers[-1].process.kill()
                servers[-1].process.wait()
    assert all(map(gone, families)) and not servers[-1].engine_log.path.exists()


def test_a_launch_that_fails_quotes_the_log() -> None:
    script = (
        "import sys; print('loading weights'); print('RuntimeError: CUDA out of memory', file=sys.stderr); sys.exit(7)"
    )
    with pytest.raises(EngineError) as caught:
        ServerProcess([sys.executable, "-c", script], f"http://127.0.0.1:{free_port()}", health="/health")
    first, *rest = str(caught.value).splitlines()
    assert "ended with status 7 before it was ready; its log ends with: RuntimeError: CUDA out of memory" in first
    assert "loading weights" in rest[0]


def test_another_process_that_answers_at_the_port_makes_no_server_ready() -> None:
    stranger = ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
    threading.Thread(target=stranger.serve_forever, daemon=True).start()
    script = "import sys, time; time.sleep(1); sys.exit('address already in use')"
    try:
        with pytest.raises(EngineError, match=r"ended with status 1 before it was ready; .*address already in use"):
            ServerProcess([sys.executable, "-c", script], f"http://127.0.0.1:{stranger.server_port}", health="/")
    finally:
        stranger.shutdown()
        stranger.server_close()


def test_a_launch_that_hangs_is_ended(tmp_path: Path) -> None:
    script = "import time; print('still loading', flush=True); time.sleep(600)"
    with pytest.raises(EngineError, match=r"was not ready after 3 s; its log ends with: still loading"):
        ServerProcess([sys.executable, "-c", script], f"http://127.0.0.1:{free_port()}", health="/health", ready_s=3)
    assert not [child for child in psutil.Process().children() if "still loading" in " ".join(child.cmdline())]


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_a_server_does_not_outlive_a_killed_parent() -> None:
    child = (
        "import http.server; http.server.HTTPServer(('127.0.0.1', {port}), "
        "http.server.SimpleHTTPRequestHandler).serve_forever()"
    )
    port = free_port()
    code = (
        "import sys, time; from specrig.engines.http.launch import ServerProcess\nserver = "
        f"ServerProcess([sys.executable, '-c', {child.format(port=port)!r}], 'http://127.0.0.1:{port}', "
        "health='/')\nprint(server.process.pid, server.engine_log.path, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid, log = parent.stdout.readline().split()
    assert not gone([int(pid)])
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 60
    while not gone([int(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert gone([int(pid)])
    Path(log).unlink()


# ---- a study by URL
# --------------------------------------------------------------------------------------------------------


@pytest.fixture
def study(workplace: Path) -> Callable[..., Path]:
    """Writes a study of servers on the small model in the working directory."""

    def write(**changes: Any) -> Path:
        keys = {"engines": ["native", "server"], "methods": [{"method": "ngram", "k": K}]}
        keys |= {"max_new_tokens": 32, "warmup": 0}
        table, prompts = f"pair\ttarget\tdraft\np\t{STORIES}\t\n", [PROMPT, "The dog ran to"]
        return own_study("by_url", table, prompts, task="t", **keys | changes)

    return write


def test_a_study_measures_native_and_servers_side_by_side(
    study: Any, plain: InferenceServer, speculating: InferenceServer
) -> None:
    servers = [endpoint(each).model_dump(include={"pair", "method", "k", "url"}) for each in (plain, speculating)]
    loaded = load_study(study(servers=servers))
    assert loaded.grid.refusals == []
    found = {}
    for engine, pair, method in loaded.grid.by_method:
        measure(loaded, engine, pair, [method])
        found[engine] = list(read_records(loaded.root / "records" / engine / pair / method / "t-k4-t0-b1.jsonl"))
    assert [record.run.tokens for record in found["server"]] == [record.run.tokens for record in found["native"]]
    assert all(record.run.tokens == record.baseline.tokens for record in found["server"])
    ours, theirs = (acceptance.emitted_by_prompt(found[engine], cut=True) for engine in ("native", "server"))
    for prompt, (emitted, passes) in ours.items():
        assert theirs[prompt][0] == emitted and abs(theirs[prompt][1] - passes) <= 1
    environment = json.loads((loaded.root / "records/server/p/ngram/environment.json").read_text())
    assert environment["engine"]["servers"]["ngram k=4"]["version"] == "1.2.3"


def test_a_server_that_is_down_fails_its_cells_and_a_rerun_measures_them(
    study: Any, plain: InferenceServer, native: Native
) -> None:
    port = free_port()
    servers = [
        {"pair": "p", "method": "autoregressive", "url": plain.url},
        {"pair": "p", "method": "ngram", "k": K, "url": f"http://127.0.0.1:{port}"},
    ]
    loaded = load_study(study(servers=servers, engines=["server"]))
    index = loaded.root / "records/server/p/ngram/index.json"
    measure(loaded, "server", "p", ["ngram"])
    assert "no server answers there" in json.loads(index.read_text())["failed"]["t-k4-t0-b1"]
    server = InferenceServer(native, "ngram", K, port=port).run()
    measure(loaded, "server", "p", ["ngram"])
    assert json.loads(index.read_text())["failed"] == {}
    server.shutdown()


@pytest.mark.parametrize(
    ("servers", "message"),
    [
        ([{"pair": "q", "method": "ngram", "k": 4, "url": "http://a"}], "unknown pair 'q'"),
        ([{"pair": "p", "method": "ngrm", "k": 4, "url": "http://a"}], "did you mean 'ngram'?"),
        ([{"pair": "p", "method": "ngram", "k": 4, "url": "a:80"}], "servers[0].url"),
        ([{"pair": "p", "method": "ngram", "k": 4, "ulr": "http://a", "url": "http://a"}], "did you mean 'url'?"),
        ([{"pair": "p", "method": "ngram", "k": 4, "url": "http://a"}], "no server of pair 'p' runs without "
        "speculation"),
        ([{"pair": "p", "method": name, "k": k, "url": "http://a/"} for name, k in (("autoregressive", 0), ("ngram", 4))], "both would measure one thing"),
        ([{"pair": "p", "method": "ngram", "k": 4, "url": url} for url in ("http://a", "http://b")], "servers[0] runs "
        "the same cells"),
    ],
)  # fmt: skip
def test_servers_that_cannot_be_meant(study: Any, servers: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(StudyError) as caught:
        load_study(study(servers=servers))
    assert message in str(caught.value) and "configs/by_url.yaml" in str(caught.value)


def test_cells_without_a_server_are_refused_and_the_others_planned(study: Any) -> None:
    servers = [
        {"pair": "p", "method": "autoregressive", "url": "http://a"},
        {"pair": "p", "method": "ngram", "k": 4, "url": "http://b"},
        {"pair": "p", "method": "eagle", "k": 4, "url": "http://c"},
    ]
    methods = [{"method": "ngram", "k": [2, 4]}, {"method": "eagle", "k": 4}]
    loaded = load_study(study(servers=servers, engines=["server"], methods=methods))
    assert [each.name for each in loaded.grid.cells] == ["server/p/ngram/t-k4-t0-b1", "server/p/eagle/t-k4-t0-b1"]
    assert [refusal.reason for refusal in loaded.grid.refusals] == [
        "no server for ngram at k = 2 on pair p: name its url under `servers:`"
    ]


def test_a_pair_of_an_entry_has_servers_too(study: Any) -> None:
    file = study(
        servers=[
            {"pair": "q", "method": "autoregressive", "url": "http://a"},
            {"pair": "q", "method": "ngram", "k": 4, "url": "http://b"},
        ],
        engines=["server"],
        methods=[{"method": "ngram", "k": 4, "pairs": "q"}],
    )
    table = Path("configs/pairs.tsv")
    table.write_text(table.read_text() + f"q\t{STORIES}\n")
    assert [each.name for each in load_study(file).grid.cells] == ["server/q/ngram/t-k4-t0-b1"]


def test_sglang_missing_is_said_when_planning_unless_a_server_runs(study: Any) -> None:
    methods = [{"method": "ngram", "k": 4}, {"method": "lookahead", "k": 4}]
    loaded = load_study(study(engines=["native", "sglang"], methods=methods))
    if Sglang.missing() is not None:
        assert {refusal.reason for refusal in loaded.grid.refusals} == {Sglang.missing()}
    servers = [
        {"engine": "sglang", "pair": "p", "method": "autoregressive", "url": "http://a"},
        {"engine": "sglang", "pair": "p", "method": "ngram", "k": 4, "url": "http://b"},
    ]
    loaded = load_study(study(engines=["native", "sglang"], methods=methods, servers=servers))
    assert [each.method for each in loaded.grid.cells if each.engine == "sglang"] == ["ngram"]


def test_sglangs_flags(tmp_path: Path) -> None:
    pair = PairFiles("p", str(STORIES), str(STORIES), draft_revision="r", dtype="bfloat16", heads={"eagle": tmp_path})
    engine = Sglang(pair)

    def flags(method: str, k: int, **options: int) -> str:
        return " ".join(engine.arguments(cell("sglang", method, k).model_copy(update={"options": options})))

    assert (
        flags("autoregressive", 0)
        == f"--model-path {STORIES} --dtype bfloat16 --stream-interval 1 --disable-radix-cache"
    )
    assert flags("draft_model", 4).endswith(
        f"--speculative-algorithm STANDALONE --speculative-draft-model-path {STORIES} "
        "--speculative-draft-model-revision r --speculative-num-steps 4 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 5"
    )
    assert f"EAGLE --speculative-draft-model-path {tmp_path}" in flags("eagle", 3)
    assert flags("eagle2", 5, top_k=10, nodes=59).endswith(
        "steps 5 --speculative-eagle-topk 10 --speculative-num-draft-tokens 60"
    )
    chain = Sglang(replace(pair, heads={"eagle3": tmp_path}))
    words = chain.arguments(cell("sglang", "eagle3", 4).model_copy(update={"options": {"nodes": 0, "top_k": 10}}))
    assert " ".join(words).endswith("steps 4 --speculative-eagle-topk 1 --speculative-num-draft-tokens 5"), "a chain"
    assert flags("ngram", 4).endswith("NGRAM --speculative-num-draft-tokens 5 --speculative-ngram-max-bfs-breadth 1")
    with pytest.raises(EngineError, match="eagle3 needs a eagle3"):
        flags("eagle3", 4)
    served = Sglang(
        replace(pair, tensor_parallel=2, quantization="fp8", gpu_memory_utilization=0.8, max_model_len=4096)
    )
    assert "--tp-size 2 --quantization fp8 --mem-fraction-static 0.8 --context-length 4096" in " ".join(
        served.arguments(cell("sglang", "autoregressive", 0))
    )
    assert "no lookahead" in (Sglang.refuses(cell("sglang", "lookahead", 4)) or "")
    block = Sglang(replace(pair, heads={"dflash": tmp_path})).arguments(cell("sglang", "dflash", 7))
    assert "DFLASH" in block and " ".join(block).endswith(
        "steps 1 --speculative-eagle-topk 1 --speculative-num-draft-tokens 8"
    )
    spark = Sglang(replace(pair, heads={"dspark": tmp_path})).arguments(cell("sglang", "dspark", 5))
    assert f"DSPARK --speculative-draft-model-path {tmp_path} --speculative-num-steps 1" in " ".join(spark)
    assert "--speculative-dspark-block-size 5" in " ".join(spark) and spark[-1] == "6"
    assert flags("mtp", 3).endswith(
        "EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
    )


def test_sglang_refuses_what_it_cannot_draft_alike() -> None:
    def refused(method: str, **options: Any) -> str:
        asked = cell("sglang", method, 4).model_copy(update={"options": options, "variant": "changed"})
        return Sglang.refuses(asked) or ""

    assert "only with confidence_threshold: 0.0 (not 0.2)" in refused("dspark", confidence_threshold=0.2)
    assert not refused("dspark", confidence_threshold=0.0)
    assert "no flags for the options of dspark" in refused("dspark", confidence_threshold=0.0, top_k=2)
    assert "no flags for the options of dflash" in refused("dflash", nodes=8)
    assert "no flags for the options of draft_model" in refused("draft_model", acceptance="block")
    assert "layers that the target's own checkpoint carries" in (Sglang.refuses_model("mtp", {}) or "")
    assert Sglang.refuses_model("mtp", {"num_nextn_predict_layers": 1}) is None


def test_sglangs_adaptive_drafts_are_of_eagles_chains_and_of_newer_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = PairFiles("p", str(STORIES), str(STORIES), heads={"eagle": tmp_path, "eagle3": tmp_path})
    engine = Sglang(replace(pair, engine_options={"sglang": {"adaptive": True}}))

    def adapts(method: str, **options: int) -> bool:
        requested = cell("sglang", method, 3).model_copy(update={"options": options})
        return "--speculative-adaptive" in engine.arguments(requested)

    def install(option: str) -> None:
        """An SGLang whose server has this option."""
        for name in ("sglang", "sglang.srt", "sglang.srt.server_args"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        server_args: Any = sys.modules["sglang.srt.server_args"]
        server_args.ServerArgs = make_dataclass("ServerArgs", [(option, bool)])

    install("speculative_adaptive")
    assert adapts("eagle") and adapts("eagle3", nodes=0)
    assert not adapts("eagle2", top_k=10, nodes=59) and not adapts("draft_model"), "SGLang keeps k there"
    install("disable_radix_cache")
    with pytest.raises(EngineError, match=r"has no --speculative-adaptive: leave it out of `engine_options`"):
        adapts("eagle")


class _Closing(BaseHTTPRequestHandler):
    """Answers the first request of a connection and closes it at the next one, without a word: an idle connection that
    ended meanwhile.
    """

    protocol_version = "HTTP/1.1"
    answered = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.answered:
            self.close_connection = True
            return
        self.answered += 1
        body = b'{"content": "yes"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def test_a_request_is_sent_again_where_its_idle_connection_was_just_closed() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Closing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = Client(f"http://127.0.0.1:{server.server_port}")
        assert [client.post("/completion", {}) for _ in range(3)] == [{"content": "yes"}] * 3
        server.shutdown()
    with pytest.raises(EngineError, match="no server answers there"):
        client.post("/completion", {})
