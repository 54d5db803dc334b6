"""The draft of `remote_draft`: a draft service as a child process, and the draft model behind it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from specrig.engines.base import EngineError
from specrig.engines.http.launch import ServerProcess, free_port
from specrig.models.pair import PairFiles
from specrig.runtime.types import Passes, add_passes
from specrig.services.client import RemoteSession, RowsClient
from specrig.services.protocol import RowOutput, distributions

CONTEXT_STEP = 512
"""The context is rounded up to a multiple of so many positions, so that a longer prompt rarely needs another service.
"""
BATCH = 32


class DraftProcess:
    """`specrig serve draft` on this machine, for a pair's draft. It ends with this process. Raises EngineError where it
    does not start.
    """

    def __init__(
        self,
        pair: PairFiles,
        rows: int,
        context: int,
        vocabulary: int | None,
        shared: bool,
        device: str,
        threads: int | None,
    ) -> None:
        """rows: texts side by side. context: most tokens of one. vocabulary: how many tokens the target has; None: the
        draft has a vocabulary of its own. shared: it drafts the tokens that both have, in the numbers of their map.
        """
        if pair.draft is None:
            raise EngineError(f"pair {pair.name}: it names no draft to serve; fill the column in pairs.tsv")
        self.rows, self.context = max(rows, BATCH), -(-context // CONTEXT_STEP) * CONTEXT_STEP
        self.vocabulary, self.shared = vocabulary, shared
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
            "common-with": pair.target if shared else None,
            "common-revision": pair.target_revision if shared else None,
        }
        flags = [f"--{name}={value}" for name, value in options.items() if value is not None]
        flags += ["--random-weights"] if pair.random_weights else []
        command = [sys.executable, "-m", "specrig", "serve", "draft", pair.draft, *flags]
        self.process = ServerProcess(command, self.url, health="/health")

    def holds(self, rows: int, context: int, vocabulary: int | None, shared: bool) -> bool:
        """Whether it runs, speaks so, and has room for so many texts of so many tokens."""
        speaks = (self.vocabulary, self.shared) == (vocabulary, shared)
        return self.process.alive and speaks and rows <= self.rows and context <= self.context


class RemoteDraft:
    """`decoding.types.RemoteModel` over HTTP. latency_s: seconds that are added to each round trip.

    A service that fails raises ServerError: without its draft the method would be another method.
    """

    def __init__(self, url: str, *, latency_s: float, half: bool) -> None:
        self.client, self.latency_s, self.half = RowsClient(url), latency_s, half
        self._sessions: list[RemoteSession] = []
        self._ended: list[int] = []
        self._passes: Passes = {}

    def begin(self, rows: Sequence[Sequence[int]]) -> None:
        """See `RemoteModel`."""
        self._ended, self._sessions = [session.id for session in self._sessions], [RemoteSession() for _ in rows]
        self._run(rows, {number: {} for number in range(len(rows))})
        self._passes = {}  # the prompts' passes are prefill

    def propose(
        self,
        rows: Sequence[Sequence[int]],
        depths: Sequence[int],
        temperature: float,
        uniforms: Sequence[Sequence[float]],
    ) -> tuple[list[list[int]], Any]:
        """See `RemoteModel`."""
        import numpy as np

        width = max(depths)
        fields = {
            number: {
                "depth": depth,
                "temperature": temperature,
                "uniforms": list(uniforms[number])[:width] if uniforms else [],
            }
            for number, depth in enumerate(depths)
            if depth
        }
        tokens: list[list[int]] = [[0] * width for _ in rows]
        q: Any = None
        for number, output in self._run(rows, fields).items():
            tokens[number][: len(output.tokens)] = output.tokens
            if output.q is not None:
                if q is None:  # where nothing was drafted it is one-hot on the padding
                    q = np.zeros((len(rows), width, output.q.shape[1]), dtype=np.float32)
                    q[:, :, 0] = 1.0
                q[number, : len(output.tokens)] = distributions(output.q)
        return tokens, q

    def passes(self) -> Passes:
        """See `RemoteModel`."""
        return dict(self._passes)

    def _run(self, rows: Sequence[Sequence[int]], fields: dict[int, dict[str, Any]]) -> dict[int, RowOutput]:
        """Row number -> output, for the rows in `fields`. Whole texts are sent once more where the service lacks them."""
        found: dict[int, RowOutput] = {}
        for _ in range(2):
            waiting = [number for number in fields if number not in found]
            if not waiting:
                return found
            if self.latency_s:
                time.sleep(self.latency_s)
            requests = [self._sessions[number].request(rows[number], **fields[number]) for number in waiting]
            outputs, passes = self.client.run(requests, half=self.half, ended=self._ended)
            self._ended = []
            add_passes(self._passes, passes)
            for number, output in zip(waiting, outputs, strict=True):
                if self._sessions[number].update(rows[number], output):
                    found[number] = output
        if len(found) < len(fields):
            raise EngineError(f"{self.client.url}: it forgets texts at once: start it with more --sessions")
        return found
