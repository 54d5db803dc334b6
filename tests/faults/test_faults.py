"""Faults on purpose, each on a copy of the finished test study: the rerun brings the undisturbed outputs back, measures
only what was cut or damaged, and names what it found damaged. kills.py has the random kills; docs/faults.md has what
came out.

MLflow away and back is in tests/workflow/test_dag.py, a crashed engine in tests/contract/test_killed_engine.py.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from undisturbed import CELLS, RECORDS, RESULTS, copied, outputs, run, stamps, timeless, without_measurements

from runs import CONFIG, command
from specrig.dag.rules import Rules
from specrig.measurement.quarantine import HASHES, LISTED, damaged_listed
from specrig.study.load import load_study
from specrig.training.stages import TEXT

pytestmark = pytest.mark.workflow
MEASURED = str(RESULTS / "measured/native/embedded/together")
"""As a target: measuring alone."""
DRAFT = RESULTS / "models/embedded/draft"


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    return copied(finished, tmp_path / "study")


def changed(folder: Path, before: dict[str, tuple[int, bytes]]) -> set[str]:
    return {name for name, stamp in stamps(folder).items() if before.get(name) != stamp}


def test_damaged_records_are_named_and_measured_again_by_themselves(folder: Path, finished: Path) -> None:
    cut, flipped, missing = "draft_model/code-k2-t0-b1", "draft_model/translation-k4-t0-b1", "ngram/code-k3-t0-b1"
    records = folder / RECORDS / "native/embedded"
    path = records / f"{cut}.jsonl"
    path.write_bytes(path.read_bytes()[:-1000])
    path = records / f"{flipped}.jsonl"
    content = bytearray(path.read_bytes())
    content[content.index(b'"tokens":[') + len('"tokens":[')] ^= 1  # another token id: still a record
    path.write_bytes(content)
    (records / f"{missing}.jsonl").unlink()
    before = stamps(folder)
    result = run(folder, MEASURED)
    assert result.returncode == 0, result.stdout
    output = [line for line in result.stdout.splitlines() if "is damaged and will be made again" in line]
    assert {line.split(".jsonl")[0].removeprefix(f"{RECORDS}/native/embedded/") for line in output} == {
        cut,
        flipped,
        missing,
    }
    assert any("line 2: not a record" in line for line in output) and "Traceback" not in result.stdout
    assert changed(folder, before) == {f"native/embedded/{name}.jsonl" for name in (cut, flipped, missing)}
    assert outputs(folder) == outputs(finished)
    assert "Nothing to be done" in run(folder, MEASURED).stdout


def test_a_damaged_model_is_trained_again_and_nothing_is_measured(folder: Path, finished: Path) -> None:
    weights = folder / DRAFT / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-100] ^= 4
    weights.write_bytes(content)
    before = stamps(folder)
    result = run(folder, MEASURED)
    assert result.returncode == 0, result.stdout
    assert f"{DRAFT} is damaged and will be made again: model.safetensors" in result.stdout
    assert weights.read_bytes() == (finished / DRAFT / "model.safetensors").read_bytes()
    assert not changed(folder, before)
    assert "Nothing to be done" in run(folder, MEASURED).stdout


def test_another_study_takes_what_is_trained_already(folder: Path, finished: Path) -> None:
    config = (folder / CONFIG).read_text()
    (folder / "configs/my_first.yaml").write_text(config.replace("study: test", "study: my_first"))
    draft = Path("results/my_first/models/embedded/draft")
    settings = {"config": "configs/my_first.yaml"}
    result = run(folder, str(draft / "model.safetensors"), **settings)
    assert result.returncode == 0, result.stdout
    for part in ("target", "text.safetensors", "draft"):
        assert f"{draft.with_name(part)} is taken from results/.trained/" in result.stdout
    # The seconds of its steps are those of the one training there was.
    for name in ("model.safetensors", "training.jsonl", "trained_for.json"):
        assert (folder / draft / name).read_bytes() == (finished / DRAFT / name).read_bytes()
    assert "Nothing to be done" in run(folder, str(draft / "model.safetensors"), **settings).stdout
    assert "Nothing to be done" in run(folder, MEASURED).stdout, "the first study is as fresh as before"
    # With another recipe it trains its own.
    (folder / settings["config"]).write_text(
        config.replace("study: test", "study: other").replace("steps: 30", "steps: 20")
    )
    other = run(folder, "results/other/models/embedded/target/model.safetensors", **settings)
    assert other.returncode == 0 and "is taken from" not in other.stdout, other.stdout


def test_a_second_run_is_refused_and_a_killed_one_leaves_no_lock(folder: Path, finished: Path) -> None:
    without_measurements(folder)
    with (folder / "first.txt").open("w") as log:
        first = subprocess.Popen(command(MEASURED), cwd=folder, stdout=log, stderr=log, start_new_session=True)
        try:
            lock = folder / RESULTS / ".lock"
            while str(first.pid) not in (lock.read_text() if lock.is_file() else ""):
                assert first.poll() is None, (folder / "first.txt").read_text()
                time.sleep(0.05)
            second = run(folder, MEASURED)
        finally:
            os.killpg(first.pid, signal.SIGKILL)
            first.wait()
    assert second.returncode == 1
    assert f"{RESULTS}: another run of this study is at work (process {first.pid} on " in second.stdout
    assert "unlock" not in second.stdout and "Traceback" not in second.stdout
    result = run(folder, MEASURED)
    assert result.returncode == 0, result.stdout
    assert outputs(folder) == outputs(finished)


def test_a_kill_between_two_cells_of_a_job_keeps_the_first(folder: Path, finished: Path) -> None:
    """The random moments of kills.py fell between no two: here the job of six cells is killed as soon as it has a
    record.
    """
    without_measurements(folder)
    with (folder / "killed.txt").open("w") as log:
        process = subprocess.Popen(command(MEASURED), cwd=folder, stdout=log, stderr=log, start_new_session=True)
        try:
            while not stamps(folder):
                assert process.poll() is None, (folder / "killed.txt").read_text()
                time.sleep(0.002)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    kept = stamps(folder)
    assert 0 < len(kept) < 6
    result = run(folder, MEASURED)
    assert result.returncode == 0 and "Traceback" not in result.stdout, result.stdout
    after = stamps(folder)
    assert len(after) == 6
    assert {name: after[name] for name in kept} == kept, "not measured again"
    assert outputs(folder) == outputs(finished)


def test_a_clock_set_back(folder: Path, finished: Path) -> None:
    """Everything that was written before is then newer than all that is written from then on."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + 86_400 * 10**9))
    name = "native/embedded/ngram/code-k3-t0-b1.jsonl"
    (folder / RECORDS / name).unlink()
    before = {path: content for path, (_, content) in stamps(folder).items()}
    result = run(folder, MEASURED)
    assert result.returncode == 0, result.stdout
    assert "have a time in the future" in result.stdout
    after = {path: content for path, (_, content) in stamps(folder).items()}
    assert {path for path in after if before.get(path) != after[path]} == {name}
    assert outputs(folder) == outputs(finished)
    assert "Nothing to be done" in run(folder, MEASURED).stdout


