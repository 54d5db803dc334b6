"""What engines that run a pair in Python share: its tokenizer, its end-of-sequence ids, loading a model. No engine by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specrig.engines.base import Engine, EngineError, PairFiles
from specrig.engines.gate import check_pair, config


class TokenizedEngine(Engine):
    """Text to token ids and back with the target's tokenizer, after the gate has let the pair through."""

    def __init__(self, pair: PairFiles, *, device: str = "cpu", threads: int | None = None) -> None:
        super().__init__(pair, device=device, threads=threads)
        check_pair(pair)
        from transformers import AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(pair.target, revision=pair.target_revision)
        self.eos = self._eos()

    def encode(self, text: str) -> list[int]:
        """See `Engine`."""
        tokens: list[int] = self.tokenizer(text)["input_ids"]
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """See `Engine`."""
        text: str = self.tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

    def _eos(self) -> frozenset[int]:
        """End-of-sequence ids as the model's generation config states them, else its config's, else the tokenizer's."""
        from transformers import GenerationConfig

        target, revision = self.pair.target, self.pair.target_revision
        try:
            ids = GenerationConfig.from_pretrained(target, revision=revision).eos_token_id
        except OSError:
            ids = None
        ids = ids if ids is not None else config(target, revision).get("eos_token_id")
        ids = ids if ids is not None else self.tokenizer.eos_token_id
        return frozenset([ids] if isinstance(ids, int) else ids or [])

    def load(self, source: str, revision: str | None) -> Any:
        """A `…ForCausalLM` of the pair in its precision, on the device. Raises EngineError where it cannot be loaded."""
        import torch
        from transformers import AutoModelForCausalLM

        if self.pair.quantization is not None:
            raise EngineError(
                f"pair {self.pair.name}: only an engine that serves (vllm) runs a target quantized as {self.pair.quantization}; "
                "give the pair another row without it for this one"
            )
        dtype = getattr(torch, self.pair.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise EngineError(
                f"pair {self.pair.name}: dtype {self.pair.dtype!r} is no torch dtype; use float32, bfloat16 or float16"
            )
        try:
            model = AutoModelForCausalLM.from_pretrained(source, revision=revision, dtype=dtype)
        except (OSError, ValueError, RuntimeError) as error:
            raise EngineError(f"{source}: cannot be loaded ({str(error).splitlines()[0]})") from error
        return model.to(self.device).eval()

    def draft(self) -> tuple[str, str | None]:
        """(source, revision) of the draft. Raises EngineError for a pair that names none."""
        if self.pair.draft is None:
            raise EngineError(
                f"pair {self.pair.name}: this method needs a draft model and the pair names none; fill the column in pairs.tsv"
            )
        return self.pair.draft, self.pair.draft_revision
