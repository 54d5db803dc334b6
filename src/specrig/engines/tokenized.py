"""What engines share that tokenize in this process: text to token ids and back. No engine by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specrig.engines.base import Engine
from specrig.models.pair import PairFiles
from specrig.models.weights import weights_of


class TokenizerEngine(Engine):
    """Text to token ids and back with the target's tokenizer."""

    tokenizer: Any

    def encode(self, text: str) -> list[int]:
        """See `Engine`."""
        tokens: list[int] = self.tokenizer(text)["input_ids"]
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """See `Engine`."""
        text: str = self.tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text


class TokenizedEngine(TokenizerEngine):
    """An engine that loads the pair's models in Python. Raises ModelError for a pair that the gate refuses (see
    `models.weights`).
    """

    def __init__(self, pair: PairFiles, *, device: str = "cpu", threads: int | None = None) -> None:
        super().__init__(pair, device=device, threads=threads)
        self.weights = weights_of(pair)
        self.tokenizer = self.weights.tokenizer
        self.eos = self.weights.eos
