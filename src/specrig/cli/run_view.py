"""What a run shows on a terminal: one bar for the whole study with the time left, what runs now, and what jobs say.

It reads what Snakemake prints and drops its bookkeeping. Snakemake's own log holds everything.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from specrig.planning.estimate import arithmetic, hours, load_seconds, pair_sizes, time_text, training_cost
from specrig.study.study import Study

EXPECTED_S = {
    "corpus": 25.0,
    "convert": 50.0,
    "audit_exact": 15.0,
    "audit": 40.0,
    "quality": 10.0,
    "tables": 10.0,
    "figures": 30.0,
    "paper": 30.0,
    "report": 15.0,
    "track": 20.0,
    "all": 0.0,
}
"""Seconds of a job by its rule, as the default study took on two cores. They only weigh the bar's parts."""
OTHER_S = 30.0
"""Of rules that stand neither there nor in the study's own estimate."""
LEAST_S = 20.0
"""Of a job that loads models."""
TRUST_S = 60.0
"""After so much work the run's own speed counts as much as what was expected."""

BOOKKEEPING = re.compile(
    r"Using workflow specific profile |Assuming unrestricted |Building DAG of jobs|Using shell: |Provided cores: "
    r"|Rules claiming more threads|Provided resources: |Conda environments: |Select jobs to execute|Execute \d+ jobs"
    r"|\[\w{3} \w{3} +\d+ [\d:]+ \d{4}\]$|Touching output file |\d+ of \d+ steps |Complete log|Elapsed time: "
    r"|Loading weights: |$"
)
STARTED, FINISHED = re.compile(r"Job (\d+): (.*)"), re.compile(r"Finished jobid: (\d+) \(Rule: (\w+)\)")
COUNT = re.compile(r"(\w+) +(\d+)$")
SHARE = re.compile(r"(traffic )?([^/\s]+)/([^/\s]+)\S* ((\d+)/(\d+).*)")
"""A line of `measurement.progress`: whether under load, engine, pair, and what is done: units, units in all."""
LEARNING = re.compile(r"\S+: after \d+ steps")
MEASURING, UNDER_LOAD = "Measuring ", " under load on "


@dataclass(slots=True)
class Running:
    """A job that runs: its message, the rule if it measures, when it started, the share of it that is done, and its last
    line about that.
    """

    message: str
    rule: str
    since: float
    share: float = 0.0
    status: str = ""


@dataclass(slots=True)
class RunState:
    """How far a run is, from the lines that Snakemake and its jobs print.

    expected: rule -> seconds of one of its jobs; see `expected_seconds`.
    """

    expected: Mapping[str, float]
    clock: Callable[[], float] = time.monotonic
    started: float | None = None
    jobs: dict[str, int] = field(default_factory=dict)
    finished_s: float = 0.0
    running: dict[str, Running] = field(default_factory=dict)
    _counting: bool = False

    def read(self, line: str) -> str | None:
        """Take a line in; returns what is to be printed of it, if anything."""
        if line == "Job stats:":
            self._counting, self.jobs = True, {}
            self.started = self.clock() if self.started is None else self.started
        elif self._counting:
            if found := COUNT.match(line):
                self.jobs[found[1]] = int(found[2])
            self._counting = bool(line)
        elif found := STARTED.match(line):
            self.running[found[1]] = Running(found[2], _rule(found[2]), self.clock())
        elif found := FINISHED.match(line):
            return self._finish(found[1], found[2])
        elif found := SHARE.match(line):
            self._advance(found, line)
        elif LEARNING.match(line) and self.running:
            next(reversed(self.running.values())).status = line
        elif not BOOKKEEPING.match(line):
            return line
        return None

    @property
    def total_s(self) -> float:
        """Expected seconds of all jobs."""
        return sum(number * self._seconds(rule) for rule, number in self.jobs.items() if rule != "total")

    @property
    def done_s(self) -> float:
        """Of these, what is done."""
        shares = sum(job.share * self._seconds(job.rule) for job in self.running.values())
        return min(self.finished_s + shares, self.total_s)

    @property
    def left_s(self) -> float:
        """Seconds left: those expected, at the speed at which the run has been going."""
        spent = self.clock() - self.started if self.started is not None else 0.0
        return (self.total_s - self.done_s) * (spent + TRUST_S) / (self.done_s + TRUST_S)

    def _seconds(self, rule: str) -> float:
        return self.expected.get(rule, OTHER_S)

    def _finish(self, number: str, rule: str) -> str | None:
        job = self.running.pop(number, None)
        self.finished_s += self._seconds(rule)
        return None if job is None or rule == "all" else f"{clock_text(self.clock() - job.since):>6}  {job.message}"

    def _advance(self, found: re.Match[str], line: str) -> None:
        loads, engine, pair, status, done, units = found.groups()
        rule, where = "traffic" if loads else "measure", f" on {pair} with {engine},"
        for job in self.running.values():
            if job.rule == rule and where in f"{job.message},":
                job.share, job.status = int(done) / max(int(units), 1), status
                return
        for job in self.running.values():
            job.status = line


def _rule(message: str) -> str:
    if not message.startswith(MEASURING):
        return ""
    return "traffic" if UNDER_LOAD in message else "measure"


def expected_seconds(study: Study) -> dict[str, float]:
    """Rule -> seconds of one of its jobs: measuring, load and training as `specrig plan` estimates them."""
    sizes = pair_sizes(study)
    load = sum(load_seconds(study, sizes).values())
    whole = {
        "measure": (3600 * hours(study, sizes)[0] - load, len(study.grid.jobs) * study.replicates),
        "traffic": (load, len(study.grid.points)),
        "train": (training_cost(study).flop / arithmetic(study)[0], len(study.grid.trained)),
    }
    return EXPECTED_S | {rule: max(seconds / max(jobs, 1), LEAST_S) for rule, (seconds, jobs) in whole.items()}


def show_run(lines: Iterable[str], state: RunState, console: Console) -> None:
    """Show the lines of a run until they end. The bar appears with the first job and vanishes in the end."""
    with Live(get_renderable=lambda: _bar(state, console.width), console=console, refresh_per_second=2, transient=True):
        for line in lines:
            printed = state.read(line.rstrip())
            if printed is not None:
                console.print(printed, markup=False, soft_wrap=True)


def _bar(state: RunState, width: int) -> Group | Text:
    if not state.total_s:
        return Text("Planning the run …", style="dim")
    share = state.done_s / state.total_s
    left = f"about {time_text(state.left_s)} left" if state.left_s >= 60 else "less than a minute left"
    head = Text.assemble((f" {share:4.0%}  ", "bold"), left)  # in the bar's line, which it must not break
    now = []
    for job in state.running.values():
        lasts = clock_text(state.clock() - job.since)
        now.append(Text(f"{lasts:>6}  {job.message}", style="cyan", no_wrap=True, overflow="ellipsis"))
        if job.status:
            now.append(Text(f"        {job.status}", style="dim", no_wrap=True, overflow="ellipsis"))
    return Group(*now, ProgressBar(total=1.0, completed=share, width=max(10, min(width - len(head) - 1, 60))), head)


def clock_text(seconds: float) -> str:
    """Minutes and seconds, e.g. `1:05`."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
