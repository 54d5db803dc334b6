"""What does other work beside a study do to its speedups, and which cells do the marks name?

    make                                                          # once: the default study, on a quiet machine
    python benchmarks/planted_loads.py results/quick --loads 0 0 0.15 0.3 0.6 1 2

The study's cells are measured again beside processes that are busy in bursts, for a given number of cores in all. The
first load is the reference, mostly none. Then each load has a row: the share of cells that are marked; the share whose
interval misses the reference's estimate; how far their speedups lie from it; and the largest sign of a cell. Two quiet
runs say how far apart speedups lie by themselves. Nothing else may run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from specrig.analysis.cells import row_dicts
from specrig.analysis.disturbance import disturbed
from specrig.measurement.runner import measure
from specrig.measurement.signs import loads, signs
from specrig.report.study_data import StudyData, read_study
from specrig.study.load import load_study

METHODS = ("ngram", "suffix", "token_recycling", "p_eagle", "suffix_p_eagle")
BURST_S = 0.2
"""Mean seconds of a burst and the rest behind it."""
INPUTS = ("prompts", "converted", "models")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, help="results folder of a finished study")
    parser.add_argument("--loads", type=float, nargs="+", default=[0, 0, 0.15, 0.3, 0.6, 1, 2], help="cores kept busy")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--work", type=Path, default=Path("build/planted_loads"), help="folder of the records")
    parser.add_argument("--job", type=int, help=argparse.SUPPRESS)  # a process of its own measures this replicate
    given = parser.parse_args()
    if given.job is not None:
        study = load_study(given.study)
        for (engine, pair, _), methods in study.grid.jobs.items():
            measure(study, engine, pair, methods, given.job)
        return
    reference: StudyData | None = None
    for number, load in enumerate(given.loads):
        config = prepared(given.study, given.work / f"{number}-{load:g}", given.methods)
        begun = time.monotonic()
        with planted(load):
            for replicate in range(json.loads(config.read_text())["replicates"]):
                subprocess.run([sys.executable, __file__, str(config), "--job", str(replicate)], check=True)
        found = read_study(config.parent)
        reference = reference or found
        print(f"{load:g} cores, {time.monotonic() - begun:.0f} s: {summary(found, reference)}", flush=True)


def prepared(source: Path, folder: Path, methods: list[str]) -> Path:
    """The study.json of a folder in which nothing is measured yet, with the inputs of `source`."""
    folder.mkdir(parents=True)
    for name in INPUTS:
        if (source / name).exists():
            (folder / name).symlink_to((source / name).absolute())
    config: dict[str, Any] = json.loads((source / "study.json").read_text())
    config |= {"study": folder.name, "results": str(folder.parent), "remeasure": {"times": 0, "share": 0}}
    # Those that run on every task.
    config["methods"] = [entry for entry in config["methods"] if entry["method"] in methods and not entry["tasks"]]
    (folder / "study.json").write_text(json.dumps(config))
    return folder / "study.json"


@contextmanager
def planted(load: float) -> Iterator[None]:
    """Keep so many cores busy."""
    count = math.ceil(load)
    processes = [multiprocessing.Process(target=busy, args=(load / count, seed), daemon=True) for seed in range(count)]
    for process in processes:
        process.start()
    yield
    for process in processes:
        process.kill()


def busy(share: float, seed: int) -> None:
    """Be busy for a share of the time, in bursts."""
    drawn = random.Random(seed)
    while True:
        burst = drawn.expovariate(1 / BURST_S)
        end = time.process_time() + share * burst
        while time.process_time() < end:
            pass
        time.sleep((1 - share) * burst)


def summary(found: StudyData, reference: StudyData) -> str:
    """What the load did, in one line."""
    usual = {row["cell"]: row["speedup"] for row in row_dicts(named(reference))}
    table = named(found)
    rows = [row for row in row_dicts(table) if row["cell"] in usual]
    missed = sum(not row["speedup_low"] <= usual[row["cell"]] <= row["speedup_high"] for row in rows)
    errors = pd.Series([math.log(row["speedup"] / usual[row["cell"]]) for row in rows])
    largest: dict[str, float] = {}
    for records in found.cells.values():
        for name, value in signs(loads(records), found.environments[records[0].cell.method_key]).items():
            largest[name] = max(largest.get(name, 0.0), value)
    texts = ", ".join(f"{name} {value:.2f}" for name, value in largest.items())
    return (
        f"{int(disturbed(table).sum())} of {len(rows)} cells marked, {missed} intervals miss the reference, speedup "
        f"{math.exp(errors.mean()):.3f} of it, spread {errors.std():.3f}; largest signs: {texts}"
    )


def named(study: StudyData) -> pd.DataFrame:
    """The table of cells with the column `cell`."""
    return study.table.assign(cell=list(study.cells))


if __name__ == "__main__":
    main()
