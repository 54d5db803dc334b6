"""Shows the progress of long work, as a bar on a terminal and as a line every ten seconds in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

LOG_EVERY_S = 10.0


class Advance(Protocol):
    """A function to call after each unit of work, with a text about it."""

    def __call__(self, description: str = "") -> None: ...


@contextmanager
def progress(title: str, total: int) -> Iterator[Advance]:
    """Show the progress of about `total` units of work on standard error; yields the function to call after each."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        text = TextColumn("{task.description}", markup=False)
        columns = (text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True, emoji=False), transient=True) as bar:
            task = bar.add_task(title, total=total)
            yield lambda description="": bar.update(task, advance=1, description=f"{title} {description}")
        return

    done, last = 0, time.monotonic()

    def log(description: str = "") -> None:
        nonlocal done, last
        done += 1
        if time.monotonic() - last >= LOG_EVERY_S or done == total:
            last = time.monotonic()
            print(f"{title} {done}/{max(done, total)} {description}".rstrip(), file=sys.stderr, flush=True)

    yield log
