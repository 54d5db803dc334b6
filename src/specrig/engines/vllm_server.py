"""vLLM as it is served: its OpenAI server in a child process, one for each (method, k, options).

The flags are those of `vllm serve` 0.32 (docs.vllm.ai), made of the same arguments as the engine `vllm`. Requests carry
token ids and get them back.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from specrig.cell import Cell, digest
from specrig.engines.http.client import Completion
from specrig.engines.http.launch import LaunchingEngine, ServerProcess, free_port
from specrig.engines.server import completion
from specrig.engines.vllm import Vllm, cpu_sampling
from specrig.engines.vllm.arguments import arguments, flags
from specrig.engines.vllm.processes import intel_openmp, placing
from specrig.engines.vllm.speculation import speculation_of
from specrig.http_client import Client
from specrig.models.pair import PairFiles
from specrig.models.weights import weights_of


class VllmServer(LaunchingEngine):
    """Starts the server of a cell where it does not run. On a CPU the baseline's stays beside it."""

    name = "vllm_server"
    paired = False
    splits = True
    untested = "it ran with vLLM's CPU build alone, never yet on a GPU"
    differences = Vllm.differences
    audit_options = {"eager": True}  # noqa: RUF012
    one_by_one_samples = 512

    class Options(Vllm.Options):
        """Those of the engine `vllm`."""

    def __init__(self, pair: PairFiles, *, device: str = "cpu", threads: int | None = None) -> None:
        # On a CPU a pair is not split.
        super().__init__(replace(pair, tensor_parallel=1) if device == "cpu" else pair, device=device, threads=threads)
        self.eos = weights_of(self.pair).eos
        self._plain = digest({})

    @classmethod
    def missing(cls) -> str | None:
        """See `Engine`."""
        return Vllm.missing()

    @classmethod
    def refuses(cls, cell: Cell) -> str | None:
        """See `Vllm.refuses`."""
        return Vllm.refuses(cell)

    @classmethod
    def refuses_model(cls, method: str, config: dict[str, Any]) -> str | None:
        """See `Vllm.refuses_model`."""
        return Vllm.refuses_model(method, config)

    @classmethod
    def build(cls, options: Mapping[str, Any]) -> str:
        """See `Vllm.build`."""
        return Vllm.build(options)

    @property
    def beside(self) -> bool:
        """On a GPU each server takes most of the memory."""
        return self.device == "cpu"

    def ready(self, cell: Cell) -> None:
        """See `HttpEngine`. One that speculates replaces the last one."""
        key, speculation = self._key(cell)
        if key in self._servers and self._servers[key][0].alive:
            return
        kept = {self._plain} - {key} if self.beside else set()
        for other in self._servers.keys() - kept:
            self._servers.pop(other)[0].close()
        self._set_environment()
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        # Not vllm's own command: it asks for a package of that name, which the CPU build is not.
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host=127.0.0.1", f"--port={port}"]
        # Else the server fills in what the model's generation_config.json says: penalties and filters that no other
        # engine here applies.
        own = arguments(self.pair, self.options, self.device) | {"generation_config": "vllm"}
        command += flags({**own, **speculation})
        with intel_openmp() if self.device == "cpu" else contextlib.nullcontext():
            self._servers[key] = ServerProcess(command, url, health="/health"), self.client(url)

    def _key(self, cell: Cell) -> tuple[str, dict[str, Any]]:
        """(digest, argument) of the cell's speculation. A server reports no request's steps."""
        found = speculation_of(cell, self.pair, **self.options.of_speculation())
        speculation = {name: value for name, value in found.items() if name == "speculative_config"}
        return digest(speculation), speculation

    def _set_environment(self) -> None:
        """Set what the server's processes read from their environment."""
        os.environ[cpu_sampling.VARIABLE] = self.options.cpu_sampling
        defaults = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
        for name, value in (defaults | (placing(self.thread_count()) if self.device == "cpu" else {})).items():
            os.environ.setdefault(name, value)

    def request_completion(
        self, cell: Cell, prompt: Sequence[int], *, max_new_tokens: int, seed: int, alone: bool
    ) -> Completion:
        """See `HttpEngine`."""
        _, client = self._server(cell)
        body = {
            "model": self.pair.target,
            "prompt": list(prompt),
            "max_tokens": max_new_tokens,
            "temperature": cell.temperature,
            "ignore_eos": True,  # the same end-of-sequence ids in every engine: ours
            "stop_token_ids": sorted(self.eos),
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            **({"seed": seed} if cell.temperature > 0 else {}),
        }
        return completion(self, cell, client, body, prompt_tokens=len(prompt), alone=alone)

    def _server(self, cell: Cell) -> tuple[ServerProcess, Client]:
        """See `LaunchingEngine`."""
        return self._servers[self._key(cell)[0]]
