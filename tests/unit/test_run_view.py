"""A run on a terminal: one bar for the whole study with the time left, what runs now, and nothing of Snakemake's own."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from specrig import cli
from specrig.cli import run
from specrig.cli.run_view import RunState, expected_seconds, show_run
from specrig.planning.estimate import (
    arithmetic,
    hours,
    load_seconds,
    needs,
    pair_sizes,
    run_estimate,
    time_text,
    training_cost,
)
from specrig.study.load import load_study

HEAD = """\
Using workflow specific profile profiles/default for setting default command line arguments.
Building DAG of jobs...
Provided cores: 2
Job stats:
job            count
-----------  -------
audit_exact        1
measure            2
report             1
all                1
total              5

Select jobs to execute...
Execute 1 jobs...

[Tue Nov 24 21:35:33 2026]
Job 8: Testing the samples of ngram in native against an exact distribution
""".splitlines()
MEASURING = """\
[Tue Nov 24 21:36:40 2026]
Finished jobid: 8 (Rule: audit_exact)
1 of 5 steps (20%) done
Job 2: Measuring draft_model ngram on embedded with native, replicate 0
""".splitlines()
EXPECTED = {"audit_exact": 20.0, "measure": 100.0, "report": 10.0, "all": 0.0}


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def state(clock: Clock) -> RunState:
    return RunState(EXPECTED, clock=clock)


def printed(state: RunState, lines: list[str]) -> list[str]:
    return [text for line in lines if (text := state.read(line)) is not None]


def test_the_bar_is_of_the_whole_study(state: RunState, clock: Clock) -> None:
    assert printed(state, HEAD) == []
    assert (state.total_s, state.done_s) == (230.0, 0.0)
    assert state.left_s == 230
    clock.now = 40.0  # twice what was expected
    assert printed(state, MEASURING) == ["  0:40  Testing the samples of ngram in native against an exact distribution"]
    assert state.done_s == 20
    assert state.left_s == pytest.approx(210 * (40 + 60) / (20 + 60))
    assert printed(state, ["native/embedded 3/4 translation T=0 b=1"]) == []
    assert state.done_s == 95
    (job,) = state.running.values()
    assert (job.share, job.status) == (0.75, "3/4 translation T=0 b=1")
    printed(state, ["Finished jobid: 2 (Rule: measure)"])
    assert state.done_s == 120


def test_the_bar_moves_under_load(clock: Clock) -> None:
    state = RunState({"measure": 100.0, "traffic": 40.0}, clock=clock)
    jobs = ["Job stats:", "measure 1", "traffic 1", "total 2", "", *MEASURING[3:]]
    started = ["Job 3: Measuring ngram under load on embedded with native"]
    assert printed(state, [*jobs, *started, "traffic native/embedded/ngram 1/4 16"]) == []
    assert [(job.share, job.status) for job in state.running.values()] == [(0.0, ""), (0.25, "1/4 16")]
    assert state.done_s == 10
    printed(state, ["native/embedded 1/2 code T=0 b=1"])
    assert state.done_s == 60


def test_what_jobs_say_and_errors_are_kept(state: RunState) -> None:
    kept = [
        "warning: The machine was busy with other work throughout",
        "Error in rule measure:",
        "    jobid: 2",
        "At temperature 0 12 of 12 outputs (100 %) are plain decoding's token by token.",
    ]
    assert printed(state, [*HEAD, *MEASURING, *kept])[1:] == kept


def test_at_80_columns_no_line_is_broken(state: RunState) -> None:
    out, state.started = io.StringIO(), -95.0
    console = Console(file=out, force_terminal=True, width=80, color_system=None, emoji=False)
    show_run([f"{line}\n" for line in [*HEAD, *MEASURING, "native/embedded 3/4 translation T=0 b=1"]], state, console)
    shown = out.getvalue()
    assert "Measuring draft_model ngram on embedded with native, replicate 0" in shown
    assert "3/4 translation" in shown
    (bar,) = {line.rstrip() for line in re.split(r"[\r\n]|\x1b\[\d*[A-Za-z]", shown) if "41%" in line}
    assert bar.startswith("━") and bar.endswith(" 41%  about 2 minutes left") and len(bar) <= 80
    assert "Provided cores" not in shown


def test_measuring_and_training_weigh_as_planned(repository: Path) -> None:
    quick, embedded = (
        expected_seconds(load_study(repository / f"configs/{name}.yaml")) for name in ("quick", "embedded")
    )
    assert quick["measure"] > 5 * quick["audit_exact"]
    assert embedded["train"] > quick["train"]


def test_load_is_time_of_its_own_jobs(workplace: Path) -> None:
    config = yaml.safe_load(Path("configs/test.yaml").read_text())
    config |= {"engines": ["llamacpp"], "pairs": ["smollm2_135m_shipped"], "tasks": ["code_chat"], "methods": ["ngram"]}
    plain = load_study(config)
    loaded = load_study({**config, "traffic": {"concurrency": [1], "requests": 300, "prompts": 8}})
    [(job, seconds)] = load_seconds(loaded, pair_sizes(loaded)).items()
    found = expected_seconds(loaded)
    assert found["measure"] == pytest.approx(expected_seconds(plain)["measure"]) and found["traffic"] == seconds
    index = loaded.root.joinpath("traffic", *job, "index.json")
    cells = len(loaded.grid.cells)
    assert str(run_estimate(loaded, cells)).startswith(f"Study test: at most {time_text(seconds)} of measuring")
    index.parent.mkdir(parents=True)
    index.touch()
    assert run_estimate(loaded, cells) is None


def test_off_a_terminal_the_first_line_is_the_plans_estimate(
    monkeypatch: pytest.MonkeyPatch, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    def wait(command: list[str], show: object) -> tuple[bool, int]:
        assert show is None
        said.append(capsys.readouterr().err)  # what was printed before Snakemake starts
        return False, 0

    monkeypatch.setattr(run, "_wait", wait)
    Path("Snakefile").touch()
    assert cli.main(["run", "configs/test.yaml"]) == 0
    study = load_study(Path("configs/test.yaml"))
    spent = re.search(r"at most (.*) of measuring", needs(study))
    assert spent and said[0].startswith(f"Study test: at most {spent[1]} of measuring, after ")
    assert "count jobs, not time.\n" in said[0]
    assert cli.main(["run", "configs/test.yaml", "-n"]) == 0 and said[1] == "", "Snakemake is asked for its own output"
    assert run_estimate(study, len(study.grid.cells)) is None, "nothing is left to measure"
    for pair, model in study.grid.trained[1:]:
        made = study.root / "models" / pair / model
        made.mkdir(parents=True)
        (made / "config.json").touch()
    assert 0 < training_cost(study, missing=True).flop < training_cost(study).flop
    left = time_text(training_cost(study, missing=True).flop / arithmetic(study)[0])
    assert f"after {left} of training what is not trained yet" in str(run_estimate(study, 0))
    half = re.search(r"at most (\d+) seconds", str(run_estimate(study, len(study.grid.cells) // 2)))
    assert half and int(half[1]) == pytest.approx(1800 * hours(study, pair_sizes(study))[0], abs=1)


@pytest.mark.parametrize(
    ("terminal", "words", "shown"),
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
    monkeypatch: pytest.MonkeyPatch, repository: Path, *, terminal: bool, words: list[str], shown: bool
) -> None:
    monkeypatch.setattr(run.sys, "stderr", type("Stream", (), {"isatty": lambda self: terminal})())
    monkeypatch.chdir(repository)
    assert (run._view(repository / "configs/test.yaml", words) is not None) == shown
