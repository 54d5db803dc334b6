"""The full grid through Snakemake: planned in seconds, and what it needs is said."""

from __future__ import annotations

import re
from pathlib import Path

from runs import run


def test_the_dry_run_says_what_the_grid_needs(workplace: Path) -> None:
    result = run(Path(), "--dry-run", config="configs/paper.yaml")
    output = result.stdout
    assert result.returncode == 0, output
    assert re.search(r"[\d]+ cells in \d+ jobs · up to [\d.]+ GB \(\w+\) of GPU memory · at most [\d.,]+ hours", output)
    assert re.search(r"prompts +8\n", output), "each data set is fetched by a job of its own"
    assert not Path("results").exists()
