"""Where the native engine's models come from: folders and the hub, or shapes alone. Importing this loads no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specrig.engines.base import EngineError, PairFiles
from specrig.engines.gate import check_pair, config_of

if TYPE_CHECKING:
    import torch

    from specrig.decoding.model import CachedModel


class Weights(ABC):
    """A pair's tokenizer, end-of-sequence ids and models."""

    tokenizer: Any

    def __init__(self, pair: PairFiles) -> None:
        self.pair = pair

    @abstractmethod
    def load(self, part: str, device: str, dtype: torch.dtype) -> CachedModel:
        """`target` or `draft`, ready to run. Raises EngineError."""

    @abstractmethod
    def eos(self, target: CachedModel) -> frozenset[int]:
        """Ids that end a sequence."""


class PretrainedWeights(Weights):
    """Models with their weights, from folders or the hub; the gate has let the pair through."""

    def __init__(self, pair: PairFiles) -> None:
        super().__init__(pair)
        check_pair(pair)
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(pair.target, revision=pair.target_revision)

    def load(self, part: str, device: str, dtype: torch.dtype) -> CachedModel:
        """See `Weights`."""
        from transformers import AutoModelForCausalLM

        from specrig.decoding.transformers_model import cached_model

        name, revision = {
            "target": (self.pair.target, self.pair.target_revision),
            "draft": (self.pair.draft, self.pair.draft_revision),
        }[part]
        try:
            model = AutoModelForCausalLM.from_pretrained(name, revision=revision, dtype=dtype)
        except (OSError, ValueError, RuntimeError) as error:
            raise EngineError(f"{name}: cannot be loaded ({str(error).splitlines()[0]})") from error
        return cached_model(model.to(device), device=device)

    def eos(self, target: CachedModel) -> frozenset[int]:
        """As the model's generation config states them, else its config's, else the tokenizer's."""
        from transformers import GenerationConfig

        try:
            ids = GenerationConfig.from_pretrained(self.pair.target, revision=self.pair.target_revision).eos_token_id
        except OSError:
            ids = None
        ids = ids if ids is not None else getattr(target.config, "eos_token_id", None)
        ids = ids if ids is not None else self.tokenizer.eos_token_id
        return frozenset([ids] if isinstance(ids, int) else ids or [])


class RandomWeights(Weights):
    """Shapes with random weights: what is generated is no text, so bytes are tokens and nothing ends a sequence but its length."""

    def __init__(self, pair: PairFiles) -> None:
        super().__init__(pair)
        self.configs = config_of(pair)
        self.tokenizer = _Bytes()

    def load(self, part: str, device: str, dtype: torch.dtype) -> CachedModel:
        """See `Weights`."""
        from specrig.decoding.random_weights import random_model

        return random_model(self.configs[part], device=device, dtype=dtype)

    def eos(self, target: CachedModel) -> frozenset[int]:
        """None: every generation runs to its length limit."""
        return frozenset()


class _Bytes:
    """The face of a tokenizer: the prompt's length in tokens is its length in UTF-8 bytes."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        return ""
