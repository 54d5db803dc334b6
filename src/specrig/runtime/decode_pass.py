"""Decode passes of a Llama-shaped model on a processor, each as one call of compiled code (`runtime.compiled`).

With torch, a small model's pass is some fifty calls a layer, each a few microseconds of Python and dispatch, and memory
idles between the calls of a large one. Here one call runs all layers with the same threads. To the last bit, a token's
logits depend on its own context alone: not on how many tokens run with it, nor on whether it is in a chain or a tree.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from ctypes import POINTER, Structure, addressof, byref, c_double, c_int64, c_void_p
from itertools import chain
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
    supports_eight_bits,
    supports_weight,
    to_blocks,
    to_eight_bits,
    vector_width,
)
from specrig.runtime.device import Positions, spans
from specrig.runtime.linear import Linear, kernel_choice
from specrig.runtime.llama_model import LlamaModel
from specrig.runtime.memory import available_memory
from specrig.runtime.model import CachedModel, LevelStep, Step

MAX_WEIGHT_BYTES = 1 << 30
"""Bytes of weights up to which a model gets compiled passes. Its weights are then held twice, the second time as torch
multiplies prompts with them.
"""
CONTEXT = 64
"""Tokens before the passes that are timed."""
TOKENS = (1, 5, 16)
"""Tokens of the passes that are timed."""
REPEATS = 5


def _pointers(names: str) -> list[tuple[str, Any]]:
    return [(name, c_void_p) for name in names.split()]


def _integers(names: str) -> list[tuple[str, Any]]:
    return [(name, c_int64) for name in names.split()]


class _Layer(Structure):
    _fields_ = [
        *_pointers("norm_1 qkv qkv_bias q_norm k_norm out out_bias norm_2 gate_up down keys values"),
        ("pattern", c_int64),
        ("aux_hidden_state", c_void_p),
    ]


class _Pass(Structure):
    _fields_ = [
        *_integers("layers D H K d I V bf16 eight_bits threads"),
        ("eps", c_double),
        *_pointers("embedding norm head cos sin"),
        ("layer", POINTER(_Layer)),
        *_integers("B n end S mask_rows outputs aux_width first_row"),
        *_pointers("masks tokens positions slots parents rows input reads embedding_norm input_norm fc"),
        *_integers("R F"),
        *_pointers("hidden logits choices"),
        *_integers("words"),
        *_pointers("scratch"),
    ]


def compile_passes(model: LlamaModel) -> None:
    """Run decode passes in compiled code from now on, where that is faster; where it cannot run them, as of a large model,
    single products (`compile_products`).
    """
    if kernel_choice.compiled == "never":
        return
    if not supports_model(model):
        compile_products(model.linears())
        return
    compiled = DecodePass(model)
    if kernel_choice.compiled == "always" or fastest(model, [None, compiled]) is compiled:
        model.compiled = compiled
        for layer, blocks in zip(model.linears(), compiled.blocks, strict=True):
            if supports_weight(layer.weight, layer.bias):
                layer.blocks = blocks  # for products outside these passes


def compile_products(layers: Sequence[Linear]) -> None:
    """Multiply a few rows in compiled code from now on, where memory holds the weights twice: torch's own product of five
    rows takes ten times as long as of one row on some processors, so that no draft could pay.
    """
    if 1.25 * sum(layer.weight.nbytes for layer in layers) < available_memory():
        for layer in layers:
            layer.compile()


def round_weights(model: CachedModel, name: str) -> bool:
    """Let decode passes of a draft or a head multiply weights of 8 bits from now on, where the process asks for them
    (`kernel_choice.draft_weights`) and they are faster; returns whether they do. name: of the model, in the record.

    Inputs are rounded too, for each product anew. Passes that torch runs, such as those over long prompts, keep the
    weights as they are.
    """
    kernel_choice.draft_weights_of[name] = "int8" if (rounded := _rounded(model)) else "model"
    return rounded


def _rounded(model: CachedModel) -> bool:
    if kernel_choice.draft_weights != "int8" or not isinstance(model, LlamaModel):
        return False
    if model.dtype != torch.bfloat16 or not isinstance(model.compiled, DecodePass) or not supports_eight_bits():
        return False
    usual, rounded = model.compiled, DecodePass(model, eight_bits=True)
    model.compiled = rounded if kernel_choice.compiled == "always" else fastest(model, [usual, rounded])
    return model.compiled is rounded


def supports_model(model: LlamaModel) -> bool:
    """Whether compiled code can run this model's passes here: its device, precision and widths."""
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


