"""Two fake GPUs on one machine: the jobs of a study run side by side, one a GPU, and see no other."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from runs import FIRST, SERVER, imported, run

pytestmark = pytest.mark.workflow

FAKE_GPUS = """
# Jobs that measure find a GPU and compute on the CPU; what they may see of the GPUs, and when, is written down. The
# first waits for the second, so that one that is late does not find all GPUs free.
import sys
if "measure" in sys.argv:
    import atexit, json, os, time
    from pathlib import Path
    import torch
    from specrig.measurement import plan
    decided, seen = plan.resolve_device, {"begun": time.monotonic()}

    def write():
        with open(f"gpu-{os.getpid()}.json", "w") as file:
            json.dump(seen | {"ended": time.monotonic()}, file)

    def fake(device, count=1):
        available, torch.cuda.is_available = torch.cuda.is_available, lambda: True
        device, torch.cuda.is_available = decided(device, count), available
        assert device == "cuda"
        if "devices" not in seen:
            seen.update(devices=os.environ["CUDA_VISIBLE_DEVICES"], threads=os.environ["OMP_NUM_THREADS"], begun=time.monotonic())
            atexit.register(write)
            Path(f"taken-{os.getpid()}").touch()
            while len(list(Path().glob("taken-*"))) < 2 and time.monotonic() < seen["begun"] + 120:
                time.sleep(0.05)
        return "cpu"

    plan.resolve_device = fake
"""


@pytest.mark.skipif(SERVER not in os.environ, reason="only copies of the tests' server find GPUs that are not there")
def test_jobs_are_spread_over_the_gpus_one_a_gpu(workplace: Path, tmp_path: Path) -> None:
    folder = workplace
    (folder / "gpus.py").write_text(FAKE_GPUS)
    methods = [{"method": "draft_model", "k": 2}, {"method": "ngram", "k": 3}, {"method": "suffix", "k": 4}]
    changes = {"methods": methods, "jobs": "method", "device": "cuda"}
    config = yaml.safe_load((folder / "configs/test.yaml").read_text()) | changes
    (folder / "configs/gpus.yaml").write_text(yaml.safe_dump(config))
    environment = {"CUDA_VISIBLE_DEVICES": "3,7", "TMPDIR": str(tmp_path), FIRST: str(folder / "gpus.py")}
    targets = [f"results/test/measured/native/tiny/{entry['method']}" for entry in methods]
    options = ["--cores", "4", "--resources", "gpu=2"]
    result = run(folder, *targets, *options, config="configs/gpus.yaml", env=imported() | environment)
    assert result.returncode == 0, result.stdout
    jobs = sorted((json.loads(path.read_text()) for path in folder.glob("gpu-*.json")), key=lambda job: job["begun"])
    assert len(jobs) == 3
    assert {job["devices"] for job in jobs} == {"3", "7"}
    assert {job["threads"] for job in jobs} == {"2"}, "the cores are shared too"
    assert jobs[1]["begun"] < jobs[0]["ended"], "side by side"
    for device in ("3", "7"):
        own = [job for job in jobs if job["devices"] == device]
        assert all(one["ended"] <= other["begun"] for one, other in pairwise(own)), "never two on one GPU"
    index = json.loads((folder / "results/test/records/native/tiny/suffix/index.json").read_text())
    assert len(index["cells"]) == 2 and not index["failed"]
