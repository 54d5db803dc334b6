"""A real Slurm of one node (slurm.sh): the test study over profiles/slurm brings the local run's tables, whatever
becomes of its jobs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import runs
from runs import CELLS, RECORDS, RESULTS, copied, furnish, outputs, run, stamps, without_measurements

pytestmark = pytest.mark.workflow
SLURM = Path(__file__).with_name("slurm.sh")
MEASURED = str(RESULTS / "measured/native/tiny/together")
LONGER = ["--config", "prompts=8", "max_new_tokens=160"]
"""So that a job is still at work when its first cells are written."""
TIMELESS = ["engine", "pair", "method", "k", "task", "temperature", "batch_size", "prompts", "tokens"]
TIMELESS += ["acceptance_rate", "acceptance_length", "alpha"]
"""Columns of the table of cells in which no time is."""


def timeless(folder: Path) -> dict[str, Any]:
    """Everything that another way of running must bring exactly: the table of cells but for times, and `outputs`."""
    return {"cells": pd.read_csv(folder / CELLS)[TIMELESS].to_dict("records"), "outputs": outputs(folder)}


@pytest.fixture(scope="module")
def slurm() -> Iterator[None]:
    missing = [name for name in ("slurmctld", "slurmd", "munged") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: apt-get install slurm-wlm munge")
    pytest.importorskip("snakemake_executor_plugin_slurm", reason="pip install -e '.[slurm]' is missing")
    if os.geteuid() != 0 or Path("/etc/slurm/slurm.conf").exists():
        pytest.skip("a Slurm is started only as root, and where there is none")
    folder = tempfile.mkdtemp(prefix="slurm-")
    subprocess.run(["bash", SLURM, "start", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["bash", SLURM, "stop", folder], check=True)
        shutil.rmtree(folder)


def command(*arguments: str) -> list[str]:
    """The study over profiles/slurm, with what this node needs."""
    # As many cores as the local run takes: trainings on other threads give other models.
    cores = ["--cores", str(len(os.sched_getaffinity(0)))]
    return runs.command(*cores, *runs.QUICKLY, *arguments, profile="slurm")


def over_slurm(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1500
    )


def jobs(state: str = "all") -> list[dict[str, str]]:
    """The jobs of Slurm, the oldest first: number, state, limit of time, memory, partition, GPUs, and what Snakemake
    says of them.
    """
    keys = {"id": "%i", "state": "%T", "limit": "%l", "memory": "%m", "partition": "%P", "comment": "%k"}
    lines = subprocess.run(
        ["squeue", "--noheader", f"--states={state}", "--sort=i", "--format=" + "|".join(keys.values())],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return [dict(zip(keys, line.split("|"), strict=True)) for line in lines]


def test_the_whole_study_brings_the_local_tables(slurm: None, finished: Path, tmp_path: Path) -> None:
    furnish(tmp_path)
    before = len(jobs())
    result = over_slurm(tmp_path, "--config", "jobs=method")
    assert result.returncode == 0, result.stdout
    assert timeless(tmp_path) == timeless(finished)
    assert (tmp_path / "reports/test/report.html").is_file() and (tmp_path / RESULTS / "tracked.txt").is_file()
    sent = jobs()[before:]
    assert {job["state"] for job in sent} == {"COMPLETED"} and {job["partition"] for job in sent} == {"cpu"}
    measured = [job for job in sent if job["comment"].startswith("rule_measure")]
    assert len(measured) == 3, "a job a method"
    # Memory and minutes of the plan: 4 MB of models and cache and 1.5 GB of workspace, ten minutes and less than one.
    assert {job["memory"] for job in measured} == {"1504M"} and {job["limit"] for job in measured} == {"11:00"}
    # Text, head, three methods, three exact audits together, the audit, and everything from tables on together.
    assert len(sent) == 8


@pytest.fixture(scope="module")
def undisturbed(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = copied(finished, tmp_path_factory.mktemp("undisturbed") / "study")
    without_measurements(folder)
    result = run(folder, MEASURED, *LONGER)
    assert result.returncode == 0, result.stdout
    return folder


@pytest.mark.parametrize("end", ["cancelled", "out of time"])
def test_a_job_that_slurm_ends_goes_on_with_more_time(slurm: None, undisturbed: Path, tmp_path: Path, end: str) -> None:
    folder = copied(undisturbed, tmp_path / "study")
    without_measurements(folder)
    before = len(jobs())
    with (folder / "output.txt").open("w") as message:
        process = subprocess.Popen(command(MEASURED, *LONGER), cwd=folder, stdout=message, stderr=message)
        try:
            while not (running := jobs("running")):
                assert process.poll() is None, (folder / "output.txt").read_text()
                time.sleep(0.2)
            [first] = running
            while not (kept := stamps(folder / RECORDS)):
                assert process.poll() is None, (folder / "output.txt").read_text()
                time.sleep(0.02)
            if end == "cancelled":
                subprocess.run(["scancel", first["id"]], check=True)
            else:
                # It hangs, and its time is over: Slurm looks at the limits every half minute.
                subprocess.run(["scancel", "--signal=STOP", "--full", first["id"]], check=True)
                subprocess.run(["scontrol", "update", f"JobId={first['id']}", "EndTime=now+1"], check=True)
            assert process.wait(600) == 0, (folder / "output.txt").read_text()
        finally:
            process.kill()
            process.wait()
    cut, again = jobs()[before:]
    assert (cut["state"], again["state"]) == ({"cancelled": "CANCELLED", "out of time": "TIMEOUT"}[end], "COMPLETED")
    assert (first["limit"], again["limit"]) == ("11:00", "22:00")
    after = stamps(folder / RECORDS)
    assert 0 < len(kept) < len(after) == 8, "the second job had something left to do"
    assert {name: after[name] for name in kept} == kept, "what was measured is not measured again"
    assert outputs(folder) == outputs(undisturbed)


def test_jobs_for_a_gpu_go_where_gpus_are(slurm: None, finished: Path, tmp_path: Path) -> None:
    """Slurm gives them pretended GPUs; that PyTorch then finds none is said once for each method."""
    folder = copied(finished, tmp_path / "study")
    before = len(jobs())
    measured = [str(Path(MEASURED).with_name(method)) for method in ("draft_model", "ngram")]
    result = over_slurm(folder, *measured, "--retries", "0", "--config", "device=cuda", "jobs=method")
    assert result.returncode == 1, result.stdout
    sent = jobs()[before:]
    assert [job["partition"] for job in sent] == ["gpu", "gpu"] and {job["state"] for job in sent} == {"FAILED"}
    for job in sent:
        job_state = subprocess.run(
            ["scontrol", "show", "job", job["id"]], capture_output=True, text=True, check=True
        ).stdout
        assert "gpu:1" in job_state, job_state
