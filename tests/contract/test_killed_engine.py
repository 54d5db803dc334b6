"""Killed in mid-cell, an engine fails its cell with the reason and a rerun measures that alone; a killed job leaves no
engine behind.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import psutil
import pytest

from runs import own_study
from specrig.audit.toy_pair import build
from specrig.cell import Cell
from specrig.engines.vllm import RunningEngine, Vllm
from specrig.measurement.blocks import WARMUP_TOKENS
from specrig.measurement.records import read_records
from specrig.measurement.runner import measure
from specrig.study.load import load_study
from specrig.study.study import Study

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(Vllm.missing() is not None, reason="vLLM is not installed")]
TOKENS = 64
OPTIONS = {"eager": True, "multiprocessing": True}


@pytest.fixture
def study(workplace: Path) -> Study:
    """Two cells that share their baseline."""
    pair = build(workplace / "toy_pair")
    table = f"pair\ttarget\tdraft\np\t{pair.target}\t{pair.draft}\n"
    keys = {"engines": ["vllm"], "engine_options": {"vllm": OPTIONS}, "max_new_tokens": TOKENS}
    methods = [{"method": "draft_model", "k": [2, 4]}]
    return load_study(own_study("killed", table, ["abcabcd", "dedefa"], task="t", methods=methods, **keys))


class Watched:
    """Counts the recorded generations of each cell; kills the engine's processes in the third step of the last one of
    `victim`.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, victim: str | None = None) -> None:
        self.ran: Counter[str] = Counter()
        self.victim = victim
        stream = Vllm._stream

        def watched(engine: Vllm, started: RunningEngine, cell: Cell, prompts: Any, limit: int, seeds: Any) -> Any:
            if limit > WARMUP_TOKENS:
                self.ran[cell.slug] += 1
                if cell.slug == self.victim and self.ran[cell.slug] == 2:
                    self.kill_later(started)
            return stream(engine, started, cell, prompts, limit, seeds)

        monkeypatch.setattr(Vllm, "_stream", watched)

    def kill_later(self, started: RunningEngine) -> None:
        running = started.llm.llm_engine
        step, steps = running.step, iter(range(1, 1000))

        def stepped() -> Any:
            if next(steps) == 3:
                for child in started.processes.all:
                    child.kill()
            return step()

        running.step = stepped


def test_the_cell_fails_with_the_reason_and_a_rerun_measures_it_alone(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    others_alive = set(psutil.Process().children(recursive=True))
    folder = study.root / "records/vllm/p/draft_model"
    with monkeypatch.context() as patched:
        first = Watched(patched, victim="t-k2-t0-b1")
        measure(study, "vllm", "p", ["draft_model"])

    index = json.loads((folder / "index.json").read_text())
    assert set(index["cells"]) == {"t-k4-t0-b1"}
    assert set(index["failed"]) == {"t-k2-t0-b1"}
    assert "vLLM failed while it decoded: its process" in index["failed"]["t-k2-t0-b1"]
    assert "was killed by SIGKILL" in index["failed"]["t-k2-t0-b1"]
    assert first.ran == {"t-k0-t0-b1": 4, "t-k2-t0-b1": 2, "t-k4-t0-b1": 2}
    written = (folder / "t-k4-t0-b1.jsonl").stat().st_mtime_ns
    assert not (folder / "t-k2-t0-b1.jsonl").exists()
    assert not (folder / "parts").exists()

    with monkeypatch.context() as patched:
        again = Watched(patched)
        measure(study, "vllm", "p", ["draft_model"])

    # Two prompts of the cell, and of its baseline before it and after it.
    assert again.ran == {"t-k2-t0-b1": 2, "t-k0-t0-b1": 4}
    assert (folder / "t-k4-t0-b1.jsonl").stat().st_mtime_ns == written
    index = json.loads((folder / "index.json").read_text())
    assert index["failed"] == {} and len(index["cells"]) == 2
    for slug in index["cells"]:
        for record in read_records(folder / f"{slug}.jsonl"):
            assert record.run.tokens == record.baseline.tokens and len(record.run.tokens) == TOKENS
    left = [child for child in set(psutil.Process().children(recursive=True)) - others_alive if child.is_running()]
    assert not [child for child in left if "resource_tracker" not in " ".join(child.cmdline())]


JOB = """
import os, sys
from pathlib import Path
from dataclasses import replace
from specrig.audit.toy_pair import build
from specrig.cell import Cell
from specrig.engines.vllm import Vllm

pair = replace(build(Path(sys.argv[1])), engine_options={"vllm": {"eager": True, "multiprocessing": True}})
engine = Vllm(pair, threads=1)
cell = Cell(engine="vllm", pair="toy_pair", method="autoregressive", k=0, task="t", temperature=0.0)
engine.generate(cell, [[1, 2, 3]], max_new_tokens=4, seeds=[0])
Path(sys.argv[2]).write_text(" ".join(str(process.pid) for process in engine._baseline.processes.all))
os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(
    "specrig_die_with_parent" not in entry_points(group="vllm.general_plugins").names,
    reason="vLLM finds the plugin only where the package is installed",
)
def test_a_killed_job_leaves_no_engine_behind(tmp_path: Path) -> None:
    started = tmp_path / "started"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([sys.executable, "-c", JOB, str(tmp_path / "toy_pair"), str(started)], check=False, **quiet)
    orphans = [psutil.Process(int(pid)) for pid in started.read_text().split() if psutil.pid_exists(int(pid))]
    _, alive = psutil.wait_procs(orphans, timeout=60)
    for process in alive:
        process.kill()
    assert not alive
