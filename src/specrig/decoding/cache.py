"""Static key/value cache: allocated once, appended in place, rolled back by moving a length, one tree path kept by copying."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specrig.decoding.device import on_device


class LayerShape(NamedTuple):
    """What a layer writes of a token: key/value heads, the width of a key and that of a value."""

    heads: int
    key_width: int
    value_width: int


class KeyValueCache:
    """Keys and values of all layers, of one layer `[B, H, S, d]` (H key/value heads, S slots, d key or value width).

    `lengths[b]` slots of row b hold its context. A forward pass writes n more per row (`write`), which count only once
    `keep` says which of them belong to the accepted path. Layers of one shape share one tensor: a path is kept for all at once.
    """

    def __init__(
        self, layout: Sequence[LayerShape], batch_size: int, slots: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        counts = Counter(layout)
        self._stacks = [
            torch.zeros((layers, batch_size, shape.heads, slots, width), dtype=dtype, device=device)
            for shape, layers in counts.items()
            for width in (shape.key_width, shape.value_width)
        ]
        places = {shape: zip(*self._stacks[2 * at : 2 * at + 2], strict=True) for at, shape in enumerate(counts)}
        self._layers = [next(places[shape]) for shape in layout]
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
        own = self._layers[layer]
        for held, new in zip(own, (keys, values), strict=True):
            if isinstance(slots, slice):
                held[:, :, slots] = new
            else:
                held.scatter_(2, slots[:, None, :, None].expand_as(new), new)
        return own[0][:, :, :end], own[1][:, :, :end]

    def keep(self, nodes: Sequence[Sequence[int]]) -> None:
        """Of the n entries just written keep, per row, these (indices in increasing order); forget the others."""
        for row, kept in enumerate(nodes):
            start = self.lengths[row]
            if kept and kept[-1] != len(kept) - 1:  # not simply the first entries: a path through a tree
                source = on_device([start + node for node in kept], self._stacks[0].device)
                for stack in self._stacks:
                    stack[:, row, :, start : start + len(kept)] = stack[:, row, :, source]
            self.lengths[row] += len(kept)

    def truncate(self, lengths: Sequence[int]) -> None:
        """Roll rows back to at most these lengths."""
        self.lengths = [min(old, new) for old, new in zip(self.lengths, lengths, strict=True)]
