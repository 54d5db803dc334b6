"""A study as a user runs it: Snakemake with this repository's workflow and a profile of its own, in any folder."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from specrig.measurement.records import study_records

REPOSITORY = Path(__file__).parents[1]
CONFIG = "configs/test.yaml"
RESULTS = Path("results/test")
RECORDS = RESULTS / "records"
CELLS = RESULTS / "tables/cells.csv"
"""As a target: measuring, audits and tables, without figures, report and MLflow."""


def furnish(folder: Path) -> None:
    """Give a folder what the commands of a study read: a copy of `configs/`, to be edited, `weights/`, `tests/data/`."""
    shutil.copytree(REPOSITORY / "configs", folder / "configs")
    (folder / "weights").symlink_to(REPOSITORY / "weights")
    (folder / "tests").mkdir()
    (folder / "tests/data").symlink_to(REPOSITORY / "tests/data")


def own_study(name: str, table: str, prompts: Sequence[str], *, task: str = "own", **keys: Any) -> Path:
    """The config of a study of one task and all pairs of `table`, written into the working directory with its prompts
    and both tables. keys: further keys of the study.
    """
    lines = [json.dumps({"id": str(number), "prompt": text}) + "\n" for number, text in enumerate(prompts)]
    Path("prompts.jsonl").write_text("".join(lines))
    Path("configs/pairs.tsv").write_text(table)
    Path("configs/tasks.tsv").write_text(f"task\tsource\n{task}\tprompts.jsonl\n")
    pairs = [line.split("\t")[0] for line in table.splitlines()[1:]]
    config = {"study": name, "pairs": pairs, "tasks": [task], "prompts": len(prompts), "device": "cpu", "threads": 1}
    Path(f"configs/{name}.yaml").write_text(yaml.safe_dump(config | keys, sort_keys=False))
    return Path(f"configs/{name}.yaml")


QUICKLY = [
    "--seconds-between-status-checks", "2", "--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "5",
]  # fmt: skip
"""For Slurm on this machine."""


def command(*arguments: str, config: str | None = CONFIG, profile: str = "default") -> list[str]:
    """The command line; config: None for the workflow's own default. It stands last, since it takes every word behind
    it.
    """
    snakemake = [sys.executable, "-m", "snakemake", "--snakefile", str(REPOSITORY / "Snakefile")]
    own = ["--workflow-profile", str(REPOSITORY / "profiles" / profile)]
    return [*snakemake, *own, *arguments, *(["--configfile", config] if config else [])]


SERVER = "SPECRIG_TESTS_SERVER"
"""Environment variable with the address of a process that has imported all (warm/server.py)."""
FIRST = "SPECRIG_TESTS_FIRST"
"""Environment variable with a file of Python that each of its copies runs first, as a job that finds other things."""


@contextlib.contextmanager
def server(environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """While such a process runs, as a user with this environment: the variable that names it. Linux alone has it."""
    if sys.platform != "linux":
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="specrig-tests-") as folder:  # the name of a socket is short
        named = {SERVER: f"{folder}/server"}
        command = [sys.executable, str(REPOSITORY / "tests/warm/server.py"), named[SERVER]]
        process = subprocess.Popen(command, env=imported({**environment, **named}), stdin=subprocess.PIPE)
        try:
            while not Path(named[SERVER]).exists() and process.poll() is None:
                time.sleep(0.02)
            yield named
        finally:
            process.kill()
            process.wait()


def imported(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment in which Snakemake and its jobs are copies of the process that has imported all."""
    path = os.pathsep.join(filter(None, [str(REPOSITORY / "tests/warm"), environment.get("PYTHONPATH")]))
    return {**environment, "PYTHONPATH": path} if SERVER in environment else dict(environment)


def run(
    folder: Path, *arguments: str, config: str | None = CONFIG, profile: str = "default", **settings: Any
) -> subprocess.CompletedProcess[str]:
    """Run a study in `folder`; settings: of the process. What it said, on both streams, is in `stdout`.

    Without an environment of its own it does not import everything anew in each job.
    """
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "timeout": 1800}
    settings = pipes | {"env": imported()} | settings
    return subprocess.run(command(*arguments, config=config, profile=profile), cwd=folder, **settings)


def copied(start: Path, folder: Path) -> Path:
    """A copy of a study's folder with the times of its files, by which Snakemake judges."""
    return Path(shutil.copytree(start, folder, symlinks=True))


def without_measurements(folder: Path) -> None:
    """Take away what was measured in a study's folder and what follows from it; models and exact audits stay."""
    for name in ("records", "measured", "tables"):
        shutil.rmtree(folder / RESULTS / name, ignore_errors=True)
    (folder / RESULTS / "audit/records.csv").unlink(missing_ok=True)


def outputs(folder: Path) -> dict[Any, Any]:
    """Of every prompt of every cell of a study's folder: seed, token ids, accepted tokens of each round, and the digest
    of all that decides them.
    """
    return {
        (record.cell.name, record.prompt_id): (
            record.seed,
            record.digest,
            record.text,
            record.run.tokens,
            record.run.rounds.model_dump(),
            record.baseline.tokens,
        )
        for record in study_records(folder / RECORDS)
    }


def stamps(records: Path) -> dict[str, tuple[int, bytes]]:
    """Record file below the folder `records` -> (time of writing, content)."""
    files = sorted(records.rglob("*.jsonl"))
    return {path.relative_to(records).as_posix(): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}
