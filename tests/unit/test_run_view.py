"""What a run shows on a terminal: Snakemake itself runs a small workflow with the logger plugin `specrig`."""

from __future__ import annotations

import os
import pty
import re
import sys
from pathlib import Path

import pytest

from runs import imported
from snakemake_logger_plugin_specrig import EXPECTED, clock
from specrig.cli import run
from specrig.planning.estimate import expected_seconds
from specrig.study.load import load_study

SNAKEFILE = """
rule all:
    input: "made.txt"
rule measure:
    output: "made.txt"
    log: "measure.log"
    message: "Measuring it"
    params: config.get("settings", "settings 1")
    shell: "echo native/p 3/4 code >&2; sleep 1; echo a warning >&2; {config[command]}; touch {output}"
"""


def shown(*words: str) -> str:
    """What Snakemake prints on a terminal of 80 columns, without control sequences."""
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--logger", "specrig", "--config", *words]
    environment = imported() | {"COLUMNS": "80", "TERM": "xterm", EXPECTED: '{"measure": 100.0}'}
    child, terminal = pty.fork()
    if not child:
        os.execvpe(command[0], command, environment)
    found = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # how Linux says that the other end is closed
            break
        found += part
    os.waitpid(child, 0)
    os.close(terminal)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", found.decode()).replace("\r", "\n")


def test_a_run_shows_a_line_a_job_the_bar_and_why_a_job_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("Snakefile").write_text(SNAKEFILE)
    output = shown("command=true")
    assert re.search(r"^  0:0\d  Measuring it$", output, flags=re.M) and "\na warning\n" in output
    assert re.search(r"^━+\S* +75%  about 0:1\d left$", output, flags=re.M) and "Reason" not in output
    again = shown("command=true", "settings=settings 2")
    reason = re.search(r"Measuring it\. Reason: Params have changed since last execution.*", again, flags=re.S)
    assert reason and "settings 1" in reason[0] and "settings 2" in reason[0]
    failed = shown("command=false", "settings=settings 3")
    assert "✗ Measuring it; log: measure.log" in failed


def test_measuring_and_training_weigh_as_planned(repository: Path) -> None:
    quick, long = (
        expected_seconds(load_study(repository / f"configs/{name}.yaml")) for name in ("quick", "smollm2_train")
    )
    assert quick["measure"] > 100 and long["train"] > quick["train"]
    assert [clock(seconds) for seconds in (5, 65.9, 3600)] == ["0:05", "1:05", "60:00"]


@pytest.mark.parametrize(
    ("terminal", "words", "bar"),
    [
        (True, [], True),
        (True, ["--config", "prompts=4"], True),
        (True, ["--cores=4"], True),
        (True, ["-j4"], True),
        (True, ["-Fn"], False),
        (True, ["-n"], False),
        (False, [], False),
    ],
)
def test_the_bar_is_for_runs_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, *, terminal: bool, words: list[str], bar: bool
) -> None:
    monkeypatch.setattr(run.sys, "stderr", type("Stream", (), {"isatty": lambda self: terminal})())
    assert run._shows_bar(words) == bar
