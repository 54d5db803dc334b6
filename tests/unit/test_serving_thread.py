"""A service's model and the thread that runs it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from specrig.audit.toy_pair import build
from specrig.models.weights import weights_of
from specrig.services import protocol
from specrig.services import worker_app as service
from specrig.services.client import RemoteSession
from specrig.services.protocol import RowsRequest
from specrig.services.workers import TargetWorker


def test_texts_end_in_the_thread_that_uses_them(tmp_path: Path) -> None:
    """The thread of the requests must not remove them from under a batch that runs."""
    model = weights_of(build(tmp_path)).cached("target", "cpu")
    worker, threads = TargetWorker(model, 2, 64), list[str]()
    end = worker.sessions.end

    def watched(sessions: Sequence[int]) -> None:
        threads.append(threading.current_thread().name)
        end(sessions)

    worker.sessions.end = watched  # type: ignore[method-assign]
    pool = ThreadPoolExecutor(1, thread_name_prefix="worker")
    first, second = RemoteSession(), RemoteSession()
    with TestClient(service.worker_app(worker, batch=2, queue=8, key=None, thread=pool)) as client:
        for session, ended in ((first, []), (second, [first.id])):
            message = RowsRequest([session.request([1, 2, 3], temperature=0.0)], ended=ended)
            assert client.post(protocol.PATH, content=protocol.pack(message)).status_code == 200
    assert threads == ["worker_0"] and len(worker.sessions) == 1


def test_the_thread_that_loads_a_model_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two threads that have computed, libgomp lets neither's team wait ready: passes took twice as long."""
    seen: list[str] = []

    class Watched(TargetWorker):
        def __init__(self, *arguments: Any) -> None:
            seen.append(threading.current_thread().name)
            super().__init__(*arguments)

        def step(self, *arguments: Any) -> Any:
            seen.append(threading.current_thread().name)
            return super().step(*arguments)

    apps: list[FastAPI] = []
    monkeypatch.setitem(service.WORKERS, "target", Watched)
    monkeypatch.setattr(service, "serve", lambda app, host, port: apps.append(app))
    settings = service.Serving(
        model=build(tmp_path).target, revision=None, dtype="float32", device="cpu", batch=2, sessions=None, context=64, queue=8,
        threads=None, vocabulary=None, random_weights=False,
    )  # fmt: skip
    service.serve_model("target", settings, "127.0.0.1", 0)
    with TestClient(apps[0]) as client:
        answer = client.post(
            protocol.PATH, content=protocol.pack(RowsRequest([RemoteSession().request([1, 2, 3], temperature=0.0)]))
        )
    assert answer.status_code == 200 and len(protocol.unpack_output(answer.content).rows) == 1
    assert len(seen) == 2 and len(set(seen)) == 1 and seen[0] != threading.main_thread().name
