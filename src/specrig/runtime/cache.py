"""Static key/value cache: allocated once, written in place. A rollback only lowers a length; a path through a tree is
kept by copying its entries together.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specrig.runtime import compiled
from specrig.runtime.device import on_device, on_host


class LayerShape(NamedTuple):
    """What a layer writes of a token: key/value heads, width of a key and of a value; device None: the cache's."""

    heads: int
    key_width: int
    value_width: int
    device: torch.device | None = None


class KeyValueCache:
    """Keys and values of all layers, of one layer `[B, H, S, d]` (H key/value heads, S slots, d key or value width).

    The first `lengths[b]` slots of row b hold its context. A forward pass writes n entries a row behind them (`write`);
    these become context only when `keep` names them. Layers of one shape and device share one tensor, so that a path is
    kept for all at once.
    """

    def __init__(
        self, layout: Sequence[LayerShape], batch_size: int, slots: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        counts = Counter(layout)
        self._stacks = [
            torch.zeros((layers, batch_size, shape.heads, slots, width), dtype=dtype, device=shape.device or device)
            for shape, layers in counts.items()
            for width in (shape.key_width, shape.value_width)
        ]
        layers_of = {shape: zip(*self._stacks[2 * at : 2 * at + 2], strict=True) for at, shape in enumerate(counts)}
        self._layers = [next(layers_of[shape]) for shape in layout]
        self._stack_rows = list(range(batch_size))  # each row's index in the stacks
        self._devices = {stack.device for stack in self._stacks}
        self._rows = torch.arange(batch_size, device=device).unsqueeze(1)  # the index in `_layers`, [B, 1]
        self._elsewhere = [shape.device is not None for shape in layout]  # whether a layer lies on another device
        self._sent: dict[torch.device, Tensor] = {}  # `_rows` there
        self._scattered = False  # whether the rows are not adjacent in memory
        self.lengths = [0] * batch_size
        self.slots = slots

    def select_rows(self, rows: Sequence[int], lengths: Sequence[int]) -> KeyValueCache:
        """A view of these rows in this order, over the same memory; lengths: of their contexts.

        Rows that are not adjacent are copied together for each pass that reads them.
        """
        view = copy.copy(self)
        view.lengths, view._stack_rows = list(lengths), list(rows)
        first, end = rows[0], rows[0] + len(rows)
        if view._stack_rows == list(range(first, end)):
            view._layers = [(keys[first:end], values[first:end]) for keys, values in self._layers]
            view._rows = self._rows[: len(rows)]
        else:
            view._rows, view._scattered = on_device(rows, self._rows.device).unsqueeze(1), True
        view._sent = {}
        return view

    @property
    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of each layer, `[B, H, S, d]` each: the memory itself."""
        return self._layers

    @property
    def batch_size(self) -> int:
        """B."""
        return len(self.lengths)

    def scratch(self, lengths: Sequence[int]) -> KeyValueCache:
        """A view with other lengths: what is written behind these does not touch this cache's context."""
        return self.select_rows(range(self.batch_size), lengths)

    @property
    def scattered(self) -> bool:
        """Whether the rows are not adjacent in memory, so that `layers` does not show them."""
        return self._scattered

    @property
    def aligned(self) -> bool:
        """Whether all rows are equally long, so that one slice of slots serves all of them."""
        return self.batch_size == 1 or len(set(self.lengths)) == 1

    def write(self, layer: int, keys: Tensor, values: Tensor, slots: Tensor | slice, end: int) -> tuple[Tensor, Tensor]:
        """Write keys and values `[B, H, n, d]` of one layer; return views `[B, H, end, d]` of its first `end` slots.

        slots: where they go, `[B, n]` on the layer's device, or a slice where all rows are alike.
        """
        own, index = self._layers[layer], self._rows
        if self._elsewhere[layer]:
            index = self._rows_at(keys.device)
        if self._scattered and isinstance(slots, slice):
            slots = torch.arange(slots.start, slots.stop, device=keys.device).unsqueeze(0)
        for held, new in zip(own, (keys, values), strict=True):
            if isinstance(slots, slice):
                held[:, :, slots] = new
            else:
                held[index, :, slots] = new.transpose(1, 2)  # by row and slot: [B, n, H, d]
        if self._scattered:
            rows = index[:, 0]
            return own[0][rows, :, :end], own[1][rows, :, :end]
        return own[0][:, :, :end], own[1][:, :, :end]

    def keep(self, nodes: Sequence[Sequence[int]]) -> None:
        """Of the n entries just written keep, per row, those at the indices `nodes[row]` (rising); drop the others."""
        for row, kept in enumerate(nodes):
            start, index = self.lengths[row], self._stack_rows[row]
            if kept and kept[-1] != len(kept) - 1:  # not simply the first entries: a path through a tree
                # Gather the path's entries right behind the context.
                path = [start + node for node in kept]
                if all(map(on_host, self._devices)) and compiled.library() is not None:
                    for stack in self._stacks:
                        compiled.keep_path(stack, index, start, path)
                else:
                    sources = {device: on_device(path, device) for device in self._devices}
                    for stack in self._stacks:
                        stack[:, index, :, start : start + len(kept)] = stack[:, index, :, sources[stack.device]]
            self.lengths[row] += len(kept)

    def copy_row(self, source: int, to: int, length: int) -> None:
        """Copy the first `length` entries of the memory's row `source` over those of row `to`."""
        for stack in self._stacks:
            stack[:, to, :, :length] = stack[:, source, :, :length]

    def _rows_at(self, device: torch.device) -> Tensor:
        if device not in self._sent:
            self._sent[device] = self._rows.to(device)
        return self._sent[device]

    def truncate(self, lengths: Sequence[int]) -> None:
        """Roll rows back to at most these lengths."""
        self.lengths = [min(old, new) for old, new in zip(self.lengths, lengths, strict=True)]
