"""What all engines share."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from specrig.engines.base import Engine
from specrig.engines.vllm.processes import intel_openmp, placing, quiet_llvmlite


@pytest.mark.parametrize(("platform", "counted"), [("linux", 300 * 1024), ("darwin", 300 * 1024**2)])
def test_peak_memory_is_in_mebibytes_whatever_the_system_counts_in(
    monkeypatch: pytest.MonkeyPatch, platform: str, counted: int
) -> None:
    """getrusage(2): `ru_maxrss` is in KiB on Linux, in bytes on macOS."""
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=counted))
    assert Engine.peak_memory_mb(SimpleNamespace()) == 300


@pytest.mark.parametrize("before", [None, "/lib/other.so"])
def test_only_processes_of_vllm_start_with_its_openmp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    """A server of another engine that starts later must not."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libiomp5.so").touch()
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    if before:
        monkeypatch.setenv("LD_PRELOAD", before)
    with intel_openmp():
        assert os.environ["LD_PRELOAD"].split(":") == [str(tmp_path / "lib/libiomp5.so"), *([before] if before else [])]
    assert os.environ.get("LD_PRELOAD") == before


def test_an_engine_of_its_own_takes_as_many_threads_as_torch_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    assert Engine.thread_count(SimpleNamespace(threads=None)) == 3
    assert Engine.thread_count(SimpleNamespace(threads=2)) == 2


@pytest.mark.parametrize(("threads", "bound"), [(4, "4,5,6,7"), (2, "nobind")])
def test_vllm_is_bound_to_its_cores_unless_it_shares_them(
    monkeypatch: pytest.MonkeyPatch, threads: int, bound: str
) -> None:
    """As in a cluster's job that owns cores 4 to 7 of 64. Two jobs of two threads each would both be bound to 4 and 5."""
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {7, 5, 4, 6}, raising=False)
    assert placing(threads) == {"VLLM_CPU_OMP_THREADS_BIND": bound, "OMP_NUM_THREADS": str(threads)}


def test_llvmlite_is_quietened_once_and_not_at_every_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        def __getattr__(self, name: str) -> str:
            return name

    monkeypatch.setitem(sys.modules, "llvmlite.binding.ffi", SimpleNamespace(lib=Library()))
    quiet_llvmlite()
    first = Library.__getattr__
    quiet_llvmlite()
    assert Library.__getattr__ is first and Library().function == "function"
