"""A study as a user runs it: Snakemake with this repository's workflow and a profile of its own, in any folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
CONFIG = "configs/test.yaml"


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


def run(
    folder: Path, *arguments: str, config: str | None = CONFIG, profile: str = "default", **settings: Any
) -> subprocess.CompletedProcess[str]:
    """Run a study in `folder`; settings: of the process. What it said, on both streams, is in `stdout`."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "timeout": 1800}
    return subprocess.run(command(*arguments, config=config, profile=profile), cwd=folder, **pipes | settings)


def stamps(records: Path) -> dict[str, tuple[int, bytes]]:
    """Record file below the folder `records` -> (time of writing, content)."""
    files = sorted(records.rglob("*.jsonl"))
    return {path.relative_to(records).as_posix(): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}
