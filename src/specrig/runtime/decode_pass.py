"""Narrow passes of a Llama-shaped model on a processor, each as one call of compiled code (`runtime.compiled`).

A small model's pass is some fifty calls a layer, each a few microseconds of Python and dispatch; a large one's waits
between calls while memory idles. Here one call runs all layers, with the threads kept together throughout. A token's
logits depend, to the last bit, on its
own context alone: not on how many tokens run beside it, nor on whether it stands in a chain or a tree.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_double, c_int64, c_void_p
from math import inf
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from specrig.runtime.compiled import (
    MAX_TOKENS,
    SINGLE_THREAD_BYTES,
    library,
    supports,
    supports_weight,
    to_blocks,
    vector_width,
)
from specrig.runtime.linear import Linear, kernel_choice
from specrig.runtime.llama_model import CompiledPass, LlamaModel
from specrig.runtime.model import Step

MAX_WEIGHT_BYTES = 1 << 30
"""Bytes of weights up to which a model gets compiled passes: its weights are then held twice, for wide passes in a
library's layout.
"""
CONTEXT = 64
"""Tokens before the passes that are timed."""
TOKENS = (1, 5, 16)
"""Tokens of the passes that are timed."""
REPEATS = 5


class _Layer(Structure):
    _fields_ = [
        *(
            (name, c_void_p)
            for name in ("norm_1", "qkv", "qkv_bias", "q_norm", "k_norm", "out", "out_bias", "norm_2", "gate_up")
        ),
        *((name, c_void_p) for name in ("down", "keys", "values", "mask", "stream")),
    ]


class _Pass(Structure):
    _fields_ = [
        *((name, c_int64) for name in ("layers", "D", "H", "K", "d", "I", "V", "bf16", "threads")),
        ("eps", c_double),
        *((name, c_void_p) for name in ("embedding", "norm", "head", "cos", "sin")),
        ("layer", POINTER(_Layer)),
        *((name, c_int64) for name in ("B", "n", "end", "S", "mask_rows", "wanted")),
        *((name, c_void_p) for name in ("tokens", "positions", "slots", "rows", "given", "reads")),
        ("R", c_int64),
        *((name, c_void_p) for name in ("hidden", "logits", "room")),
    ]


def choose_kernels(model: LlamaModel) -> None:
    """Choose what computes: a kernel for each weight, and for decode passes compiled code where that is faster."""
    for layer in model.linears():
        layer.use(kernel_choice.of(layer.weight))
    compile_passes(model)


def compile_passes(model: LlamaModel) -> None:
    """Run decode passes in compiled code from now on, where that is faster."""
    if kernel_choice.compiled == "never" or not serves(model):
        return
    compiled = DecodePass(model)
    if kernel_choice.compiled == "always" or faster(model, compiled):
        model.compiled = compiled
        if kernel_choice.pinned not in (None, "compiled"):
            return
        for layer, blocks in zip(model.linears(), compiled.blocks, strict=True):
            if supports_weight(layer.weight, layer.bias):
                layer.blocks = blocks  # for products outside these passes


def serves(model: LlamaModel) -> bool:
    """Whether this model's passes can run in compiled code here: on a processor, in a precision and in widths that it
    knows.
    """
    first = model.blocks[0]
    widths = (model.hidden_size, model.q_heads * model.head_width, model.head_width, first.qkv.width, first.down.width)
    return (
        supports(model.device, model.dtype)
        and all(width % vector_width() == 0 for width in widths)
        and len(set(model.layout)) == 1
        and model.weight_bytes() <= MAX_WEIGHT_BYTES
        and all(layer.bias is None for block in model.blocks for layer in (block.gate_up, block.down))
        and model.head.bias is None
        and model.head.weight.dtype == model.dtype
    )


def faster(model: LlamaModel, compiled: DecodePass) -> bool:
    """Whether compiled passes take less time than torch's, as the geometric mean over `TOKENS`.

    Of each the least of `REPEATS` passes counts, which alternate.
    """

    def run(n: int) -> None:
        model.forward(
            torch.zeros((1, n), dtype=torch.long), features=torch.zeros((1, n, model.hidden_size), dtype=model.dtype)
        )

    model.start(1, CONTEXT + MAX_TOKENS)
    run(CONTEXT)
    model.keep([range(CONTEXT)])
    gain = 1.0
    for n in TOKENS:
        least: dict[CompiledPass | None, float] = {compiled: inf, None: inf}
        for _ in range(REPEATS):
            for way in least:
                model.compiled = way
                started = perf_counter()
                run(n)
                least[way] = min(least[way], perf_counter() - started)
        gain *= least[None] / least[compiled]
    model.compiled = None
    model.forget()
    return gain > 1.0


class DecodePass:
    """One model's narrow passes. It has the products' weights in `blocks`, beside the model's own, and writes to the
    model's cache.
    """

    def __init__(self, model: LlamaModel) -> None:
        """model: one that `serves`."""
        self.model = model
        self.kept: Sequence[int] = range(len(model.blocks))  # the layers that a pass runs
        self.library = library()
        self.blocks = [to_blocks(layer.dense()) if layer.blocks is None else layer.blocks for layer in model.linears()]
        self.alone = model.weight_bytes() <= SINGLE_THREAD_BYTES
        self.layers = (_Layer * len(model.blocks))()
        laid_out = iter(self.blocks)
        for layer, block in zip(self.layers, model.blocks, strict=True):
            layer.qkv, layer.out, layer.gate_up, layer.down = (_at(next(laid_out)) for _ in range(4))
            layer.qkv_bias, layer.out_bias = _at(block.qkv.bias), _at(block.out.bias)
            layer.norm_1, layer.norm_2 = _at(block.norm_1), _at(block.norm_2)
            layer.q_norm, layer.k_norm = _at(block.q_norm), _at(block.k_norm)
        self.told = _Pass(
            layers=len(model.blocks),
            D=model.hidden_size,
            H=model.q_heads,
            K=model.kv_heads,
            d=model.head_width,
            I=model.blocks[0].down.width,
            V=model.head.outputs,
            bf16=model.dtype == torch.bfloat16,
            eps=model.eps,
            embedding=_at(model.embedding),
            norm=_at(model.norm),
            head=_at(next(laid_out)),
            layer=self.layers,
            R=model.blocks[0].qkv.width,
        )
        self._begin()

    def _begin(self) -> None:
        self.room = torch.empty(0, dtype=torch.float32)
        self.masked = True  # layers copied from another model's may still name its mask
        self._seen: tuple[Any, Any] = (None, None)
        self._tables: tuple[Tensor, Tensor]

    def pruned(self, model: LlamaModel) -> DecodePass:
        """Passes of `model`, a copy of this one's with the same weights that leaves layers out."""
        found = copy.copy(self)
        found.model, found.blocks = model, list(self.blocks)
        found.kept = [index for index in self.kept if index not in model.skipped]
        found.layers = (_Layer * len(found.kept))(*(self.layers[index] for index in found.kept))
        found.told = _Pass.from_buffer_copy(self.told)
        found.told.layers, found.told.layer = len(found.kept), found.layers
        found._begin()
        return found

    def replace_head(self, head: Linear) -> None:
        """Compute logits with another LM head from now on."""
        self.blocks[-1] = to_blocks(head.dense()) if head.blocks is None else head.blocks
        self.told.V, self.told.head = head.outputs, _at(self.blocks[-1])

    def __call__(
        self, tokens: Tensor, step: Step, last: Sequence[int] | None, entry: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """As `CachedModel._run`. entry: of a head that follows another model, see `LlamaModel.entry`."""
        model, told = self.model, self.told
        B, n = tokens.shape
        if self._seen[0] is not model.cache or self._seen[1] is not model.cos:
            self._moved()
        positions, slots = _places(step.positions, B, n), _places(step.slots, B, n)
        tokens = tokens.contiguous()
        wanted = range(B * n) if last is None else [row * n + at for row, at in enumerate(last)]
        rows = torch.tensor(wanted) if B * n > 1 else _ZERO
        masks = self._masks(step)
        hidden = torch.empty((B, n, told.D), dtype=model.dtype)
        logits = torch.empty((B, len(wanted) // B, told.V), dtype=model.dtype)
        streams = self._streams(B, n)
        told.B, told.n, told.end, told.wanted, told.threads = (
            B,
            n,
            step.end,
            len(wanted),
            1 if self.alone else torch.get_num_threads(),
        )
        stream, reads = (None, None) if entry is None else (each.contiguous() for each in entry)
        told.given, told.reads = _at(stream), _at(reads)
        told.tokens, told.positions, told.slots = tokens.data_ptr(), positions.data_ptr(), slots.data_ptr()
        told.rows, told.hidden, told.logits = rows.data_ptr(), hidden.data_ptr(), logits.data_ptr()
        if (needed := self.library.room(byref(told))) > len(self.room):
            self.room = torch.empty(needed, dtype=torch.float32)
            told.room = self.room.data_ptr()
        self.library.forward(byref(told))
        del masks, stream, reads  # until here the call read them
        if streams:
            model.aux_hidden_states = torch.cat(streams, -1)
        return logits, hidden

    def _moved(self) -> None:
        """The model has another cache, or longer tables of positions."""
        model, told = self.model, self.told
        for layer, index in zip(self.layers, self.kept, strict=True):
            keys, values = model.cache.layers[index]
            layer.keys, layer.values = keys.data_ptr(), values.data_ptr()
        told.S = model.cache.slots
        if self._seen[1] is not model.cos:
            self._tables = model.cos.float().contiguous(), model.sin.float().contiguous()
            told.cos, told.sin = (table.data_ptr() for table in self._tables)
        self._seen = model.cache, model.cos

    def _masks(self, step: Step) -> list[Tensor]:
        """Hand each layer the mask of its pattern, `[B or 1, n, end]`; returns them, for they must live as long as the
        pass.
        """
        if not self.masked and all(mask is None for mask in step.masks):
            return []
        made = {id(mask): mask.contiguous() for mask in step.masks if mask is not None}
        for layer, index in zip(self.layers, self.kept, strict=True):
            mask = step.masks[self.model.pattern_of[index]]
            layer.mask = None if mask is None else made[id(mask)].data_ptr()
        self.masked = bool(made)
        self.told.mask_rows = max((len(mask) if mask.dim() == 4 else 1 for mask in made.values()), default=1)
        return list(made.values())

    def _streams(self, B: int, n: int) -> list[Tensor]:
        """Of each of the model's feature layers where its stream `[B, n, D]` goes."""
        if not self.model.aux_layers and not any(layer.stream for layer in self.layers):
            return []
        found = {index: torch.empty((B, n, self.told.D), dtype=self.model.dtype) for index in self.model.aux_layers}
        for layer, index in zip(self.layers, self.kept, strict=True):
            layer.stream = found[index].data_ptr() if index in found else None
        return [found[index] for index in self.model.aux_layers]


_ZERO = torch.zeros(1, dtype=torch.long)


def _at(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _places(places: Tensor | slice, B: int, n: int) -> Tensor:
    """Positions or slots as int64 `[B, n]`."""
    if isinstance(places, slice):
        places = torch.arange(places.start, places.stop).expand(B, n)
    return places.contiguous()
