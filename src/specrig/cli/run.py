"""The verb `specrig run`: Snakemake on a study, with a profile by name."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from specrig.checkout import here_or_shipped
from specrig.cli.arguments import DEFAULT, INTERRUPTED
from specrig.dag.command_line import by_option
from specrig.dag.ending import ENDING, KEEP_FAILED

PROFILES = here_or_shipped(Path("profiles"))
NOTES = Path(".snakemake")
"""Where Snakemake keeps what it knows of finished jobs."""
FILE_OF_PROFILE = "profile.yaml"
RUNNING_OPTION = re.compile(r"--(config|cores|jobs|forceall|forcerun)(=.*)?|-[cj]\d*|-[FR]")
"""Options of Snakemake that leave a run a run: beside others (`-n`, `--dag`) its own output is what is wanted."""


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
    snakefile = here_or_shipped(Path("Snakefile"))
    if not snakefile.is_file():
        raise typer.BadParameter("no Snakefile here: run it in the checkout of SpecRig")
    config = here_or_shipped(config)
    from specrig.study.problems import read_config

    read_config(config)  # names the line of a YAML error, which Snakemake would not
    chosen = [] if profile is None else ["--workflow-profile", str(_profile(profile))]
    chosen += _notes_elsewhere(words)
    # Many images set this variable. Every job would then compile all of torch and transformers again.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    if keep_failed:
        environment[KEEP_FAILED] = "1"
    if _shows_bar(words):
        chosen += ["--logger", "specrig"]
    began = time.time()
    # The config stands last: it takes every word behind it that is no option.
    snakemake = [sys.executable, "-m", "snakemake", "--snakefile", str(snakefile)]
    command = [*snakemake, *chosen, *words, "--configfile", str(config.absolute())]
    interrupted, code = _wait(command, environment)
    if code:
        # After an interruption Snakemake's process has printed its line (`dag.interruption`).
        raise SystemExit(INTERRUPTED) if interrupted else typer.Exit(code)
    if _runs(words):
        _end({**read_config(config), **_given(words)}, began)


def _end(keys: Mapping[str, Any], began: float) -> None:
    """Say the answer again where there was nothing to do: then Snakemake calls no hook that does."""
    file = Path(keys.get("results", "results")).expanduser() / str(keys.get("study")) / ENDING
    if file.is_file() and file.stat().st_mtime < began:
        typer.echo(file.read_text(encoding="utf-8"), nl=False)


def _notes_elsewhere(words: Sequence[str]) -> list[str]:
    """Snakemake's `--directory` where it cannot keep its notes here, as in a checkout that cannot be written: the folder
    after `--config results=`. Raises BadParameter where that is none.
    """
    try:
        NOTES.mkdir(exist_ok=True)
        tempfile.TemporaryFile(dir=NOTES).close()
        return []
    except OSError:
        given = _given(words)
        if not Path(given.get("results", "")).is_absolute():
            fix = "add --config results=/a/folder, or run it in another folder"
            raise typer.BadParameter(f"{Path.cwd()} cannot be written: {fix}") from None
        return ["--directory", given["results"]]


def _given(words: Sequence[str]) -> dict[str, str]:
    """The keys of the config that follow `--config`."""
    return dict(word.split("=", 1) for option, word in by_option(words) if option in ("--config", "-C") and "=" in word)


def _profile(name: str) -> Path:
    """The folder of a profile. Raises BadParameter for one that is not there."""
    for folder in (PROFILES / name, Path(name)):
        if (folder / FILE_OF_PROFILE).is_file() or (folder / "config.yaml").is_file():
            return folder
    known = ", ".join(sorted(path.parent.name for path in PROFILES.glob(f"*/{FILE_OF_PROFILE}"))) or "none"
    raise typer.BadParameter(f"no profile {name!r}; known profiles: {known}; or give a folder with a {FILE_OF_PROFILE}")


def _runs(words: Sequence[str]) -> bool:
    """Whether Snakemake runs the study with these arguments, and only that."""
    return all(RUNNING_OPTION.fullmatch(word) for word in words if word.startswith("-"))


def _shows_bar(words: Sequence[str]) -> bool:
    """Whether a run with these arguments of Snakemake shows the bar instead of Snakemake's own output."""
    return sys.stderr.isatty() and _runs(words)


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
