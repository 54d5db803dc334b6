"""A draft service as a child process of a measuring job."""

from __future__ import annotations

import sys

from specrig.engines.base import EngineError
from specrig.engines.http.launch import ServerProcess, free_port
from specrig.models.pair import PairFiles

ROOM = 512
"""Positions by which a text's room is rounded up, so that a longer prompt rarely needs another service."""
BATCH = 32


class DraftProcess:
    """`specrig serve draft` on this machine, for a pair's draft. It ends with this process. Raises EngineError where it
    does not start.
    """

    def __init__(
        self, pair: PairFiles, rows: int, context: int, vocabulary: int, device: str, threads: int | None
    ) -> None:
        """rows: texts side by side. context: most tokens of one. vocabulary: how many tokens target and draft share."""
        if pair.draft is None:
            raise EngineError(f"pair {pair.name}: it names no draft to serve; fill the column in pairs.tsv")
        self.rows, self.context = max(rows, BATCH), -(-context // ROOM) * ROOM
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        options = {
            "port": port,
            "revision": pair.draft_revision,
            "dtype": pair.dtype,
            "device": device,
            "batch": BATCH,
            "sessions": self.rows,
            "context": self.context,
            "queue": max(1024, self.rows),
            "threads": threads,
            "vocabulary": vocabulary,
        }
        given = [f"--{name}={value}" for name, value in options.items() if value is not None]
        random = ["--random-weights"] if pair.simulated_acceptance is not None else []
        command = [sys.executable, "-m", "specrig", "serve", "draft", pair.draft, *given, *random]
        self._process = ServerProcess(command, self.url, health="/health")

    def holds(self, rows: int, context: int) -> bool:
        """Whether it runs and has room for so many texts of so many tokens."""
        return self._process.alive and rows <= self.rows and context <= self.context

    def close(self) -> None:
        """End the process."""
        self._process.close()
