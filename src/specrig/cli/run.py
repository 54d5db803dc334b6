"""The verb `specrig run`: Snakemake on a study, with a profile by name."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from specrig.cli.arguments import DEFAULT, INTERRUPTED, load

PROFILES = Path("profiles")
FILE_OF_PROFILE = "profile.yaml"


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
) -> None:
    """Run a study: only what is missing or stale. The same command continues after an interruption."""
    words = list(arguments or [])
    config = Path(words.pop(0)) if words and not words[0].startswith("-") else DEFAULT
    if not Path("Snakefile").is_file():
        raise typer.BadParameter("no Snakefile here: run it in the checkout of SpecRig")
    from specrig.study.load import read_config

    read_config(config)  # names the line of a YAML error, which Snakemake would not
    chosen = [] if profile is None else ["--workflow-profile", str(_profile(profile))]
    # The config stands last: it takes every word behind it that is no option.
    interrupted, code = _wait([sys.executable, "-m", "snakemake", *chosen, *words, "--configfile", str(config)])
    if code:
        # After an interruption Snakemake's process has printed its line (`dag.interruption`).
        raise SystemExit(INTERRUPTED) if interrupted else typer.Exit(code)
    if not words:
        study = load(config)
        typer.echo(f"Report: {study.report}\nResults: {study.root}")


def _profile(name: str) -> Path:
    """The folder of a profile. Raises BadParameter for one that is not there."""
    for folder in (PROFILES / name, Path(name)):
        if (folder / FILE_OF_PROFILE).is_file() or (folder / "config.yaml").is_file():
            return folder
    known = ", ".join(sorted(path.parent.name for path in PROFILES.glob(f"*/{FILE_OF_PROFILE}"))) or "none"
    raise typer.BadParameter(f"no profile {name!r}; known profiles: {known}; or give a folder with a {FILE_OF_PROFILE}")


def _wait(command: Sequence[str]) -> tuple[bool, int]:
    """Run a command; returns whether Ctrl-C came meanwhile, and its exit code. The command stops its jobs itself."""
    process, interruptions = subprocess.Popen(command), list[int]()
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
