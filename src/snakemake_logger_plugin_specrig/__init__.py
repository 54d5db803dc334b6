"""Snakemake's logger plugin `specrig` (`snakemake --logger specrig`): a line for each finished job, and below them what
runs now and one bar for the whole run with the time left.

It reads Snakemake's events, not its text. What jobs print stands above the bar: file descriptor 2, which they inherit,
becomes a pipe that a thread reads.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from logging import WARNING, LogRecord

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

EXPECTED = "SPECRIG_EXPECTED_S"
"""Variable with the expected seconds of a job by its rule, as JSON; the workflow sets it before the first job."""
OTHER_S = 20.0
"""Seconds expected of a job whose rule has no entry there."""
TRUST_S = 60.0
"""After so many seconds of work the run's speed so far counts as much as what was expected."""
ADVANCE = re.compile(r" (\d+)/(\d+)( |$)|: after \d+ steps")
"""In a line of a job about its progress (`specrig.measurement.progress`, trainings): units done, units in all."""
ORDINARY = re.compile(r"Missing output files|Input files updated by another job|Updated input files|Rules with neither")
"""Beginnings of reasons to run a job that need no mention, since they name nothing that the user changed."""


@dataclass(slots=True)
class Job:
    """A running job. share: how much of it is done."""

    rule: str
    message: str
    logs: str
    since: float
    share: float = 0.0


class LogHandler(LogHandlerBase):
    """Snakemake calls `emit` with each event, and `close` in the end."""

    writes_to_stream, writes_to_file = True, False
    has_filter, has_formatter, needs_rulegraph = True, True, False

    def __post_init__(self) -> None:
        self.expected: Mapping[str, float] = {}
        self.jobs: Mapping[str, int] = {}
        self.running: dict[int, Job] = {}
        self.finished_s, self.started, self.status = 0.0, time.monotonic(), ""
        self.terminal = os.dup(2)
        read, write = os.pipe()
        os.dup2(write, 2)
        os.close(write)
        self.console = Console(file=os.fdopen(self.terminal, "w"), emoji=False, highlight=False)
        self.live = Live(get_renderable=self.render, console=self.console, refresh_per_second=2, transient=True)
        self.live.start()
        self.reader = threading.Thread(target=self._forward, args=(read,), daemon=True)
        self.reader.start()

    def emit(self, record: LogRecord) -> None:
        """Take an event in, and print what of it is for the user."""
        event = getattr(record, "event", None)
        if event == LogEvent.RUN_INFO:
            self.jobs = {rule: count for rule, count in record.stats.items() if rule not in ("total", "all")}  # type: ignore[attr-defined]
        elif event == LogEvent.JOB_INFO:
            self._start(record)
        elif event == LogEvent.JOB_FINISHED:
            self._finish(record.job_id)  # type: ignore[attr-defined]
        elif event == LogEvent.JOB_ERROR:
            job = self.running.pop(record.jobid, None)  # type: ignore[attr-defined]
            self._print(f"✗ {job.message}; log: {job.logs}" if job else record.getMessage(), "bold red")
        elif record.levelno >= WARNING:
            self._print(record.getMessage(), "red" if record.levelno > WARNING else "yellow")

    def close(self) -> None:
        """Give standard error back. Snakemake calls it more than once."""
        if self.live.is_started:
            os.dup2(self.terminal, 2)  # the pipe ends with the last process that writes into it
            self.reader.join(timeout=2.0)
            self.live.stop()
        super().close()

    def render(self) -> Group | Text:
        """What runs now, and the bar."""
        total = sum(count * self._seconds(rule) for rule, count in self.jobs.items())
        if not total:
            return Text("Planning the run …", style="dim")
        now = time.monotonic()
        done = self.finished_s + sum(job.share * self._seconds(job.rule) for job in self.running.values())
        left = max(0.0, total - done) * (now - self.started + TRUST_S) / (done + TRUST_S)
        text = Text.assemble((f" {min(1.0, done / total):4.0%}  ", "bold"), f"about {clock(left)} left")
        lines = [f"{clock(now - job.since):>6}  {job.message}" for job in self.running.values()]
        shown = [Text(line, style="cyan", no_wrap=True, overflow="ellipsis") for line in lines]
        if self.status:
            shown.append(Text(f"        {self.status}", style="dim", no_wrap=True, overflow="ellipsis"))
        width = max(10, min(self.console.width - len(text) - 1, 60))
        return Group(*shown, ProgressBar(total=total, completed=done, width=width), text)

    def _start(self, record: LogRecord) -> None:
        event = record.__dict__
        rule, reason = event["rule_name"], event.get("reason") or ""
        message = event.get("rule_msg") or rule
        if rule == "all":
            return
        self.running[event["jobid"]] = Job(rule, message, ", ".join(map(str, event.get("log") or [])), time.monotonic())
        if reason and not ORDINARY.match(reason):
            self._print(f"{message}. Reason: {reason}", "dim")

    def _finish(self, number: int) -> None:
        if job := self.running.pop(number, None):
            self.finished_s += self._seconds(job.rule)
            self.status = ""
            self._print(f"{clock(time.monotonic() - job.since):>6}  {job.message}")

    def _seconds(self, rule: str) -> float:
        self.expected = self.expected or json.loads(os.environ.get(EXPECTED, "{}"))
        return self.expected.get(rule, OTHER_S)

    def _forward(self, read: int) -> None:
        """Print the lines that jobs write. Those about progress only become the line above the bar."""
        with os.fdopen(read, errors="replace") as lines:
            for line in lines:
                if advance := ADVANCE.search(line):
                    self.status = line.strip()
                    if advance[1] and self.running:
                        job = max(self.running.values(), key=lambda job: self._seconds(job.rule))
                        job.share = int(advance[1]) / max(int(advance[2]), 1)
                else:
                    self._print(line.rstrip("\n"))

    def _print(self, text: str, style: str = "") -> None:
        with suppress(BrokenPipeError):
            self.console.print(text, style=style, markup=False, soft_wrap=True)


def clock(seconds: float) -> str:
    """Minutes and seconds, e.g. `1:05`."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
