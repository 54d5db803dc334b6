"""Randomness and sampling: one seeded stream a row, so that a row's draws never depend on its neighbours in the batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specrig.runtime import compiled
from specrig.runtime.device import on_device

BLOCK = 256
"""How many uniforms a row's stream yields at a time. One draw of many costs as much as one of few, and it does not wait
for the device.
"""


def draw(probs: Tensor, uniforms: Tensor) -> Tensor:
    """Sample by inverse CDF: the first token whose cumulative probability exceeds the uniform.

    probs: `[..., V]`, non-negative, not necessarily normalised; uniforms: `[...]` in [0, 1). Returns int64 `[...]`.
    The sum runs in float64, so a token of probability zero is never drawn, not even at the far end of the vocabulary.
    """
    if compiled.supports(probs.device, probs.dtype) and probs.dtype == torch.float32:
        return compiled.draw(probs, uniforms)
    # u times the sum, instead of normalising: thresholds [..., 1] in cumulative probabilities [..., V].
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    thresholds = uniforms.to(torch.float64).unsqueeze(-1) * cumulative[..., -1:]
    return torch.searchsorted(cumulative, thresholds, right=True).squeeze(-1)


def softmax(logits: Tensor, temperature: float) -> Tensor:
    """The distributions of logits `[..., V]` at a temperature above 0, float32."""
    if compiled.supports(logits.device, logits.dtype):
        return compiled.softmax(logits, temperature)
    return torch.softmax(logits.float() / temperature, -1)


def to_full_vocabulary(probs: Tensor, vocabulary: Tensor | None, V: int) -> Tensor:
    """Distributions `[..., Vd]` over the tokens `vocabulary` `[Vd]` as ones over all V tokens, `[..., V]`; None: they
    are that already.
    """
    if vocabulary is None:
        return probs
    return probs.new_zeros((*probs.shape[:-1], V)).index_copy_(-1, vocabulary, probs)


def argmax(logits: Tensor) -> Tensor:
    """The index of the largest logit of `[..., V]`, the first among equals: int64 `[...]`."""
    if compiled.supports(logits.device, logits.dtype):
        return compiled.argmax(logits)
    # On a processor torch's own takes ten to thirty times as long in bfloat16: half a millisecond for 5 x 49,152.
    if logits.device.type == "cpu":
        return torch.as_tensor(logits.float().numpy().argmax(-1))
    return logits.argmax(-1)


def top(logits: Tensor, k: int) -> Tensor:
    """The places of the k highest of `[..., V]`, best first: int64 `[..., k]`."""
    if k == 1:
        return argmax(logits).unsqueeze(-1)
    if compiled.supports(logits.device, logits.dtype):
        return compiled.top(logits, k)
    return logits.topk(k, -1).indices


class Sampler:
    """Temperature and one random stream a row. At temperature 0 nothing is random."""

    def __init__(self, temperature: float, seeds: Sequence[int], device: torch.device | str = "cpu") -> None:
        """`seeds`: one a row. `temperature` 0 is greedy decoding, 1 the model's own distribution."""
        self.temperature = temperature
        self.greedy = temperature == 0.0
        self.device = torch.device(device)
        self._streams = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        self._drawn = torch.empty((len(self._streams), 0), device=self.device)
        self._used = [0] * len(self._streams)
        self._each: Tensor | None = None
        self._half = False

    @classmethod
    def with_uniforms(cls, temperatures: Sequence[float], uniforms: Tensor, *, half: bool = False) -> Sampler:
        """A sampler of rows whose streams are kept elsewhere: each has a temperature of its own and its next uniforms,
        `[B, n]`.

        A row at temperature 0 among others draws from a one-hot distribution, whatever its uniforms. half:
        distributions are rounded to half precision before anything is drawn from them, so that sending them loses
        nothing. They then add up to 1 only roughly.
        """
        sampler = cls(temperatures[0], [], uniforms.device)
        sampler._drawn, sampler._used, sampler._half = uniforms, [0] * len(temperatures), half
        if len(set(temperatures)) > 1:
            sampler.greedy = False
            sampler._each = on_device(temperatures, uniforms.device, torch.float32)
        return sampler

    def uniforms(self, counts: Sequence[int], width: int | None = None) -> Tensor:
        """Uniforms in [0, 1), `[B, width]`. Row b takes its first `counts[b]` from its stream; the others mean nothing
        and are not used up.

        width: by default the largest count.
        """
        width = max(counts, default=0) if width is None else width
        while max(self._used, default=0) + width > self._drawn.shape[1]:
            block = [torch.rand(BLOCK, generator=stream, device=self.device) for stream in self._streams]
            self._drawn = torch.cat((self._drawn, torch.stack(block)), 1)
        # Each row goes on where its own stream stands; a slice does where all stand alike.
        first = self._used[0]
        if all(used == first for used in self._used):
            found = self._drawn[:, first : first + width]
        else:
            starts = on_device(self._used, self.device).unsqueeze(1)
            found = self._drawn.gather(1, starts + torch.arange(width, device=self.device))
        self._used = [used + count for used, count in zip(self._used, counts, strict=True)]
        return found

    def probs(self, logits: Tensor) -> Tensor:
        """The distribution that tokens are drawn from, `[..., V]` float32: softmax of logits over temperature."""
        if self._each is None:
            probs = softmax(logits, self.temperature)
        else:
            each = self._each.view(-1, *[1] * (logits.dim() - 1))
            certain = torch.zeros_like(logits, dtype=torch.float32).scatter_(-1, argmax(logits).unsqueeze(-1), 1.0)
            probs = torch.where(each > 0, torch.softmax(logits.float() / each.where(each > 0, 1.0), -1), certain)
        return probs.half().float() if self._half else probs

    def next(self, logits: Tensor, active: Sequence[bool] | None = None) -> tuple[Tensor, Tensor | None]:
        """One token a row from `logits` `[B, V]`: (int64 `[B]`, the distribution `[B, V]` or None when greedy).

        Rows that are not `active` draw nothing from their stream; their token is meaningless.
        """
        if self.greedy:
            return argmax(logits), None
        probs = self.probs(logits)
        counts = [1] * len(logits) if active is None else [int(flag) for flag in active]
        if not any(counts):
            return argmax(logits), probs
        return draw(probs, self.uniforms(counts)[:, 0]), probs

    def candidates(self, logits: Tensor, width: int, counts: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """Siblings of a tree: `width` different tokens for each of m positions with `logits` `[B, m, V]`.

        Greedy: the most likely tokens, best first. Else tokens drawn without replacement, in the order of drawing, as
        multi-candidate rejection needs them (SpecInfer, 2305.09781, Algorithm 2). Row b draws for its first `counts[b]`
        positions only; its other positions hold meaningless tokens. Returns int64 `[B, m, width]` and the distributions
        `[B, m, V]` drawn from, None when greedy.
        """
        if self.greedy:
            return top(logits, width), None
        probs = self.probs(logits)
        B, m, V = probs.shape
        uniforms = self.uniforms([count * width for count in counts], m * width)
        left, tokens = (
            probs if width == 1 else probs.clone(),
            [],
        )  # left: the distribution without the siblings drawn so far, [B, m, V]
        for thresholds in uniforms.view(B, m, width).unbind(-1):
            # Where nothing is left to draw the token is out of range; it is clamped, and verification passes it over.
            token = draw(left, thresholds).clamp_(max=V - 1)
            tokens.append(token)
            if len(tokens) < width:
                left.scatter_(-1, token.unsqueeze(-1), 0.0)
        return torch.stack(tokens, -1), probs
