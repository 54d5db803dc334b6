"""A core for each thread of a job that measures, and all of them for the servers that it starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="needs Linux and two cores"
)
TIED = """
import json, os, psutil, sys
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
cores = sorted(os.sched_getaffinity(0))
import torch
from specrig.engines.http.launch import ServerProcess, free_port
from specrig.runtime.cores import threads_on_cores

def allowed():
    others = [each.id for each in psutil.Process().threads() if each.id != os.getpid()]
    return [sorted(os.sched_getaffinity(each)) for each in (os.getpid(), *others)]

with threads_on_cores(int(sys.argv[1])) as tied:
    during = allowed()
    port = free_port()
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    server = ServerProcess(command, f"http://127.0.0.1:{port}", health="/")
    child = psutil.Process(server.process.pid).cpu_affinity()
    server.close()
after = allowed()
with threads_on_cores() as again:
    print(json.dumps([tied, cores, during, child, after, again, allowed()]))
"""


def tied_with(threads: int) -> list[Any]:
    """What a process of its own says, which may use two cores."""
    done = subprocess.run([sys.executable, "-c", TIED, str(threads)], capture_output=True, text=True, check=True)
    found: list[Any] = json.loads(done.stdout)
    return found


def test_each_thread_has_a_core_meanwhile_and_servers_have_all() -> None:
    tied, cores, (own, *others), child, after, again, (own_again, *others_again) = tied_with(2)
    assert tied and own == [cores[0]] and [cores[1]] in others
    assert child == cores
    assert all(each == cores for each in after)
    assert again and own_again == own and [cores[1]] in others_again


def test_fewer_threads_than_cores_stay_free() -> None:
    tied, cores, during, child, _, _, _ = tied_with(1)
    assert not tied and child == cores and all(each == cores for each in during)
