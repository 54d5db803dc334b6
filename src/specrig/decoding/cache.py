"""Static key/value cache: allocated once, appended in place, rolled back by moving a length, one tree path kept by copying."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specrig.decoding.device import on_device


class KeyValueCache:
    """Keys and values of L layers, each `[B, H, S, d]` (H key/value heads, S slots, d head width).

    `lengths[b]` slots of row b hold its context. A forward pass writes n more per row (`write`), which count only once
    `keep` says which of them belong to the accepted path.
    """

    def __init__(
        self,
        layers: int,
        batch_size: int,
        heads: int,
        slots: int,
        width: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (layers, batch_size, heads, slots, width)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.lengths = [0] * batch_size
        self.slots = slots

    @property
    def batch_size(self) -> int:
        """B."""
        return len(self.lengths)

    @property
    def level(self) -> bool:
        """Whether all rows are equally long, so that a slice serves them all."""
        return self.batch_size == 1 or len(set(self.lengths)) == 1

    def write(self, layer: int, keys: Tensor, values: Tensor, slots: Tensor | slice, end: int) -> tuple[Tensor, Tensor]:
        """Put `[B, H, n, d]` at `slots` (`[B, n]`, or a slice for all rows); return views `[B, H, end, d]` of the first slots."""
        if isinstance(slots, slice):
            self.keys[layer, :, :, slots] = keys
            self.values[layer, :, :, slots] = values
        else:
            places = slots[:, None, :, None].expand_as(keys)
            self.keys[layer].scatter_(2, places, keys)
            self.values[layer].scatter_(2, places, values)
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    def keep(self, nodes: Sequence[Sequence[int]]) -> None:
        """Of the n entries just written keep, per row, these (indices in increasing order); forget the others."""
        for row, kept in enumerate(nodes):
            start = self.lengths[row]
            if kept and kept[-1] != len(kept) - 1:  # not simply the first entries: a path through a tree
                source = on_device([start + node for node in kept], self.keys.device)
                self.keys[:, row, :, start : start + len(kept)] = self.keys[:, row, :, source]
                self.values[:, row, :, start : start + len(kept)] = self.values[:, row, :, source]
            self.lengths[row] += len(kept)

    def truncate(self, lengths: Sequence[int]) -> None:
        """Roll rows back to at most these lengths."""
        self.lengths = [min(old, new) for old, new in zip(self.lengths, lengths, strict=True)]
