"""Randomness and sampling: one seeded stream a row, so that a row's draws never depend on its neighbours in the batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def draw(probs: Tensor, uniforms: Tensor) -> Tensor:
    """Sample by inverse CDF: the first token whose cumulative probability exceeds the uniform.

    probs: `[..., V]`, non-negative, not necessarily normalised; uniforms: `[...]` in [0, 1). Returns int64 `[...]`.
    The sum runs in float64, so a token of probability zero is never drawn, not even at the far end of the vocabulary.
    """
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    thresholds = uniforms.to(torch.float64).unsqueeze(-1) * cumulative[..., -1:]
    return torch.searchsorted(cumulative, thresholds, right=True).squeeze(-1)


class Sampler:
    """Temperature and one random stream a row. At temperature 0 nothing is random."""

    def __init__(self, temperature: float, seeds: Sequence[int], device: torch.device | str = "cpu") -> None:
        """`seeds`: one a row. `temperature` 0 is greedy decoding, 1 the model's own distribution."""
        self.temperature = temperature
        self.greedy = temperature == 0.0
        self.streams = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        self.device = torch.device(device)

    def uniforms(self, counts: Sequence[int]) -> Tensor:
        """`[B, max(counts)]` uniforms in [0, 1); row b takes exactly `counts[b]` from its own stream (rest: zeros)."""
        width = max(counts, default=0)
        if len(counts) == 1:
            return torch.rand((1, width), generator=self.streams[0], device=self.device)
        result = torch.zeros((len(counts), width), device=self.device)
        for row, (count, stream) in enumerate(zip(counts, self.streams, strict=True)):
            if count:
                result[row, :count] = torch.rand(count, generator=stream, device=self.device)
        return result

    def probs(self, logits: Tensor) -> Tensor:
        """The distribution that tokens are drawn from, `[..., V]` float32: softmax of logits over temperature."""
        return torch.softmax(logits.float() / self.temperature, -1)

    def next(self, logits: Tensor, active: Sequence[bool] | None = None) -> tuple[Tensor, Tensor | None]:
        """One token a row from `logits` `[B, V]`: (int64 `[B]`, the distribution `[B, V]` or None when greedy).

        Rows that are not `active` draw nothing from their stream; their token is meaningless.
        """
        if self.greedy:
            return logits.argmax(-1), None
        probs = self.probs(logits)
        counts = [1] * len(logits) if active is None else [int(flag) for flag in active]
        if not any(counts):
            return logits.argmax(-1), probs
        return draw(probs, self.uniforms(counts)[:, 0]), probs