def fastest(model: LlamaModel, ways: Sequence[DecodePass | None]) -> DecodePass | None:
    """Which passes take the least time, None being torch's: least of `REPEATS`, which alternate, geometric mean over
    `TOKENS`.
    """
    width = model.hidden_size if model.entry_fc is None else model.entry_fc.width

    def run(n: int) -> None:
        features = torch.zeros((1, n, width), dtype=model.dtype)
        model.forward(torch.zeros((1, n), dtype=torch.long), features=features)

    model.start(1, CONTEXT + MAX_TOKENS)
    run(CONTEXT)
    model.keep([range(CONTEXT)])
    products = dict.fromkeys(ways, 1.0)
    for n in TOKENS:
        least = dict.fromkeys(ways, inf)
        for _ in range(REPEATS):
            for way in ways:
                model.compiled = way
                started = perf_counter()
                run(n)
                least[way] = min(least[way], perf_counter() - started)
        for way in ways:
            products[way] *= least[way]
    model.compiled = None
    model.free_caches()
    return min(ways, key=lambda way: products[way])


class DecodePass:
    """One model's decode passes: they read a copy of its weights (`blocks`) and write to its cache."""

    def __init__(self, model: LlamaModel, *, eight_bits: bool = False) -> None:
        """model: one that `supports_model`. eight_bits: whether products' weights are rounded (`to_eight_bits`)."""
        self.model, self.eight_bits = model, eight_bits
        self.kept: Sequence[int] = range(len(model.blocks))  # the layers that a pass runs
        self.wide = True if kernel_choice.compiled == "always" else None
        self.library = library()
        self.blocks = [self._laid_out(layer) for layer in model.linears()]
        self.single_thread = model.weight_bytes() <= SINGLE_THREAD_BYTES
        self.layers = (_Layer * len(model.blocks))()
        laid_out = iter(self.blocks)
        for layer, block in zip(self.layers, model.blocks, strict=True):
            layer.qkv, layer.out, layer.gate_up, layer.down = (_at(next(laid_out)) for _ in range(4))
            layer.qkv_bias, layer.out_bias = _at(block.qkv.bias), _at(block.out.bias)
            layer.norm_1, layer.norm_2 = _at(block.norm_1), _at(block.norm_2)
            layer.q_norm, layer.k_norm = _at(block.q_norm), _at(block.k_norm)
        for layer, pattern in zip(self.layers, model.pattern_of, strict=True):
            layer.pattern = pattern
        self.masks = (c_void_p * len(model.patterns))()
        self.args = _Pass(
            layers=len(model.blocks),
            D=model.hidden_size,
            H=model.q_heads,
            K=model.kv_heads,
            d=model.head_width,
            I=model.blocks[0].down.width,
            V=model.head.outputs,
            bf16=model.dtype == torch.bfloat16,
            eight_bits=eight_bits,
            eps=model.eps,
            embedding=_at(model.embedding),
            norm=_at(model.norm),
            head=_at(next(laid_out)),
            layer=self.layers,
            R=model.blocks[0].qkv.width,
            masks=addressof(self.masks),
        )
        if model.entry_norms is not None:
            self.args.embedding_norm, self.args.input_norm = map(_at, model.entry_norms)
        self.fc = None if model.entry_fc is None else self._laid_out(model.entry_fc)
        self.args.F = 0 if model.entry_fc is None else model.entry_fc.width
        self._reset()

    def _laid_out(self, layer: Linear) -> Tensor:
        """A product's weight as passes read it."""
        if self.eight_bits:
            return to_eight_bits(layer.weight)
        return to_blocks(layer.weight) if layer.blocks is None else layer.blocks

    def _reset(self) -> None:
        self.scratch = torch.empty(0, dtype=torch.float32)
        self._collected: tuple[int, ...] = ()  # the layers whose hidden states are written
        self._bound: tuple[Any, Any] = (None, None)
        self._tables: tuple[Tensor, Tensor]
        self._numbers: Tensor  # 0, 1, 2, …

    def pruned(self, model: LlamaModel) -> DecodePass:
        """Passes of `model`, a copy of this one's with the same weights that leaves layers out."""
        copied = copy.copy(self)
        copied.model, copied.blocks = model, list(self.blocks)
        copied.kept = [index for index in self.kept if index not in model.skipped]
        copied.layers = (_Layer * len(copied.kept))(*(self.layers[index] for index in copied.kept))
        copied.args = _Pass.from_buffer_copy(self.args)
        copied.masks = (c_void_p * len(model.patterns))()
        copied.args.layers, copied.args.layer, copied.args.masks = (
            len(copied.kept),
            copied.layers,
            addressof(copied.masks),
        )
        for layer in copied.layers:
            layer.aux_hidden_state = None
        copied._reset()
        return copied

    def replace_head(self, head: Linear) -> None:
        """Compute logits with another LM head from now on."""
        self.blocks[-1] = self._laid_out(head)
        self.args.V, self.args.head = head.outputs, _at(self.blocks[-1])

    def __call__(
        self, tokens: Tensor, step: Step | LevelStep, last: Positions | None, features: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """As `CachedModel._run`. Of more than `MAX_TOKENS` tokens some rows run at a time."""
        B, n = tokens.shape
        if B * n <= MAX_TOKENS:
            logits, hidden, aux, choices = self._rows(tokens, step, last, features)
        else:
            parts = []
            for first in range(0, B, MAX_TOKENS // n):
                rows = slice(first, first + MAX_TOKENS // n)
                own_features = None if features is None else features[rows]
                parts.append(self._rows(tokens[rows], step.of_rows(rows), last and last[rows], own_features, first))
            logits, hidden = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
            aux, choices = _joined([part[2] for part in parts]), _joined([part[3] for part in parts])
        self.model.choices = choices
        if aux is not None:
            self.model.aux_hidden_states = aux
        return logits, hidden

    def _rows(
        self,
        tokens: Tensor,
        step: Step | LevelStep,
        last: Positions | None,
        features: Tensor | None,
        first_row: int = 0,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Logits, hidden states, streams and choices of at most `MAX_TOKENS` tokens. first_row: of the cache's rows, the one
        of the first tokens.
        """
        model, args = self.model, self.args
        B, n = tokens.shape
        if self._bound[0] is not model.cache or self._bound[1] is not model.cos:
            self._bind()
        tokens, (rows, m) = tokens.contiguous(), self._outputs(B, n, last)
        laid_out = self._lay_out(step, B, n)
        hidden = torch.empty((B, n, args.D), dtype=model.dtype)
        logits = torch.empty((B, m, args.V), dtype=model.dtype)
        aux = self._aux_hidden_states(B, n)
        args.B, args.n, args.end, args.outputs, args.first_row = B, n, step.end, B * m, first_row
        args.threads = 1 if self.single_thread else torch.get_num_threads()
        # Of a head that follows another model: what its layers begin with, and what its attention reads.
        inputs, reads = (features, None) if model.entry_norms else model.entry(tokens, features) or (None, None)
        inputs, reads = (None if each is None else each.contiguous() for each in (inputs, reads))
        args.input, args.reads = _at(inputs), _at(reads)
        # Features of the head's own are as wide as its layers; only the target's states need `fc`.
        args.fc = None if inputs is None or inputs.shape[-1] == args.D else _at(self.fc)
        choices = None
        if inputs is None and model.drafted is None:
            choices, args.words = torch.empty((B, m), dtype=torch.long), min(model.vocab_size, args.V)
        args.tokens, args.rows = tokens.data_ptr(), rows.data_ptr()
        args.hidden, args.logits, args.choices = hidden.data_ptr(), logits.data_ptr(), _at(choices)
        if (needed := self.library.scratch_floats(byref(args))) > len(self.scratch):
            self.scratch = torch.empty(needed, dtype=torch.float32)
            args.scratch = self.scratch.data_ptr()
        self.library.forward(byref(args))
        del laid_out, inputs, reads  # the call has read them until here
        return logits, hidden, aux, choices

    def _bind(self) -> None:
        """Take the addresses of the model's cache and tables of positions, which may have moved."""
        model, args = self.model, self.args
        for layer, index in zip(self.layers, self.kept, strict=True):
            keys, values = model.cache.layers[index]
            layer.keys, layer.values = keys.data_ptr(), values.data_ptr()
        args.S = model.cache.slots
        if self._bound[1] is not model.cos:
            self._tables = model.cos.float().contiguous(), model.sin.float().contiguous()
            args.cos, args.sin = (table.data_ptr() for table in self._tables)
        self._bound = model.cache, model.cos
        self._numbers = torch.arange(max(model.cache.slots, MAX_TOKENS * model.cache.batch_size))

    def _lay_out(self, step: Step | LevelStep, B: int, n: int) -> list[Any]:
        """Set what each token sees and where it stands; returns what must live as long as the pass."""
        args = self.args
        if isinstance(step, LevelStep):
            parents = None if step.parents is None else (c_int64 * (B * n))(*chain.from_iterable(step.parents))
            args.positions = args.slots = None
            args.parents = None if parents is None else addressof(parents)
            return [parents]
        positions, slots = self._indices(step.positions, B, n), self._indices(step.slots, B, n)
        args.positions, args.slots = positions.data_ptr(), slots.data_ptr()
        return [positions, slots, *self._masks(step)]

    def _indices(self, index: Tensor | slice, B: int, n: int) -> Tensor:
        """Positions or slots as int64 `[B, n]`."""
        if isinstance(index, slice):
            index = self._numbers[index].expand(B, n)
        return index.contiguous()

    def _outputs(self, B: int, n: int, last: Positions | None) -> tuple[Tensor, int]:
        """Which of all B n tokens get logits, in order, and how many of each row."""
        if last is None:
            return self._numbers, n
        rows = spans(last)
        if B == 1:
            return self._numbers[rows[0].start :], len(rows[0])
        return torch.tensor([row * n + at for row, span in enumerate(rows) for at in span]), len(rows[0])

    def _masks(self, step: Step) -> list[Tensor]:
        """Set each pattern's mask, `[B or 1, n, end]`; returns the masks, which must live as long as the pass."""
        made = {id(mask): mask.contiguous() for mask in step.masks if mask is not None}
        for pattern, mask in enumerate(step.masks):
            self.masks[pattern] = None if mask is None else made[id(mask)].data_ptr()
        self.args.mask_rows = max((len(mask) if mask.dim() == 4 else 1 for mask in made.values()), default=1)
        return list(made.values())

    def _aux_hidden_states(self, B: int, n: int) -> Tensor | None:
        """Memory `[B, n, A D]` for the hidden states before each of the model's A `aux_layers`, side by side."""
        D, collected = self.args.D, self.model.aux_layers
        if collected != self._collected:
            for layer in self.layers:
                layer.aux_hidden_state = None
            self._collected = collected
        if not collected:
            return None
        found = torch.empty((B, n, len(collected) * D), dtype=self.model.dtype)
        self.args.aux_width = len(collected) * D
        for at, index in enumerate(collected):
            layer = self.layers[self.kept.index(index)]
            layer.aux_hidden_state = found.data_ptr() + at * D * found.element_size()
        return found


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    """One after another; None where they are."""
    found = [part for part in parts if part is not None]
    return torch.cat(found) if found else None


def _at(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
