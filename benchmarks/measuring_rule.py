"""Does the rule of measuring find a quiet machine's speedups on a machine that is not quiet?

    make                                  # once: sets up the environment and the default study's models
    python benchmarks/measuring_rule.py   # about 20 minutes; the machine must be idle

A small study (four tasks, eight prompts of 48 tokens, four methods) runs on the idle machine, with the result of four
repeats or more as the reference, then beside work that this script starts:

    bursts   two processes that are each busy for a fifth of the time, and one that is busy for 30 of every 90 seconds
    core     one process that is busy throughout (`--loads bursts core` runs both, 15 minutes more)

Records keep every repeat, so each rule is computed from the same ones: "mean" is the mean over the first two repeats of
the ratios of whole runs, as was measured before; "least" is the least time of each round, from at least two or three
repeats until it settles, or until it is the same without any one repeat. A row says how far the log speedups of prompts
and the means of methods over tasks lie from the reference, how many cells lie within the reference's intervals, whether
the same method is named as the fastest, and how many minutes the repeats that the rule used took. Records stay in the
folder `--work`: a second call goes on from them.

`--studies quiet=results/quick bursts=/another/clone/results/quick` measures nothing and applies the rules to the greedy
cells of whole studies; the first is the reference.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from specrig.analysis.statistics import average, mean, moderated
from specrig.measurement.records import Record, Repeat, Run, Timing, study_records
from specrig.measurement.repeats import decode_seconds, settled
from specrig.measurement.runner import measure
from specrig.study.load import load_study

BASE = Path("configs/quick.yaml")
METHODS = [
    {"method": "ngram", "k": 6},
    {"method": "suffix", "k": 8},
    {"method": "p_eagle", "k": 3},
    {"method": "p_eagle", "k": 4, "nodes": 8},
]
AGREE, MOST = 0.02, 5
REPEATS = {"quiet": {"least": 4, "most": 5}, "bursts": {"least": 3, "most": 5}, "core": {"least": 3, "most": 5}}
BURST_S = 0.2
"""Seconds in which a process that is busy for a share of the time is busy once."""
INPUTS = ("prompts", "converted", "corpus", "models")

Logs = dict[str, dict[str, list[float]]]
"""Method -> task -> log speedups of its prompts."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", nargs="+", choices=["bursts", "core"], default=["bursts"])
    parser.add_argument("--work", type=Path, default=Path("build/measuring_rule"), help="folder of studies and records")
    parser.add_argument("--prompts", type=int, default=8, help="prompts of each task")
    parser.add_argument("--tokens", type=int, default=48, help="new tokens of each prompt")
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)  # a process of its own measures this study
    parser.add_argument("--studies", nargs="+", metavar="NAME=FOLDER", help="results of finished studies instead")
    given = parser.parse_args()
    if given.studies:
        folders = dict(named.split("=", 1) for named in given.studies)
        show({name: greedy(study_records(Path(folder) / "records")) for name, folder in folders.items()})
        return
    if given.job is not None:
        study = load_study(given.job)
        for (engine, pair, _), methods in study.grid.jobs.items():
            measure(study, engine, pair, methods)
        return
    source = prepared_study(given.work, given.prompts, given.tokens)
    records = {}
    for load in ["quiet", *given.loads]:
        begun = time.monotonic()
        with planted(load):
            subprocess.run(
                [sys.executable, __file__, "--job", str(study_of(source, given.work / load, load))], check=True
            )
        records[load] = study_records(given.work / load / "records")
        print(f"{load}: measured in {(time.monotonic() - begun) / 60:.1f} minutes", file=sys.stderr, flush=True)
    show(records)


def prepared_study(work: Path, prompts: int, tokens: int) -> Path:
    """The results folder of a study whose models and prompts are made, and nothing is measured."""
    config = yaml.safe_load(BASE.read_text()) | {"study": "source", "methods": METHODS, "prompts": prompts}
    config |= {"max_new_tokens": tokens, "results": str(work), "reports": str(work / "reports")}
    work.mkdir(parents=True, exist_ok=True)
    (work / "study.yaml").write_text(yaml.safe_dump(config))
    omitted = ["-O", "measure", "audit_exact"]
    subprocess.run([sys.executable, "-m", "specrig", "run", str(work / "study.yaml"), *omitted], check=True)
    return work / "source"


