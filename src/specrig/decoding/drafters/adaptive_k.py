"""Adaptive k: draft more while the target agrees, less while it does not. Wraps a chain drafter.

Where the acceptance rate over the last `window` rounds is above `raise_above`, k rises by one, up to the cell's k;
where it is below `lower_below`, k falls by one, down to `minimum`. Each row of a batch has its own k.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from specrig.decoding.drafters.draft_model import DraftModel
from specrig.decoding.drafters.ngram import Ngram
from specrig.decoding.types import (
    ChainOptions,
    Context,
    Draft,
    Drafter,
    MethodOptions,
    OwnVocabulary,
    Resources,
    Verdict,
)
from specrig.decoding.vocabularies import drafter_of

if TYPE_CHECKING:
    from typing import Self

    from torch import Tensor

INNER: dict[str, type[Drafter]] = {"draft_model": DraftModel, "ngram": Ngram}


class AdaptiveK(Drafter):
    """The first round drafts `start` tokens; the cell's k is the most that a round may draft."""

    name = "adaptive_k"
    summary = "draft model whose k follows the acceptance of the last rounds, between 2 and the given k"
    family = "draft model"
    needs = ("draft",)

    class Options(ChainOptions, OwnVocabulary):
        """The rule's thresholds (defaults: window 10, 0.8 up, 0.5 down) the chain drafter it steers, and how a
        draft of another vocabulary drafts.
        """

        start: int = Field(4, ge=1, le=16)
        minimum: int = Field(2, ge=1, le=16)
        window: int = Field(10, ge=1)
        raise_above: float = Field(0.8, ge=0, le=1)
        lower_below: float = Field(0.5, ge=0, le=1)
        drafter: Literal["draft_model", "ngram"] = "draft_model"

        @model_validator(mode="after")
        def _rising(self) -> Self:
            if self.minimum > self.start:
                raise ValueError(f"minimum {self.minimum} is above start {self.start}")
            if self.lower_below > self.raise_above:
                raise ValueError(f"lower_below {self.lower_below} is above raise_above {self.raise_above}")
            return self

    @classmethod
    def parts(cls, options: MethodOptions) -> tuple[str, ...]:
        """N-grams need no draft model."""
        return cls.needs if getattr(options, "drafter", "draft_model") == "draft_model" else ()

    def __init__(self, options: MethodOptions, resources: Resources) -> None:
        super().__init__(options, resources)
        inner = INNER[self.options.drafter]
        drafting = {"vocabularies": self.options.vocabularies} if inner.translates else {}
        self.inner = drafter_of(inner, inner.Options.model_validate(drafting), resources)

    def begin(self, context: Context, hidden: Tensor, aux_hidden_states: Tensor | None = None) -> None:
        """Every row starts at `start`."""
        self.k = [self.options.start] * context.batch_size
        self.ceiling = 0
        self.history: list[deque[tuple[int, int]]] = [deque(maxlen=self.options.window) for _ in self.k]
        self.inner.begin(context, hidden, aux_hidden_states)

    def propose(self, context: Context, k: int) -> Draft:
        """Each row's own k tokens from the wrapped drafter."""
        self.ceiling = max(self.ceiling, k)  # k shrinks at the end of the model's context, the ceiling does not
        context.depths = [min(own, depth) for own, depth in zip(self.k, context.depths, strict=True)]
        draft = self.inner.propose(context, max(context.depths))
        self.offered = [min(length, depth) for length, depth in zip(draft.offered, context.depths, strict=True)]
        draft.lengths = self.offered
        return draft

    def observe(self, verdict: Verdict) -> None:
        """Move each row's k by one where its recent acceptance calls for it."""
        self.inner.observe(verdict)
        for row, (offered, path) in enumerate(zip(self.offered, verdict.paths, strict=True)):
            if not offered:
                continue
            history = self.history[row]
            history.append((offered, len(path)))
            rate = sum(accepted for _, accepted in history) / sum(drafted for drafted, _ in history)
            if rate > self.options.raise_above:
                self.k[row] = min(self.k[row] + 1, self.ceiling)
            elif rate < self.options.lower_below:
                self.k[row] = max(self.k[row] - 1, self.options.minimum)

    def passes(self) -> dict[int, tuple[int, float]]:
        """The wrapped drafter's."""
        return self.inner.passes()
