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
SPREAD = """
import json, os, psutil, sys
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
cores = os.sched_getaffinity(0)
import torch
from specrig.engines.http.launch import ServerProcess, free_port
from specrig.runtime.cores import spread_threads
spread = spread_threads(int(sys.argv[1]))

port = free_port()
server = ServerProcess([sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"], f"http://127.0.0.1:{port}", health="/")
children = psutil.Process(server.process.pid).cpu_affinity()
server.close()
tied = [sorted(os.sched_getaffinity(each)) for each in (os.getpid(), *(each.id for each in psutil.Process().threads()))]
print(json.dumps([spread, sorted(cores), sorted(os.sched_getaffinity(0)), tied, children, spread_threads()]))
"""


def spread(threads: int) -> list[Any]:
    """What a process of its own says, which may use two cores."""
    done = subprocess.run([sys.executable, "-c", SPREAD, str(threads)], capture_output=True, text=True, check=True)
    found: list[Any] = json.loads(done.stdout)
    return found


def test_each_thread_has_a_core_and_servers_have_all() -> None:
    done, cores, own, tied, children, again = spread(2)
    assert done and own == [cores[0]] and [cores[1]] in tied
    assert children == cores
    assert not again  # they have started: nothing tells them from others


def test_fewer_threads_than_cores_stay_free() -> None:
    done, cores, own, tied, children, _ = spread(1)
    assert not done and own == cores == children and all(each == cores for each in tied)