def study_of(source: Path, folder: Path, load: str) -> Path:
    """The study.json of a folder for the records of one load, with the inputs of `source`."""
    folder.mkdir(exist_ok=True)
    for name in INPUTS:
        if (source / name).exists() and not (folder / name).exists():
            (folder / name).symlink_to((source / name).absolute())
    config: dict[str, Any] = json.loads((source / "study.json").read_text())
    config |= {"study": folder.name, "results": str(folder.parent), "repeats": {**REPEATS[load], "agree": AGREE}}
    (folder / "study.json").write_text(json.dumps(config))
    return folder / "study.json"


@contextmanager
def planted(load: str) -> Iterator[None]:
    """Keep the machine as busy as `load` says."""
    busy: dict[str, list[Callable[[], None]]] = {
        "quiet": [],
        "bursts": [
            lambda: for_a_share(BURST_S, 0.2),
            lambda: for_a_share(BURST_S, 0.2),
            lambda: for_a_share(90, 1 / 3),
        ],
        "core": [lambda: for_a_share(1.0, 1.0)],
    }
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=each, daemon=True) for each in busy[load]]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()


def for_a_share(period_s: float, share: float) -> None:
    """Be busy for a share of each period, in one piece."""
    while True:
        end = time.monotonic() + share * period_s
        while time.monotonic() < end:
            pass
        time.sleep((1 - share) * period_s)


Rule = Callable[[Run, Run], tuple[float, float, float]]
"""From the runs of method and baseline (log speedup, seconds of each that the repeats took which it used)."""


def mean_of_two(run: Run, baseline: Run) -> tuple[float, float, float]:
    """The rule before: ratios of whole runs."""
    ours, theirs = run.repeats[:2], baseline.repeats[:2]
    logs = [math.log(rate(plain) / rate(own)) for own, plain in zip(ours, theirs, strict=True)]
    return float(np.mean(logs)), spent(ours), spent(theirs)


def rate(repeat: Repeat) -> float:
    """Seconds a token."""
    return repeat.decode_s / repeat.tokens


def spent(repeats: Sequence[Repeat]) -> float:
    """Seconds that repeats took."""
    return sum(repeat.prefill_s + repeat.decode_s for repeat in repeats)


def without_any(repeats: Sequence[Repeat], how: Timing, agree: float) -> bool:
    """A stricter rule than `settled`: leaving out any one repeat, not just the last, changes the time by less than `agree`.

    Where the second repeat is slower than the first in every round, the last one lowers nothing.
    """
    whole = decode_seconds(repeats, how)
    parts = [[*repeats[:place], *repeats[place + 1 :]] for place in range(len(repeats))]
    return all(decode_seconds(part, how) - whole < agree * whole for part in parts)


def least(count: int, stops: Callable[[Sequence[Repeat], Timing, float], bool] = settled) -> Rule:
    """The least time of each round, from at least `count` repeats until `stops`."""

    def rule(run: Run, baseline: Run) -> tuple[float, float, float]:
        per_token, used = [], []
        for side in (run, baseline):
            repeats = side.repeats[:count]
            while len(repeats) < min(MOST, len(side.repeats)) and not stops(repeats, side.timing, AGREE):
                repeats = side.repeats[: len(repeats) + 1]
            per_token.append(decode_seconds(repeats, side.timing) / repeats[0].tokens)
            used.append(spent(repeats))
        return math.log(per_token[1] / per_token[0]), used[0], used[1]

    return rule


RULES: dict[str, Rule] = {
    "mean of 2": mean_of_two,
    "least, from 2": least(2),
    "least, from 3": least(3),
    "least, without any": least(2, without_any),
}


