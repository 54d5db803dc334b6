"""What an engine writes to stdout and stderr: a file of its own, quoted where the engine fails, copied to the job's
log.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOG_ENV = "SPECRIG_ENGINE_LOG"
"""Environment variable with the file that collects all output of engines. Without it only a failure's is kept."""
TAIL = 15
"""Lines that an error quotes."""


class EngineLog:
    """The log of one start of an engine."""

    def __init__(self) -> None:
        self.handle, name = tempfile.mkstemp(prefix="specrig-engine-", suffix=".log")
        self.path = Path(name)

    @contextmanager
    def captured(self) -> Iterator[None]:
        """Meanwhile this process's stdout and stderr go into the file; those of children that it starts, also later."""
        kept = {descriptor: os.dup(descriptor) for descriptor in (1, 2)}
        try:
            _redirect(dict.fromkeys(kept, self.handle))
            yield
        finally:
            _redirect(kept)
            for copy in kept.values():
                os.close(copy)

    def tail(self) -> str:
        """Its last lines and its path."""
        text = self.path.read_text(encoding="utf-8", errors="replace")
        lines = [line for line in text.splitlines() if line.strip()][-TAIL:]
        if not lines:
            return "its log is empty"
        # The last line names the exception: it comes first, since some messages keep only their first line.
        return "\n".join([f"its log ends with: {lines[-1].strip()}", *lines, f"(whole log: {self.path})"])

    def close(self, *, keep: bool = False) -> None:
        """Add its text to the job's log, where there is one. Remove it, unless `keep`."""
        os.close(self.handle)
        if job := os.environ.get(LOG_ENV):
            with Path(job).open("ab") as log:
                log.write(self.path.read_bytes())
        if not keep:
            self.path.unlink(missing_ok=True)


def _redirect(targets: dict[int, int]) -> None:
    """Point each descriptor to where the other one points, after flushing."""
    sys.stdout.flush()
    sys.stderr.flush()
    for descriptor, target in targets.items():
        os.dup2(target, descriptor)
