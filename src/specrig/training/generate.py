"""Text that a model writes to learn from: the one decoding loop without a draft, many prompts side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from specrig.decoding.drafters.autoregressive import Autoregressive
from specrig.decoding.loop import generate
from specrig.heads.base import TrainingError
from specrig.heads.teacher import read_model
from specrig.runtime.model import CachedModel
from specrig.runtime.transformers_model import cached_model
from specrig.runtime.types import DecodingError


class Writer:
    """A model that writes, in bfloat16: what it writes is text, its teaching keeps its own precision. It is its own
    `Resources`.
    """

    def __init__(self, folder: Path, where: torch.device, eos: Sequence[int]) -> None:
        """Raises TrainingError for a model that the decoding loop cannot run."""
        self.eos = eos
        try:
            self.target: CachedModel = cached_model(read_model(folder, torch.bfloat16).to(where), device=where)
        except DecodingError as error:
            raise TrainingError(f"{folder}: cannot write text with this model: {error}") from error

    def model(self, name: str) -> Any:
        """It has no other model."""
        raise KeyError(name)

    def head(self, name: str) -> Any:
        """It has no head."""
        raise KeyError(name)

    def remote(self, *_: Any, **__: Any) -> Any:
        """It has no service."""
        raise KeyError("remote")

    def answers(
        self,
        prompts: Sequence[list[int]],
        width: int,
        temperatures: Sequence[float],
        together: int,
        seed: int,
        known: Mapping[int, list[int]] | None = None,
    ) -> Iterator[dict[int, list[int]]]:
        """Yield batch after batch what follows the prompts: prompt's number -> tokens, up to an end token, which is
        kept.

        together: prompts a batch. A batch ends where its longest prompt's row has `width` tokens. Prompt n is answered
        at `temperatures[n % len(temperatures)]` from the random stream seed + n, so that its answer does not depend on
        its batch (but for the rounding of bfloat16). known: answers from before; a batch of which all are known is not
        written again. Raises TrainingError for a prompt that leaves no room.
        """
        alone = Autoregressive(Autoregressive.Options(), self)
        for turn, temperature in enumerate(temperatures):
            mine = range(turn, len(prompts), len(temperatures))
            for start in range(0, len(mine), together):
                batch = mine[start : start + together]
                if known is not None and all(n in known for n in batch):
                    yield {n: known[n] for n in batch}
                    continue
                asked, seeds = [prompts[n] for n in batch], [seed + n for n in batch]
                room = min(width, self.target.max_positions) - max(map(len, asked))
                if room < 1:
                    raise TrainingError(
                        f"a prompt fills all of text.sequence ({width} tokens): raise it or shorten the prompts"
                    )
                said = generate(
                    self.target,
                    alone,
                    asked,
                    k=0,
                    max_new_tokens=room,
                    temperature=temperature,
                    eos=self.eos,
                    seeds=seeds,
                )
                yield {n: generation.tokens for n, generation in zip(batch, said, strict=True)}
