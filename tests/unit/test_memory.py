"""What a process may take is what its control groups leave it."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from specrig.runtime.memory import available_memory

MB = 1 << 20


def group(folder: Path, limit_file: str, limit: str, stat: str) -> None:
    folder.mkdir(parents=True)
    (folder / limit_file).write_text(f"{limit}\n")
    (folder / "memory.stat").write_text(f"file 999999999\n{stat} {100 * MB}\n")


@pytest.mark.parametrize(("lines", "job"), [("0::/slurm/job_7/step_0\n", "slurm/job_7"), ("0::/\n", "")])
def test_the_limit_of_a_group_above_holds(lines: str, job: str, tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text(lines)
    group(tmp_path / "fs" / job, "memory.max", str(300 * MB), "anon")
    if job:
        group(tmp_path / "fs" / job / "step_0", "memory.max", "max", "anon")
    assert available_memory(tmp_path / "cgroup", tmp_path / "fs") == 200 * MB


def test_groups_of_the_first_version(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("5:cpu,cpuacct:/job\n4:memory:/job\n1:name=systemd:/job\n")
    group(tmp_path / "fs" / "memory" / "job", "memory.limit_in_bytes", str(300 * MB), "total_rss")
    assert available_memory(tmp_path / "cgroup", tmp_path / "fs") == 200 * MB


def test_without_groups_it_is_what_the_machine_has_free(tmp_path: Path) -> None:
    assert available_memory(tmp_path / "none", tmp_path) == pytest.approx(psutil.virtual_memory().available, rel=0.1)
