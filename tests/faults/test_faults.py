"""Faults on purpose, each on a copy of the finished test study: the rerun brings the undisturbed outputs back and
measures only what was cut.

A run that is killed and MLflow away and back are in tests/workflow/test_dag.py, a crashed engine in tests/contract/test_killed_engine.py.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runs import (
    CELLS,
    FIRST,
    RECORDS,
    RESULTS,
    SERVER,
    command,
    copied,
    imported,
    outputs,
    run,
    stamps,
    without_measurements,
)  # fmt: skip

pytestmark = pytest.mark.workflow
MEASURED = str(RESULTS / "measured/native/tiny/together")
"""As a target: measuring alone."""


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    return copied(finished, tmp_path / "study")


def changed(folder: Path, before: dict[str, tuple[int, bytes]]) -> set[str]:
    return {name for name, stamp in stamps(folder / RECORDS).items() if before.get(name) != stamp}


def test_a_damaged_record_stops_the_run_and_the_command_that_it_names_measures_that_cell_again(
    folder: Path, finished: Path
) -> None:
    """The tables are made anew by a run of their own: as after one that ended when it had measured."""
    name = "native/tiny/draft_model/code-k2-t0-b1.jsonl"
    path = folder / RECORDS / name
    path.write_bytes(path.read_bytes()[:-1000])
    (folder / CELLS).unlink()
    before = stamps(folder / RECORDS)
    result = run(folder, str(CELLS))
    assert result.returncode == 1 and "Traceback" not in result.stdout, result.stdout
    fix = f"make it again: rm -r {RECORDS}/{name} {RESULTS}/measured; specrig run CONFIG"
    assert f"{RECORDS}/{name}:" in result.stdout and fix in result.stdout, result.stdout
    path.unlink()
    shutil.rmtree(folder / RESULTS / "measured")
    result = run(folder, MEASURED)
    assert result.returncode == 0, result.stdout
    assert changed(folder, before) == {name}
    assert outputs(folder) == outputs(finished)
    result = run(folder, str(CELLS))
    assert result.returncode == 0 and "Compiling the tables" in result.stdout, result.stdout


LIMITED = """
import resource
from pathlib import Path
import torch
from specrig.engines.native import Native

generate = Native.generate

def limited(engine, cell, *arguments, **options):
    if (cell.method, cell.task) != ("ngram", "code"):
        return generate(engine, cell, *arguments, **options)
    pages, before = int(Path("/proc/self/statm").read_text().split()[0]), resource.getrlimit(resource.RLIMIT_AS)
    taken = []
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(), before[1]))
    try:
        for size in (1 << 20, 1 << 17, 1 << 14):  # what the process has already and does not use
            try:
                while True:
                    taken.append(torch.empty(size, dtype=torch.uint8))
            except RuntimeError:
                pass
        return generate(engine, cell, *arguments, **options)
    finally:
        taken.clear()
        resource.setrlimit(resource.RLIMIT_AS, before)

Native.generate = limited
"""
MEASURE = ["stage", "measure", "--study", f"{RESULTS}/study.json", "--engine", "native", "--pair", "tiny"]


@pytest.mark.skipif(SERVER not in os.environ, reason="only copies of the tests' server can be short of memory")
def test_a_cell_without_memory_fails_alone_and_is_measured_by_the_next_run(folder: Path, finished: Path) -> None:
    without_measurements(folder)
    (folder / "limited.py").write_text(LIMITED)
    command = [sys.executable, "-m", "specrig", *MEASURE]
    subprocess.run(command, cwd=folder, env=imported() | {FIRST: "limited.py"}, capture_output=True)
    index = json.loads((folder / RECORDS / "native/tiny/ngram/index.json").read_text())
    assert list(index["failed"]) == ["code-k3-t0-b1"] and "memory" in index["failed"]["code-k3-t0-b1"].lower()
    before = stamps(folder / RECORDS)
    assert len(before) == 7
    subprocess.run(command, cwd=folder, env=imported(), capture_output=True, check=True)
    assert changed(folder, before) == {"native/tiny/ngram/code-k3-t0-b1.jsonl"}
    assert outputs(folder) == outputs(finished)


def mounting(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script of bash where it may mount, and where nobody else sees what it mounts."""
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    return subprocess.run([*unshare, "bash", "-c", script], cwd=folder, capture_output=True, text=True, timeout=600)


FULL = f"""
import os
from specrig import cli
print("code", cli.main({MEASURE}), flush=True)
os.system("cp -a {RECORDS} kept; mount -o remount,size=10m {RECORDS}")
print("code", cli.main({MEASURE}), flush=True)
"""


def test_a_full_disk_is_reported_with_the_path_and_the_next_run_goes_on(folder: Path, finished: Path) -> None:
    without_measurements(folder)
    (folder / "full.py").write_text(FULL)
    result = mounting(
        folder,
        f"mkdir {RECORDS}; mount -t tmpfs -o size=64k full {RECORDS} || exit 9; {sys.executable} full.py; "
        f"cp -a {RECORDS} all",
    )
    assert "code 2" in result.stdout and "code 0" in result.stdout, result.stdout + result.stderr
    assert f"{RECORDS}/native/tiny/" in result.stderr and "No space left on device" in result.stderr
    assert "Traceback" not in result.stderr
    kept = {path.relative_to(folder / "kept"): path.stat().st_mtime_ns for path in (folder / "kept").rglob("*.jsonl")}
    assert len(kept) < 8 and any((folder / "kept").rglob("*.json*")), "records, or parts of cells that are not settled"
    assert all((folder / "all" / name).stat().st_mtime_ns == when for name, when in kept.items())
    (folder / RECORDS).rmdir()
    (folder / "all").rename(folder / RECORDS)
    assert outputs(folder) == outputs(finished)


def test_a_results_folder_that_cannot_be_written_is_named(folder: Path) -> None:
    (folder / RESULTS / "tables/cells.csv").unlink()
    study = " ".join(command(str(CELLS)))
    result = mounting(folder, f"mount --bind results results && mount -o remount,ro,bind results || exit 9; {study}")
    assert result.returncode == 1, result.stdout + result.stderr
    assert f"{RESULTS} cannot be written" in result.stderr and "Traceback" not in result.stderr
