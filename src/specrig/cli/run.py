"""The verb `specrig run`: Snakemake on a study, with a profile by name."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specrig.cli.arguments import DEFAULT, INTERRUPTED, load
from specrig.dag.ending import KEEP_FAILED

if TYPE_CHECKING:
    from specrig.study.study import Study

PROFILES = Path("profiles")
FILE_OF_PROFILE = "profile.yaml"
RUNNING_OPTION = re.compile(r"--(config|cores|jobs|forceall|forcerun)(=.*)?|-[cj]\d*|-[FR]")
"""Options of Snakemake that leave a run a run: beside others (`-n`, `--dag`) its own output is what is wanted."""
EXPECTED = "SPECRIG_EXPECTED_S"
"""The variable that the bar (`snakemake_logger_plugin_specrig`) reads."""
LEAST_S = 20.0
"""Seconds of a job that loads models."""


def run(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG] [SNAKEMAKE ARGUMENTS]...",
            help=f"A study's config (default: {DEFAULT}), then arguments of Snakemake, e.g. -n or --config prompts=4",
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            envvar="SPECRIG_PROFILE",
            help="A folder of profiles/, e.g. gpu or slurm, or a path; default: profiles/default",
        ),
    ] = None,
    keep_failed: Annotated[bool, typer.Option("--keep-failed", help="Exit code 0 although cells failed")] = False,
) -> None:
    """Run a study: only what is missing or stale. The same command continues after an interruption.

    On a terminal one bar shows the whole study. Elsewhere Snakemake's own lines follow the plan's estimate.
    """
    words = list(arguments or [])
    config = Path(words.pop(0)) if words and not words[0].startswith("-") else DEFAULT
    if not Path("Snakefile").is_file():
        raise typer.BadParameter("no Snakefile here: run it in the checkout of SpecRig")
    from specrig.study.problems import read_config

    read_config(config)  # names the line of a YAML error, which Snakemake would not
    chosen = [] if profile is None else ["--workflow-profile", str(_profile(profile))]
    # Many images set this variable. Every job would then compile all of torch and transformers again.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    if keep_failed:
        environment[KEEP_FAILED] = "1"
    if _shows_bar(words):
        chosen += ["--logger", "specrig"]
        environment |= _expected(config)
    elif not words and (sentence := _estimate(config)):
        typer.echo(sentence, err=True)
    began = time.time()
    # The config stands last: it takes every word behind it that is no option.
    command = [sys.executable, "-m", "snakemake", *chosen, *words, "--configfile", str(config)]
    interrupted, code = _wait(command, environment)
    if code:
        # After an interruption Snakemake's process has printed its line (`dag.interruption`).
        raise SystemExit(INTERRUPTED) if interrupted else typer.Exit(code)
    if not words:
        _end(load(config), began)


def _end(study: Study, began: float) -> None:
    """Say the answer where there was nothing to do: then Snakemake calls no hook that does."""
    from specrig.dag.ending import ending

    study_file = study.root / "study.json"  # written at the start of every run with jobs
    if not study_file.is_file() or study_file.stat().st_mtime < began:
        typer.echo(ending(study.root, study.report))


def _profile(name: str) -> Path:
    """The folder of a profile. Raises BadParameter for one that is not there."""
    for folder in (PROFILES / name, Path(name)):
        if (folder / FILE_OF_PROFILE).is_file() or (folder / "config.yaml").is_file():
            return folder
    known = ", ".join(sorted(path.parent.name for path in PROFILES.glob(f"*/{FILE_OF_PROFILE}"))) or "none"
    raise typer.BadParameter(f"no profile {name!r}; known profiles: {known}; or give a folder with a {FILE_OF_PROFILE}")


def _shows_bar(words: Sequence[str]) -> bool:
    """Whether a run with these arguments of Snakemake shows the bar instead of Snakemake's own output."""
    return sys.stderr.isatty() and all(RUNNING_OPTION.fullmatch(word) for word in words if word.startswith("-"))


def _expected(config: Path) -> dict[str, str]:
    """The variable with the seconds of a job by its rule; none for a study that Snakemake is going to refuse."""
    from specrig.study.problems import StudyError

    try:
        return {EXPECTED: json.dumps(expected_seconds(load(config)))}
    except StudyError:  # Snakemake says it, and knows what --config changes
        return {}


def expected_seconds(study: Study) -> dict[str, float]:
    """Rule -> seconds of one of its jobs: measuring, load and training as `specrig plan` estimates them."""
    from specrig.planning.estimate import arithmetic, hours, load_seconds, pair_sizes, training_cost

    sizes = pair_sizes(study)
    load_s = sum(load_seconds(study, sizes).values())
    whole = {
        "measure": (3600 * hours(study, sizes)[0] - load_s, len(study.grid.jobs)),
        "traffic": (load_s, len(study.grid.points)),
        "train": (training_cost(study).flop / arithmetic(study)[0], len(study.grid.trained)),
    }
    return {rule: max(seconds / max(jobs, 1), LEAST_S) for rule, (seconds, jobs) in whole.items()}


def _estimate(config: Path) -> str | None:
    """What the plan says of a run's time; None where it says nothing, or nothing is left to measure.

    Snakemake's own lines count jobs, of which the few that measure take nearly all the time.
    """
    from specrig.planning.estimate import run_estimate
    from specrig.planning.measured import cells_measured
    from specrig.study.problems import StudyError

    try:
        study = load(config)
    except StudyError:  # Snakemake says it
        return None
    return run_estimate(study, cells_measured(study))


def _wait(command: Sequence[str], environment: Mapping[str, str]) -> tuple[bool, int]:
    """Run a command; returns whether Ctrl-C came meanwhile, and its exit code. The command stops its jobs itself."""
    process = subprocess.Popen(command, env=environment)
    interruptions: list[int] = []
    before = (
        signal.signal(signal.SIGINT, lambda number, _: interruptions.append(number)),
        signal.signal(signal.SIGTERM, lambda *_: process.terminate()),
    )
    try:
        code = process.wait()
        return bool(interruptions), code
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])
