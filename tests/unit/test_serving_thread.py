"""A service's model and the thread that runs it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from specrig.audit.toy_pair import build
from specrig.engines.http import wire
from specrig.engines.http.remote import Text
from specrig.services import model as service
from specrig.services.target import Target


def test_the_thread_that_loads_a_model_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two threads that have computed, libgomp lets neither's team wait ready: passes took twice as long."""
    seen: list[str] = []

    class Watched(Target):
        def __init__(self, *given: Any) -> None:
            seen.append(threading.current_thread().name)
            super().__init__(*given)

        def step(self, *given: Any) -> Any:
            seen.append(threading.current_thread().name)
            return super().step(*given)

    apps: list[FastAPI] = []
    monkeypatch.setitem(service.KINDS, "target", Watched)
    monkeypatch.setattr(service, "serve", lambda app, host, port: apps.append(app))
    settings = service.Serving(
        model=build(tmp_path).target, revision=None, dtype="float32", device="cpu", batch=2, sessions=None, context=64, queue=8,
        threads=None, vocabulary=None, random_weights=False,
    )  # fmt: skip
    service.serve_model("target", settings, "127.0.0.1", 0)
    with TestClient(apps[0]) as client:
        answer = client.post(wire.PATH, content=wire.pack_asks([Text().ask([1, 2, 3], temperature=0.0)]))
    assert answer.status_code == 200 and len(wire.unpack_answers(answer.content)[0]) == 1
    assert len(seen) == 2 and len(set(seen)) == 1 and seen[0] != threading.main_thread().name
