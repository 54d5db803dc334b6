"""Static key/value cache. It is allocated once and written in place; a rollback only lowers a length; a path through a tree is kept by
copying its entries together.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specrig.decoding.device import on_device


class KeyValueCache:
    """Keys and values of L layers, each `[B, H, S, d]` (H key/value heads, S slots, d head width).

    The first `lengths[b]` slots of row b hold its context. A forward pass writes n entries a row behind them (`write`); these become
    context only when `keep` names them.
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
        """Whether all rows are equally long, so that one slice of slots serves all of them."""
        return self.batch_size == 1 or len(set(self.lengths)) == 1

    def write(self, layer: int, keys: Tensor, values: Tensor, slots: Tensor | slice, end: int) -> tuple[Tensor, Tensor]:
        """Write keys and values `[B, H, n, d]` of one layer; return views `[B, H, end, d]` of its first `end` slots.

        slots: where they go, `[B, n]`, or a slice where all rows are alike.
        """
        if isinstance(slots, slice):
            self.keys[layer, :, :, slots] = keys
            self.values[layer, :, :, slots] = values
        else:
            places = slots[:, None, :, None].expand_as(keys)  # [B, n] -> [B, H, n, d]
            self.keys[layer].scatter_(2, places, keys)
            self.values[layer].scatter_(2, places, values)
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    def keep(self, nodes: Sequence[Sequence[int]]) -> None:
        """Of the n entries just written keep, per row, those at the indices `nodes[row]` (rising); forget the others."""
        for row, kept in enumerate(nodes):
            start = self.lengths[row]
            if kept and kept[-1] != len(kept) - 1:  # not simply the first entries: a path through a tree
                # Gather the path's entries, wherever they lie among those written, right behind the context.
                source = on_device([start + node for node in kept], self.keys.device)
                self.keys[:, row, :, start : start + len(kept)] = self.keys[:, row, :, source]
                self.values[:, row, :, start : start + len(kept)] = self.values[:, row, :, source]
            self.lengths[row] += len(kept)

    def truncate(self, lengths: Sequence[int]) -> None:
        """Roll rows back to at most these lengths."""
        self.lengths = [min(old, new) for old, new in zip(self.lengths, lengths, strict=True)]
