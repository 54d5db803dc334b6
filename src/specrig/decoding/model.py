"""A language model that decodes step by step over a static cache: what the loop and the drafters run.

Two implementations of one forward pass, tested against each other: `llama_model` computes Llama-shaped architectures directly,
`transformers_model` calls the model's own `forward` and so takes any decoder-only architecture.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specrig.decoding.cache import KeyValueCache
from specrig.decoding.types import DecodingError


class Step:
    """Where the n tokens of a forward pass sit: positions `[B, n]` and what each may look at."""

    __slots__ = ("level", "mask", "positions", "start")

    def __init__(self, start: int, level: bool, positions: Tensor | slice, mask: Tensor | None) -> None:
        self.start, self.level, self.positions, self.mask = start, level, positions, mask


class CachedModel(ABC):
    """A decoder-only model with its cache and a stopwatch over its bare forward passes.

    `forward` writes the tokens' keys and values behind each row's context; `keep` makes them part of it.
    """

    def __init__(self, config: Any, *, device: torch.device, dtype: torch.dtype) -> None:
        text = config.get_text_config(decoder=True)
        self.config = text
        self.device, self.dtype = device, dtype
        self.vocab_size: int = text.vocab_size
        self.hidden_size: int = text.hidden_size
        self.layers: int = text.num_hidden_layers
        self.max_positions: int = getattr(text, "max_position_embeddings", None) or 1 << 20
        heads = text.num_attention_heads
        self.kv_heads: int = getattr(text, "num_key_value_heads", None) or heads
        self.head_width: int = getattr(text, "head_dim", None) or text.hidden_size // heads
        self.cache = KeyValueCache(0, 1, 1, 0, 1, dtype=dtype, device=device)
        self.passes: dict[int, list[float]] = {}
        self.feature_layers: tuple[int, ...] = ()  # see `Drafter.feature_layers`
        self.features: Tensor | None = None
        self._causal = torch.empty(0, 0, dtype=torch.bool)
        self._ancestry: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def start(self, batch_size: int, slots: int) -> None:
        """A new batch: empty rows with room for `slots` positions each (allocations are kept and reused)."""
        cache = self.cache
        if cache.batch_size != batch_size or cache.slots < slots:
            room = -(-slots // 128) * 128
            self.cache = KeyValueCache(
                self.layers,
                batch_size,
                self.kv_heads,
                room,
                self.head_width,
                dtype=self.dtype,
                device=self.device,
            )
            self._causal = torch.ones(room, room, dtype=torch.bool, device=self.device).tril()
            self._grown(room)
        else:
            cache.lengths = [0] * batch_size
        self.passes = {}

    def _grown(self, slots: int) -> None:  # noqa: B027
        """The cache now has `slots` positions; implementations extend their tables."""

    @property
    def lengths(self) -> list[int]:
        """Context length of every row."""
        return self.cache.lengths

    def now(self) -> float:
        """Seconds on a clock that has waited for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return perf_counter()

    def forward(
        self,
        tokens: Tensor,
        *,
        parents: Sequence[Sequence[int]] | None = None,
        last: Sequence[int] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run `tokens` `[B, n]` behind each row's context: (logits `[B, n, V]`, hidden `[B, n, D]` after the final norm).

        parents: None for a chain; else per row and token the index of its predecessor among these tokens, -1 for the context.
        last: only these positions' logits, one a row, are computed: `[B, 1, V]`.
        """
        started = self.now()
        step = self._step(tokens.shape[1], parents)
        hidden = self._hidden(tokens, step)
        if last is not None:
            picked = hidden[torch.arange(len(hidden), device=self.device), torch.tensor(last, device=self.device)].unsqueeze(1)
        logits = self._logits(hidden if last is None else picked)
        if logits.shape[-1] != self.vocab_size:
            logits = logits[..., : self.vocab_size]
        entry = self.passes.setdefault(tokens.shape[1], [0, 0.0])
        entry[0] += 1
        entry[1] += self.now() - started
        return logits, hidden

    def keep(self, nodes: Sequence[Sequence[int]]) -> None:
        """Keep, per row, these of the tokens just run."""
        self.cache.keep(nodes)

    def start_like(self, other: CachedModel) -> None:
        """A new batch of the same shape as another model's."""
        self.start(other.cache.batch_size, other.cache.slots)

    def prefill_like(self, other: CachedModel, rows: Sequence[Sequence[int]], done: Sequence[bool]) -> None:
        """Start a batch of another model's shape with `rows`, each row's last token held back; its passes are no decoding steps."""
        self.start_like(other)
        self.catch_up(rows, done, hold_last=True)
        self.passes.clear()

    def catch_up(self, rows: Sequence[Sequence[int]], done: Sequence[bool], *, hold_last: bool = False) -> Tensor:
        """Run and keep what the cache does not hold yet of every unfinished row: next-token logits `[B, V]`.

        hold_last: leave each row's last token for the next call.
        """
        end = -1 if hold_last else None
        new = [[] if over else list(row[length:end]) for row, over, length in zip(rows, done, self.lengths, strict=True)]
        width = max(1, *map(len, new))
        padded = torch.tensor([row + [0] * (width - len(row)) for row in new], device=self.device)
        logits, _ = self.forward(padded, last=[max(len(row) - 1, 0) for row in new])
        self.keep([range(len(row)) for row in new])
        return logits[:, 0]

    def pass_totals(self) -> dict[int, tuple[int, float]]:
        """Bare forward passes since `start`: width -> (calls, seconds)."""
        return {width: (int(calls), seconds) for width, (calls, seconds) in self.passes.items()}

    @abstractmethod
    def _hidden(self, tokens: Tensor, step: Step) -> Tensor: ...

    @abstractmethod
    def _logits(self, hidden: Tensor) -> Tensor: ...

    def _step(self, n: int, parents: Sequence[Sequence[int]] | None) -> Step:
        cache = self.cache
        start = max(cache.lengths)
        if start + n > cache.slots:
            raise DecodingError(f"{start + n} positions do not fit the cache of {cache.slots}")
        if cache.level and parents is None:
            mask = None if n == 1 else self._causal[start : start + n, : start + n]
            return Step(start, True, slice(start, start + n), mask)
        B = cache.batch_size
        lengths = torch.tensor(cache.lengths, device=self.device)
        depth, tree_mask = self._trees([list(range(-1, n - 1))] * B if parents is None else parents)
        slots = torch.arange(start + n, device=self.device)
        mask = (slots < lengths.unsqueeze(1)).unsqueeze(1).expand(B, n, start + n).clone()
        for row, length in enumerate(cache.lengths):
            mask[row, :, length : length + n] = tree_mask[row]
        return Step(start, cache.level, lengths.unsqueeze(1) + depth, mask.unsqueeze(1))

    def _trees(self, parents: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Depths `[B, n]` and ancestor-or-self matrices `[B, n, n]`. A static tree is met every round, so it is kept."""
        first = tuple(parents[0])
        shared = all(row is parents[0] or tuple(row) == first for row in parents[1:])
        known = self._ancestry.get(first) if shared else None
        if known is None:
            rows = np.array([first] if shared else parents).reshape(-1, len(first))
            B, n = rows.shape
            # Row n stands for the context: no ancestors, depth -1. Topological order makes one sweep enough.
            ancestors, depth, batch = np.zeros((B, n + 1, n), bool), np.full((B, n + 1), -1), np.arange(B)
            for node in range(n):
                ancestors[:, node] = ancestors[batch, rows[:, node]]
                ancestors[:, node, node] = True
                depth[:, node] = depth[batch, rows[:, node]] + 1
            known = torch.from_numpy(depth[:, :n]).to(self.device), torch.from_numpy(ancestors[:, :n]).to(self.device)
            if shared:
                if len(self._ancestry) >= 256:  # trees that change every round push the oldest out
                    del self._ancestry[next(iter(self._ancestry))]
                self._ancestry[first] = known
        return known if not shared else (known[0].expand(len(parents), -1), known[1].expand(len(parents), -1, -1))
