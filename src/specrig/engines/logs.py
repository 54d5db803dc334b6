"""What an engine says: kept apart from what the job shows, quoted where the engine fails, and put into the job's log.
No engine by itself.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "SPECRIG_ENGINE_LOG"
"""Environment variable that names the file to which everything is added that engines said. Without it only a failure is
kept.
"""
TAIL = 15
"""Lines that an error quotes."""


class EngineLog:
    """A file of its own for one start of an engine."""

    def __init__(self) -> None:
        self.handle, name = tempfile.mkstemp(prefix="specrig-engine-", suffix=".log")
        self.path = Path(name)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While it lasts, what this process writes to stdout and stderr goes into the file; of children that it starts,
        also later.
        """
        kept = {descriptor: os.dup(descriptor) for descriptor in (1, 2)}
        try:
            _divert(dict.fromkeys(kept, self.handle))
            yield
        finally:
            _divert(kept)
            for copy in kept.values():
                os.close(copy)

    def quoted(self) -> str:
        """Its last lines and its path."""
        text = self.path.read_text(encoding="utf-8", errors="replace")
        lines = [line for line in text.splitlines() if line.strip()][-TAIL:]
        if not lines:
            return "its log is empty"
        # The last line names the exception: it belongs where only the first line of a message is kept.
        return "\n".join([f"its log ends with: {lines[-1].strip()}", *lines, f"(whole log: {self.path})"])

    def close(self, *, keep: bool = False) -> None:
        """Add its text to the job's log, where there is one, and remove it unless it is to be kept."""
        os.close(self.handle)
        if job := os.environ.get(VARIABLE):
            with Path(job).open("ab") as log:
                log.write(self.path.read_bytes())
        if not keep:
            self.path.unlink(missing_ok=True)


def _divert(targets: dict[int, int]) -> None:
    """Let each descriptor lead where the other one leads; what Python has not written yet goes where it would have
    gone.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    for descriptor, target in targets.items():
        os.dup2(target, descriptor)
