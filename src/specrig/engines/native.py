"""SpecRig's own engine: the one loop over any decoder-only transformers model, every method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specrig.cell import Cell, digest
from specrig.decoding.drafters import registry
from specrig.decoding.types import Drafter, Generation
from specrig.engines.base import Engine, EngineError, PairFiles
from specrig.engines.gate import check_pair

if TYPE_CHECKING:
    from specrig.decoding.model import CachedModel


class Native(Engine):
    """Lends the target, the draft and the trained heads to the drafters; each is loaded once, on first use."""

    name = "native"

    def __init__(self, pair: PairFiles, *, device: str = "cpu", threads: int | None = None) -> None:
        super().__init__(pair, device=device, threads=threads)
        check_pair(pair)
        import torch
        from transformers import AutoTokenizer, GenerationConfig

        if threads is not None:
            torch.set_num_threads(threads)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(pair.target, revision=pair.target_revision)
        self.target = self._load(pair.target, pair.target_revision)
        self.eos = self._eos(GenerationConfig)
        self._models: dict[str, CachedModel] = {}
        self._drafters: dict[str, Drafter] = {}

    @classmethod
    def refuses(cls, cell: Cell) -> str | None:
        """The native engine runs every method."""
        return None if cell.method in registry() else f"there is no method {cell.method!r}"

    def encode(self, text: str) -> list[int]:
        """See `Engine`."""
        tokens: list[int] = self.tokenizer(text)["input_ids"]
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """See `Engine`."""
        text: str = self.tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

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
        )

    def peak_memory_mb(self) -> float:
        """Of the GPU's allocator where there is one, else of this process."""
        if self.target.device.type == "cuda":
            import torch

            return torch.cuda.max_memory_allocated(self.target.device) / 2**20
        return super().peak_memory_mb()

    def model(self, name: str) -> CachedModel:
        """A model of the pair besides the target (`Resources`)."""
        if name not in self._models:
            if name != "draft" or self.pair.draft is None:
                raise EngineError(
                    f"pair {self.pair.name}: this method needs a {name} model and the pair names none; fill the column in pairs.tsv"
                )
            self._models[name] = self._load(self.pair.draft, self.pair.draft_revision)
            # Tokenizers agree (the gate); the embedding may be padded further in one of them. Padding is never drawn.
            shared = min(self._models[name].vocab_size, self.target.vocab_size)
            self._models[name].vocab_size = self.target.vocab_size = shared
        return self._models[name]

    def head(self, name: str) -> Path:
        """Folder of a trained head (`Resources`)."""
        if name not in self.pair.heads:
            raise EngineError(f"pair {self.pair.name}: no trained {name} head")
        return self.pair.heads[name]

    def _drafter(self, cell: Cell) -> Drafter:
        key = digest([cell.method, cell.options])
        if key not in self._drafters:
            method = registry()[cell.method]
            self._drafters[key] = method(method.Options.model_validate(cell.options), self)
        return self._drafters[key]

    def _load(self, name: str, revision: str | None) -> CachedModel:
        import torch
        from transformers import AutoModelForCausalLM

        from specrig.decoding.transformers_model import cached_model

        dtype = getattr(torch, self.pair.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise EngineError(
                f"pair {self.pair.name}: dtype {self.pair.dtype!r} is no torch dtype; use float32, bfloat16 or float16"
            )
        try:
            model = AutoModelForCausalLM.from_pretrained(name, revision=revision, dtype=dtype)
        except (OSError, ValueError, RuntimeError) as error:
            raise EngineError(f"{name}: cannot be loaded ({str(error).splitlines()[0]})") from error
        return cached_model(model.to(self.device), device=self.device)

    def _eos(self, generation_config: Any) -> frozenset[int]:
        """End-of-sequence ids as the model's generation config states them, else its config's, else the tokenizer's."""
        try:
            ids = generation_config.from_pretrained(self.pair.target, revision=self.pair.target_revision).eos_token_id
        except OSError:
            ids = None
        ids = ids if ids is not None else getattr(self.target.config, "eos_token_id", None)
        ids = ids if ids is not None else self.tokenizer.eos_token_id
        return frozenset([ids] if isinstance(ids, int) else ids or [])
