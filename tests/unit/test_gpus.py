"""Processes that share GPUs: each has its own, whoever is killed frees his, and two that want several do not wait for
each other.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from specrig.runtime import gpus

HOLD = """
import os, sys
from specrig.runtime.gpus import take
take(int(sys.argv[1]), every_s=0.02)
print(os.environ["CUDA_VISIBLE_DEVICES"], "SPECRIG_OWN_GPU" in os.environ, flush=True)
sys.stdin.read()
"""
Holder: TypeAlias = subprocess.Popen[str]


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Callable[[int], Holder]]:
    """hold(count): a process that takes so many of the GPUs 2, 5 and GPU-a, says which, and keeps them until it is
    killed.
    """
    started: list[Holder] = []
    environment = os.environ | {gpus.OWN: "1", gpus.VISIBLE: "2, 5,GPU-a", "TMPDIR": str(tmp_path)}

    def start(count: int) -> Holder:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen([sys.executable, "-c", HOLD, str(count)], env=environment, text=True, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def visible(process: Holder) -> str:
    """What CUDA would see in a process that has taken its GPUs. Its children take none: they use what it has."""
    assert process.stdout is not None
    devices, _, again = process.stdout.readline().strip().rpartition(" ")
    assert again == "False"
    return devices


def waits(process: Holder) -> bool:
    assert process.stderr is not None
    return process.stderr.readline().startswith("waiting for")


def test_each_process_has_a_gpu_of_its_own_and_a_killed_one_frees_it(hold: Callable[[int], Holder]) -> None:
    first, second, third = hold(1), hold(1), hold(1)
    own = {visible(first): first, visible(second): second, visible(third): third}
    assert own.keys() == {"2", "5", "GPU-a"}
    fourth = hold(1)
    assert waits(fourth)
    own["5"].kill()
    assert visible(fourth) == "5"


def test_several_gpus_are_taken_together_or_not_at_all(hold: Callable[[int], Holder]) -> None:
    first = hold(2)
    assert visible(first) == "2,5"
    second = hold(2)
    assert waits(second)
    assert visible(hold(1)) == "GPU-a", "who waits for two holds none meanwhile"
    first.kill()
    assert visible(second) == "2,5"


def test_who_wants_more_than_there_are_gets_all(hold: Callable[[int], Holder]) -> None:
    assert visible(hold(8)) == "2,5,GPU-a"


@pytest.mark.parametrize(("own", "visible"), [(None, "0,1"), ("1", "")])
def test_nothing_is_taken_where_nothing_is_shared(
    own: str | None, visible: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv(gpus.VISIBLE, visible)
    monkeypatch.delenv(gpus.OWN, raising=False)
    if own is not None:
        monkeypatch.setenv(gpus.OWN, own)
    gpus.take()
    assert os.environ[gpus.VISIBLE] == visible
    assert not list(tmp_path.iterdir())
