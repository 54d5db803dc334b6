"""The full grid through Snakemake: planned in seconds, and what it needs is said."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_the_dry_run_says_what_the_grid_needs(workplace: Path) -> None:
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(REPOSITORY / "Snakefile")]
    command += ["--workflow-profile", str(REPOSITORY / "profiles/default"), "--configfile", "configs/paper.yaml", "--dry-run"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    shown = result.stdout + result.stderr
    assert result.returncode == 0, shown
    assert re.search(r"[\d]+ cells in \d+ jobs × 2 · up to [\d.]+ GB \(\w+\) of GPU memory · at most [\d.,]+ hours", shown)
    assert re.search(r"prompts +8\n", shown), "each data set is fetched by a job of its own"
    assert not Path("results").exists()
