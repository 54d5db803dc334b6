"""SpecRig's own engine: the one loop over any decoder-only transformers model, every method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from specrig.cell import Cell, digest
from specrig.decoding.drafters import registry
from specrig.decoding.types import Drafter, Generation
from specrig.engines.base import EngineError, EngineOptions
from specrig.engines.tokenized import TokenizedEngine
from specrig.models import needs
from specrig.models.hub import fetch_folder
from specrig.models.pair import PairFiles

if TYPE_CHECKING:
    from specrig.decoding.model import CachedModel


class Native(TokenizedEngine):
    """Runs every method in the one loop. It is also the drafters' `Resources`: draft and trained heads are loaded once, on first use."""

    name = "native"
    simulates = True

    class Options(EngineOptions):
        """Options of the native engine."""

        even_passes: bool = False
        """Pad every pass of the target, plain or verifying, to the same few shapes, so that a method's greedy output equals plain
        decoding bit by bit where the processor's kernels allow it; costs the padding."""
        linear: Literal["auto", "plain", "reordered"] = "auto"
        """Kernel of the matrix products on a processor: torch's own, oneDNN's over reordered weights, or for each shape of weight the one
        that is faster when the pair is loaded."""
        compiled: Literal["auto", "always", "never"] = "auto"
        """Whether passes of a few tokens of a small Llama-shaped model run in code that is compiled for this processor, which needs gcc or
        cc; auto: where that is faster when the pair is loaded."""

    def __init__(self, pair: PairFiles, *, device: str = "cpu", threads: int | None = None) -> None:
        super().__init__(pair, device=device, threads=threads)
        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        from specrig.decoding.linear import choice

        choice.pin(None if self.options.linear == "auto" else self.options.linear, compiled=self.options.compiled)
        self.target = self.weights.cached("target", self.device)
        if self.options.even_passes:
            self.target.even_passes()
        self._models: dict[str, CachedModel] = {}
        self._drafters: dict[str, Drafter] = {}
        if pair.draft is not None:
            self.model("draft")  # a draft that cannot be used fails the job, not each of its cells

    @classmethod
    def refuses(cls, cell: Cell) -> str | None:
        """The native engine runs every method."""
        return None if cell.method in registry() else f"there is no method {cell.method!r}"

    @classmethod
    def refuses_model(cls, method: str, config: dict[str, Any]) -> str | None:
        """What every layer must keep, and where positions must come from, for its cache to be right."""
        return needs.unmet(config)

    def generate(
        self, cell: Cell, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, seeds: Sequence[int]
    ) -> list[Generation]:
        """See `Engine`."""
        from specrig.decoding.loop import generate

        return generate(
            self.target,
            self._drafter(cell),
            prompts,
            k=cell.k,
            max_new_tokens=max_new_tokens,
            temperature=cell.temperature,
            eos=self.eos,
            seeds=seeds,
            simulated_acceptance=self.pair.simulated_acceptance,
        )

    def environment(self) -> dict[str, Any]:
        """Which kernels compute, too."""
        from specrig.decoding.linear import choice

        known = super().environment()
        models = {"target": self.target, **self._models}
        compiled = {name: getattr(model, "compiled", None) is not None for name, model in models.items()}
        return known | {"engine": known["engine"] | {"kernels": {"linear": choice.record(), "compiled": compiled}}}

    def reset_peak_memory(self) -> None:
        """Of the GPU's allocator where there is one, else of this process."""
        if self.target.device.type == "cuda":
            import torch

            torch.cuda.reset_peak_memory_stats(self.target.device)
        else:
            super().reset_peak_memory()

    def peak_memory_mb(self) -> float:
        """Of the GPU's allocator where there is one, else of this process."""
        if self.target.device.type == "cuda":
            import torch

            return torch.cuda.max_memory_allocated(self.target.device) / 2**20
        return super().peak_memory_mb()

    def model(self, name: str) -> CachedModel:
        """A model of the pair besides the target (`Resources`)."""
        if name not in self._models:
            if name != "draft":
                raise EngineError(f"pair {self.pair.name}: a pair has no {name} model")
            self._models[name] = self.weights.cached(name, self.device)
            # The gate has made sure that the tokenizers agree, but one embedding may have more padding. Padding is never drawn.
            shared = min(self._models[name].vocab_size, self.target.vocab_size)
            self._models[name].vocab_size = self.target.vocab_size = shared
        return self._models[name]

    def head(self, name: str) -> Path:
        """Folder of a trained head (`Resources`)."""
        if name not in self.pair.heads:
            raise EngineError(f"pair {self.pair.name}: no trained {name} head")
        return fetch_folder(str(self.pair.heads[name]), self.pair.revisions.get(name))

    def _drafter(self, cell: Cell) -> Drafter:
        key = digest([cell.method, cell.options])
        if key not in self._drafters:
            method = registry()[cell.method]
            self._drafters[key] = method(method.Options.model_validate(cell.options), self)
        return self._drafters[key]