def applied(records: Sequence[Record], rule: Rule) -> tuple[Logs, float]:
    """(log speedups by a rule, minutes of the repeats that it used)."""
    logs: Logs = {}
    seconds = 0.0
    baselines: dict[tuple[str, str], float] = {}
    for record in records:
        if record.run.repeats[0].tokens:
            cell = record.cell
            log, used, baselines[cell.task, record.prompt_id] = rule(record.run, record.baseline)
            logs.setdefault(method_of(record), {}).setdefault(cell.task, []).append(log)
            seconds += used
    return logs, (seconds + sum(baselines.values())) / 60  # the methods share the baseline's runs


def greedy(records: Sequence[Record]) -> list[Record]:
    """Those of batch size 1 at temperature 0, of methods that were measured on all tasks."""
    kept = [record for record in records if record.cell.temperature == 0 and record.cell.batch_size == 1]
    tasks: dict[str, set[str]] = {}
    for record in kept:
        tasks.setdefault(method_of(record), set()).add(record.cell.task)
    most = max(len(each) for each in tasks.values())
    return [record for record in kept if len(tasks[method_of(record)]) == most]


def method_of(record: Record) -> str:
    """A method with its k and options, e.g. `ngram-k6`."""
    cell = record.cell
    return f"{cell.method}-k{cell.k}{cell.variant and '-' + cell.variant}"


def show(records: dict[str, list[Record]]) -> None:
    """Print a row for each load and rule; the first is the reference."""
    quiet = next(iter(records))
    reference, _ = applied(records[quiet], least(MOST))
    ends = {
        (method, task): estimate.interval()
        for method, tasks in reference.items()
        for task, estimate in zip(tasks, moderated([mean(logs) for logs in tasks.values()]), strict=True)
    }
    usual = {
        method: float(average([mean(logs) for logs in tasks.values()]).value) for method, tasks in reference.items()
    }
    winner = max(usual, key=lambda method: usual[method])
    speedups = ", ".join(f"{method} {math.exp(log):.3f}" for method, log in usual.items())
    print(f"reference: {speedups}; not settled {unsettled(records[quiet])}\n")
    print("| machine | rule | a prompt, rms | cells within | a mean, rms | worst | fastest | in each task | minutes |")
    print("|---|---|--:|--:|--:|--:|---|--:|--:|")
    for load, found in records.items():
        for name, rule in RULES.items():
            logs, minutes = applied(found, rule)
            pairs = [(logs[method][task], own) for method, tasks in reference.items() for task, own in tasks.items()]
            prompts = np.concatenate([np.subtract(ours, theirs) for ours, theirs in pairs])
            means = {method: float(np.mean([np.mean(own) for own in tasks.values()])) for method, tasks in logs.items()}
            errors = np.array([means[method] - usual[method] for method in usual])
            inside = [low <= np.mean(logs[method][task]) <= high for (method, task), (low, high) in ends.items()]
            named = max(means, key=lambda method: means[method])
            tasks = [fastest(logs, task) == fastest(reference, task) for task in reference[winner]]
            verdict = "the same" if named == winner else f"{named} instead of {winner}"
            print(
                f"| {load} | {name} | {percent(rms(prompts))} | {sum(inside)} of {len(inside)} | {percent(rms(errors))} "
                f"| {percent(float(np.abs(errors).max()))} | {verdict} | {sum(tasks)} of {len(tasks)} | {minutes:.1f} |"
            )
        if load != quiet:
            print(f"\n{load}: not settled {unsettled(found)}\n")


def fastest(logs: Logs, task: str) -> str:
    """The method with the largest mean in a task."""
    return max(logs, key=lambda method: float(np.mean(logs[method][task])))


def unsettled(records: Sequence[Record]) -> str:
    """How many of all prompts never settled."""
    return f"{sum(not record.settled for record in records)} of {len(records)} prompts"


def rms(errors: np.ndarray) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean(errors**2)))


def percent(error: float) -> str:
    """An error of a logarithm, as percent."""
    return f"{100 * error:.1f} %"


if __name__ == "__main__":
    main()