LIMITED = """
import resource
from pathlib import Path
import torch
from specrig.engines.native import Native
from specrig.measurement.runner import measure
from specrig.study.load import load_study
from specrig.training.stages import TEXT

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
measure(load_study(Path("results/test/study.json")), "native", "embedded", ["draft_model", "ngram"])
"""


@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="reads the size of its memory from /proc")
def test_a_cell_without_memory_fails_alone_and_is_measured_by_the_next_run(folder: Path, finished: Path) -> None:
    without_measurements(folder)
    subprocess.run([sys.executable, "-c", LIMITED], cwd=folder, check=True, capture_output=True)
    index = json.loads((folder / RECORDS / "native/embedded/ngram/index.json").read_text())
    assert list(index["failed"]) == ["code-k3-t0-b1"] and "memory" in index["failed"]["code-k3-t0-b1"].lower()
    before = stamps(folder)
    assert len(before) == 5
    assert run(folder, MEASURED).returncode == 0
    assert changed(folder, before) == {"native/embedded/ngram/code-k3-t0-b1.jsonl"}
    assert outputs(folder) == outputs(finished)


def mounting(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script of bash where it may mount, and where nobody else sees what it mounts."""
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    return subprocess.run([*unshare, "bash", "-c", script], cwd=folder, capture_output=True, text=True, timeout=600)


def test_a_full_disk_is_reported_with_the_path_and_the_next_run_goes_on(folder: Path, finished: Path) -> None:
    without_measurements(folder)
    measure = f"{sys.executable} -m specrig stage measure --study {RESULTS}/study.json --engine native --pair embedded"
    result = mounting(
        folder,
        f"mkdir {RECORDS}; mount -t tmpfs -o size=40k full {RECORDS} || exit 9; {measure}; echo code $?; cp -a "
        f"{RECORDS} kept;mount -o remount,size=10m {RECORDS}; {measure}; echo code $?; cp -a {RECORDS} all",
    )
    assert "code 2" in result.stdout and "code 0" in result.stdout, result.stdout + result.stderr
    assert f"{RECORDS}/native/embedded/" in result.stderr and "No space left on device" in result.stderr
    assert "Traceback" not in result.stderr
    kept = {path.relative_to(folder / "kept"): path.stat().st_mtime_ns for path in (folder / "kept").rglob("*.jsonl")}
    assert 0 < len(kept) < 6
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


MADE = [str(CELLS), str(RESULTS / "figures/heatmap.svg"), str(RESULTS / "tables/quality.csv")]
DAMAGE = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: 2 * len(content) // 3],
    "flipped": lambda content: (
        content[: len(content) // 2] + bytes([content[len(content) // 2] ^ 1]) + content[len(content) // 2 + 1 :]
    ),
    "not UTF-8": lambda content: b"\xff\xfe" + content,
}


def read_by_stages(folder: Path) -> list[Path]:
    """Every file of the finished study that a stage reads."""
    root = folder / RESULTS
    listed = [path for pattern in LISTED for path in root.glob(pattern)]
    others = [
        *root.glob("records/**/*.jsonl"),
        *root.glob("records/**/index.json"),
        *root.glob("models/*/*"),
        *root.glob("models/*/*/*"),
    ]
    return sorted(path for path in {*listed, *others} if path.is_file() and not path.name.startswith("."))


@pytest.mark.parametrize("kind", DAMAGE)
def test_every_kind_of_damaged_file_is_named(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for path in read_by_stages(folder):
        path.write_bytes(DAMAGE[kind](path.read_bytes()))
    named = Rules(load_study(Path(CONFIG)), cores=1, gpus=0, shared=False).damage.found()
    # A damaged list of hashes condemns what it lists.
    missed = [
        path
        for path in read_by_stages(Path())
        if not {path, *path.parents, *(path.with_name(TEXT) for _ in [0] if path.name == HASHES)} & named.keys()
    ]
    assert not missed
    assert all(named.values())


def test_every_kind_of_damaged_file_is_set_aside_and_made_again(folder: Path, finished: Path) -> None:
    """Each kind of damage in turn; one model, since a damaged target alone makes all others again."""
    damaged = [path for path in read_by_stages(folder) if "models" not in path.parts or "draft" in path.parts]
    kinds = list(DAMAGE.values())
    for number, path in enumerate(damaged):
        path.write_bytes(kinds[number % len(kinds)](path.read_bytes()))
    result = run(folder, *MADE)
    assert result.returncode == 0 and "Traceback" not in result.stdout and "unexpected error" not in result.stdout, (
        result.stdout
    )
    for path in damaged:
        name = path.relative_to(folder)
        assert path.is_file(), name
        assert str(name) in result.stdout or f"{name.parent} is damaged" in result.stdout, name
    assert timeless(folder) == timeless(finished)
    root = folder / RESULTS
    assert not damaged_listed(root) and list(root.glob("audit/*.damaged-1")) and list(root.glob("corpus/*.damaged-1"))
    assert "Nothing to be done" in run(folder, *MADE).stdout
