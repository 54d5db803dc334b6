"""Kill a whole run with SIGKILL at random moments and let the same command go on: python tests/faults/kills.py --trials
20 --seed 0.

Each trial starts from trained models without measurements, so that the moments fall into measuring, audit and tables.
It survives if the rerun, without any unlocking, ends with the tables, token ids and accepted tokens of the undisturbed
run, and measures no cell again that was finished when the run was killed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from undisturbed import CELLS, copied, run, stamps, timeless, without_measurements

from runs import REPOSITORY, command


def prepared(work: Path) -> tuple[Path, Path, float]:
    """Returns the folder to start from, that of the undisturbed run, and how many seconds this run took."""
    start, undisturbed, seconds = work / "start", work / "undisturbed", work / "seconds.json"
    if not start.is_dir():
        (work / "unfinished").mkdir(parents=True)
        shutil.copytree(REPOSITORY / "configs", work / "unfinished/configs")
        _well(run(work / "unfinished"))
        without_measurements(work / "unfinished")
        (work / "unfinished").rename(start)
    if not seconds.is_file():
        shutil.rmtree(undisturbed, ignore_errors=True)
        copied(start, undisturbed)
        begun = time.monotonic()
        _well(run(undisturbed))
        seconds.write_text(json.dumps(time.monotonic() - begun))
    return start, undisturbed, json.loads(seconds.read_text())


def cut(folder: Path, moment: float) -> tuple[str, float | None]:
    """Run the study and kill the run with all its jobs after `moment` seconds; returns what it said, and its seconds if
    it ended before.
    """
    begun = time.monotonic()
    with (folder / "killed.txt").open("w+") as log:
        process = subprocess.Popen(command(str(CELLS)), cwd=folder, stdout=log, stderr=log, start_new_session=True)
        try:
            process.wait(moment)
            ended = time.monotonic() - begun
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            ended = None
        log.seek(0)
        return log.read(), ended


def trial(number: int, seed: int, work: Path, start: Path, undisturbed: Path, seconds: float) -> dict[str, Any]:
    """Kill one run at a random moment of its about so many seconds and rerun it; returns what happened."""
    folder = work / f"trial-{number}"
    fraction = random.Random(f"{seed}/{number}").random()
    ended: float | None = seconds
    while ended is not None:  # a run that was quicker than its moment is no trial: again, at the same part of its time
        moment = fraction * ended
        shutil.rmtree(folder, ignore_errors=True)
        message, ended = cut(copied(start, folder), moment)
    stages = re.findall(r"^Job \d+: (\w+)", message, flags=re.M)
    kept = stamps(folder)
    again = run(folder)
    after = stamps(folder)
    passed = {
        "rerun ends": again.returncode == 0,
        "nothing measured twice": all(after.get(name) == stamp for name, stamp in kept.items()),
        "same results": again.returncode == 0 and timeless(folder) == timeless(undisturbed),
        "no traceback": "Traceback" not in again.stdout,
    }
    if all(passed.values()):
        shutil.rmtree(folder)
    else:
        (folder / "rerun.txt").write_text(again.stdout)
    return {
        "trial": number,
        "second": round(moment, 1),
        "in": stages[-1] if stages else "planning",
        "cells": len(kept),
    } | passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first trial: a campaign may be run in parts"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, default=Path("build/faults"), help="folder for the runs")
    options = parser.parse_args()
    work = options.work.absolute()
    start, undisturbed, seconds = prepared(work)
    print(f"the undisturbed run took {seconds:.0f} s", flush=True)
    found = []
    for number in range(options.first, options.first + options.trials):
        found.append(trial(number, options.seed, work, start, undisturbed, seconds))
        print(json.dumps(found[-1]), flush=True)
    survived = sum(all(value for value in each.values() if isinstance(value, bool)) for each in found)
    print(f"{survived} of {len(found)} kills survived")
    return 0 if survived == len(found) else 1


def _well(result: subprocess.CompletedProcess[str]) -> None:
    if result.returncode:
        sys.exit(result.stdout)


if __name__ == "__main__":
    sys.exit(main())
