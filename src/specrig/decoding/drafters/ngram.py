"""N-gram speculation (prompt lookup): the draft is what followed the last n tokens at their previous occurrence.

Example, n = 2: context `a b c d a b`. The suffix `a b` occurred before, followed by `c d a`: that is the draft for k =
3. Without a match nothing is drafted, and the round is a plain decoding step. No model runs; it pays where outputs copy
from the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, model_validator

from specrig.decoding.types import ChainOptions, Context, Draft, Drafter, PaperRound, chain_draft
from specrig.heads.base import Foreign

if TYPE_CHECKING:
    from torch import Tensor


class NgramIndex:
    """For each n-gram of one growing sequence the position behind its last occurrence; a lookup is one dictionary
    access.
    """

    def __init__(self, longest: int, shortest: int) -> None:
        self.sizes = range(longest, shortest - 1, -1)
        self.last: dict[tuple[int, ...], int] = {}
        self.seen = 0

    def extend(self, tokens: list[int]) -> None:
        """Index what is new in `tokens`, the whole sequence so far."""
        for position in range(max(self.seen, 1), len(tokens)):
            for size in self.sizes:
                if size <= position:
                    self.last[tuple(tokens[position - size : position])] = position
        self.seen = len(tokens)

    def continuation(self, tokens: list[int], k: int) -> list[int]:
        """Up to k tokens that followed the longest indexed suffix of `tokens`, at its latest occurrence."""
        for size in self.sizes:
            position = self.last.get(tuple(tokens[-size:])) if size <= len(tokens) else None
            if position is not None:
                return tokens[position : position + k]
        return []


class Ngram(Drafter):
    """Drafts from the sequence itself (Saxena, prompt lookup decoding, 2023; vLLM and transformers offer the same)."""

    name = "ngram"
    summary = "n-gram / prompt lookup: what followed the last n tokens before"
    foreign: ClassVar[Mapping[str, Foreign]] = {
        "llamacpp": Foreign("ngram", options={"acceptance": "exact"}),
        "sglang": Foreign("NGRAM"),
        "transformers": Foreign("prompt lookup", options={"acceptance": "exact"}),
        "vllm": Foreign(
            "ngram", options={"acceptance": "exact"}, renamed={"n": "prompt_lookup_max", "min_n": "prompt_lookup_min"}
        ),
    }
    paper = PaperRound(width=11)  # 10 tokens

    class Options(ChainOptions):
        """n: longest suffix looked up; min_n: shortest."""

        n: int = Field(3, ge=1, le=8)
        min_n: int = Field(1, ge=1, le=8)

        @model_validator(mode="after")
        def _ordered(self) -> Ngram.Options:
            if self.min_n > self.n:
                raise ValueError(f"min_n {self.min_n} is above n {self.n}")
            return self

    def begin(self, context: Context, hidden: Tensor, aux_hidden_states: Tensor | None = None) -> None:
        """Index the prompts."""
        self.indexes = [NgramIndex(self.options.n, self.options.min_n) for _ in context.tokens]
        for index, tokens in zip(self.indexes, context.tokens, strict=True):
            index.extend(tokens)

    def propose(self, context: Context, k: int) -> Draft:
        """Look every unfinished row's suffix up."""
        found: list[list[int]] = []
        for index, tokens, done in zip(self.indexes, context.tokens, context.done, strict=True):
            if not done:
                index.extend(tokens)
            found.append([] if done else index.continuation(tokens, k))
        return chain_draft(found, context.sampler.device)
