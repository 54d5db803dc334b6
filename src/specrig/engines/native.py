"""SpecRig's own engine: the one loop over any decoder-only transformers model, every method."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import psutil

from specrig.cell import Cell, digest
from specrig.decoding.drafters import registry
from specrig.decoding.types import Drafter, Generation, TokenCallback, Tokens
from specrig.decoding.vocabularies import drafter_of
from specrig.engines.base import EngineError, WeightsEngine
from specrig.models import facts, needs
from specrig.models.hub import fetch_folder
from specrig.models.pair import ModelError, PairFiles
from specrig.settings import Settings

if TYPE_CHECKING:
    import torch

    from specrig.engines.http.remote_draft import DraftProcess, RemoteDraft
    from specrig.models.vocabularies import TokenMap
    from specrig.runtime.model import CachedModel


class Native(WeightsEngine):
    """Runs every method in the one loop. It is the drafters' `Resources` too: it loads draft and heads on first use."""

    name = "native"
    makes_weights = True
    simulates = True
    splits = True

    class Options(Settings):
        """Options of the native engine."""

        padded_passes: bool = False
        """Pad every pass of the target, plain or verifying, to the same few shapes, so that a method's greedy output
        equals plain decoding bit by bit where the processor's kernels allow it; costs the padding."""
        float32_logits: bool = False
        """Compute the target's logits in float32 in a pair of lower precision: fewer numerical ties between the two
        best tokens; costs a float32 copy of the LM head."""
        compiled: Literal["auto", "always", "never"] = "auto"
        """Whether passes of a few tokens of a small Llama-shaped model run in code that is compiled for this processor,
        which needs gcc or cc; auto: where that is faster when the pair is loaded."""
        draft_weights: Literal["model", "int8"] = "model"
        """How drafts and heads in bfloat16 multiply their weights in passes of a few tokens: as they are, or rounded to 8
        bits where the processor has instructions for that and it is faster. Outputs stay the target's; somewhat fewer drafts
        may be accepted."""

    def __init__(self, pair: PairFiles, *, device: str = "cpu", threads: int | None = None) -> None:
        super().__init__(pair, device=device, threads=threads)
        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        from specrig.runtime.linear import kernel_choice

        kernel_choice.pin(compiled=self.options.compiled, draft_weights=self.options.draft_weights)
        self.target = self.weights.cached("target", self.device)
        if self.options.padded_passes:
            self.target.pad_passes()
        if self.options.float32_logits:
            from specrig.runtime.transformers_model import float32_logits

            float32_logits(self.target)
        self._pass_costs: dict[int, list[float]] = {}
        self._running = ""
        self._sized: set[str] = set()  # the drafters that asked for the costs
        self._models: dict[str, CachedModel] = {}
        self._drafters: dict[str, Drafter] = {}
        self._order: torch.Tensor | None = None
        self._loaded_mb: dict[str, float] = {}
        self._unused_mb = 0.0
        self._service: DraftProcess | None = None
        self._remotes: dict[tuple[float, bool], RemoteDraft] = {}
        if pair.draft is not None:
            with suppress(ModelError):  # it fails the cells that need it, each with the reason
                self._model("draft")  # now, so that no measured generation loads it

    @classmethod
    def refuses(cls, cell: Cell) -> str | None:
        """The native engine runs every method."""
        return None if cell.method in registry() else f"there is no method {cell.method!r}"

    @classmethod
    def refuses_model(cls, method: str, config: dict[str, Any]) -> str | None:
        """Models whose layers or positions its cache cannot hold."""
        return needs.unreadable(config) or needs.unmet(config)

    @classmethod
    def refuses_other_vocabulary(cls, cell: Cell) -> str | None:
        """Methods whose draft speaks the target's ids, and those that are told to."""
        vocabularies = cell.options.get("vocabularies")
        if vocabularies is None:
            return f"{cell.method} takes drafts of the target's vocabulary alone"
        return "`vocabularies: same` takes no other: set it to auto" if vocabularies == "same" else None

    def ready(self, cell: Cell) -> None:
        """See `Engine`: draft and heads."""
        self._drafter(cell, _key(cell))

    def generate(
        self,
        cell: Cell,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        seeds: Sequence[int],
        callback: TokenCallback | None = None,
    ) -> list[Generation]:
        """See `Engine`. callback: is called with the tokens of every round (`decoding.types.TokenCallback`)."""
        if not prompts:
            return []
        from specrig.decoding.loop import generate

        key = _key(cell)
        drafter = self._drafter(cell, key)
        used = {*registry()[cell.method].needs, key}
        self._running = key
        self._unused_mb = sum(size for name, size in self._loaded_mb.items() if name not in used)
        return generate(
            self.target,
            drafter,
            prompts,
            k=cell.k,
            max_new_tokens=max_new_tokens,
            temperature=cell.temperature,
            eos=self.eos,
            seeds=seeds,
            simulated_acceptance=self.pair.simulated_acceptance,
            callback=callback,
        )

    def chosen(self, cell: Cell) -> dict[str, Any]:
        """See `Engine`: what passes cost, by the rows of a batch, for a drafter that sizes its drafts by it."""
        costs = {rows: [round(cost, 4) for cost in found] for rows, found in self._pass_costs.items()}
        return {"pass_costs": costs} if _key(cell) in self._sized else {}

    def environment(self) -> dict[str, Any]:
        """See `Engine`; also which kernels compute."""
        from specrig.runtime.linear import kernel_choice

        known = super().environment()
        models = {"target": self.target, **self._models}
        compiled = {name: getattr(model, "compiled", None) is not None for name, model in models.items()}
        return known | {"engine": known["engine"] | {"kernels": kernel_choice.record() | {"compiled": compiled}}}

    def reset_peak_memory(self) -> None:
        """See `Engine`."""
        if self.target.device.type == "cuda":
            import torch

            for gpu in self._devices():
                torch.cuda.reset_peak_memory_stats(gpu)
        else:
            super().reset_peak_memory()

    def peak_memory_mb(self) -> float:
        """See `Engine`: of all GPUs together, without what other methods have loaded."""
        if self.target.device.type == "cuda":
            import torch

            return sum(map(torch.cuda.max_memory_allocated, self._devices())) / 2**20 - self._unused_mb
        return super().peak_memory_mb() - self._unused_mb

    def pass_costs(self) -> list[float]:
        """What wider passes of the target cost for the rows that it holds (`Resources`), measured once."""
        from specrig.runtime.pass_costs import pass_costs

        self._sized.add(self._running)
        rows = self.target.cache.batch_size
        if rows not in self._pass_costs:
            self._pass_costs[rows] = pass_costs(self.target)
        return self._pass_costs[rows]

    def model(self, name: str) -> CachedModel:
        """A model of the pair besides the target (`Resources`). Raises ModelError for one of another vocabulary."""
        if self.weights.difference is not None:
            raise ModelError(f"{self.weights.difference}. {facts.OTHER_DRAFT}")
        return self._model(name)

    def tokens(self, vocabularies: str) -> TokenMap | None:
        """How the tokens of target and draft stand for each other (`Resources`)."""
        return None if vocabularies == "same" else self.weights.tokens(strings=vocabularies == "strings")

    def numbered(self, name: str, tokens: Tokens, slots_per_token: float) -> CachedModel:
        """A model whose tokens are numbered as the map says (`Resources`)."""
        import torch

        model, by_strings = self._model(name), not tokens.common
        if not by_strings and self._order is None:
            self._order = torch.tensor(tokens.order, device=model.device)
        model.renumber(None if by_strings else self._order, len(tokens.order if by_strings else tokens.common))
        model.slots_per_token = slots_per_token
        return model

    def _model(self, name: str) -> CachedModel:
        if name not in self._models:
            if name != "draft":
                raise EngineError(f"pair {self.pair.name}: a pair has no {name} model")
            before = self._memory_mb()
            self._models[name] = self.weights.cached(name, self.device)
            self._loaded_mb[name] = self._memory_mb() - before
        return self._models[name]

    def head(self, name: str) -> Path:
        """Folder of a trained head (`Resources`)."""
        if name not in self.pair.heads:
            raise EngineError(f"pair {self.pair.name}: no trained {name} head")
        return fetch_folder(str(self.pair.heads[name]), self.pair.revisions.get(name))

    def remote(
        self,
        name: str,
        rows: int,
        *,
        latency_s: float,
        half: bool,
        tokens: Tokens | None = None,
        slots_per_token: float = 1.0,
    ) -> RemoteDraft:
        """The pair's draft in a service on this machine (`Resources`), started where none runs that is large enough."""
        from specrig.engines.http.remote_draft import DraftProcess, RemoteDraft

        if tokens is None and self.weights.difference is not None:
            raise ModelError(f"{self.weights.difference}. {facts.OTHER_DRAFT}")
        context = int(slots_per_token * min(self.target.max_positions, self.target.cache.slots))
        # A draft in the target's ids, in its own, or in those of a map.
        V = self.target.vocab_size if tokens is None else None
        shared = bool(tokens and tokens.common)
        if self._service is None or not self._service.holds(rows, context, V, shared):
            self.close()
            self._service = DraftProcess(self.pair, rows, context, V, shared, self.device, self.threads)
        key = latency_s, half
        if key not in self._remotes:  # one that stays: its connection is open, and it ends the texts that it began
            self._remotes[key] = RemoteDraft(self._service.url, latency_s=latency_s, half=half)
        return self._remotes[key]

    def close(self) -> None:
        """End the draft's service, where one was started."""
        if self._service is not None:
            self._service.process.close()
            self._service = None
            self._remotes.clear()

    def _drafter(self, cell: Cell, key: str) -> Drafter:
        if key not in self._drafters:
            method, before, loaded = registry()[cell.method], self._memory_mb(), sum(self._loaded_mb.values())
            self._drafters[key] = drafter_of(method, method.Options.model_validate(cell.options), self)
            models = sum(self._loaded_mb.values()) - loaded  # a draft model that it was the first to need
            self._loaded_mb[key] = max(0.0, self._memory_mb() - before - models)
        return self._drafters[key]

    def _devices(self) -> set[torch.device]:
        """The devices of the target."""
        return {shape.device or self.target.device for shape in self.target.layout} | {self.target.device}

    def _memory_mb(self) -> float:
        """Memory that the GPUs' allocators, else this process, hold now, in MiB."""
        if self.target.device.type == "cuda":
            import torch

            return sum(map(torch.cuda.memory_allocated, self._devices())) / 2**20
        return psutil.Process().memory_info().rss / 2**20


def _key(cell: Cell) -> str:
    """Of the cells that share a drafter."""
    return digest([cell.method, cell.options])
