"""Code compiled for this processor (`compiled.c`), where there is a compiler: products of a few rows, and whole passes
of a few tokens.

Libraries for matrix products are made for many rows. A decoding pass has few, and waits for the weights to be read:
here weights lie in the order of reading, and as many rows as registers hold are multiplied while a weight is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, addressof, c_float, c_int, c_int64, c_void_p
from functools import cache
from typing import Any

import torch
from torch import Tensor

from specrig.runtime import compiler

MAX_TOKENS = 64
"""Most rows of a product, and most tokens of a pass; for more, as in prompts, libraries for large products are better."""
SINGLE_THREAD_BYTES = 6 << 20
"""Bytes of a model's weights up to which one thread computes: a core's own caches nearly hold them, so more threads
only wait."""
SINGLE_THREAD_PRODUCT_BYTES = 1 << 20
"""The same for one product, whose weights other passes have driven out of the caches since."""


@cache
def library() -> Any:
    """The compiled code, or None where there is no compiler or what it makes does not load."""
    loaded = compiler.load(__file__, PASS_TOKENS=MAX_TOKENS)
    if loaded is not None:
        loaded.scratch_floats.restype = loaded.input_bytes.restype = loaded.vector_width.restype = c_int64
        loaded.has_eight_bits.restype = c_int64
        arguments: dict[str, list[Any]] = {
            "forward": [c_void_p],
            "linear": [c_void_p, c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_int64, c_int, c_int, c_int],
            "argmax": [c_void_p, c_void_p, c_int64, c_int64, c_int, c_int],
            "top": [c_void_p, c_void_p, *[c_int64] * 3, c_int, c_int],
            "softmax": [c_void_p, c_void_p, c_int64, c_int64, c_float, c_int, c_int],
            "draw": [c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int],
            "greedy_chain": [*[c_void_p] * 3, *[c_int64] * 3, c_int, c_int],
            "greedy_tree": [*[c_void_p] * 6, *[c_int64] * 5, c_void_p, c_float, c_int, c_int],
            "keep_path": [c_void_p, *[c_int64] * 7, c_void_p, c_int64],
        }
        for name, types in arguments.items():
            function = getattr(loaded, name)
            function.argtypes, function.restype = types, None
    return loaded


@cache
def vector_width() -> int:
    """W, the floats in a vector of the compiled code: 16 with AVX-512, else 8.

    Every width is a multiple of it, but for the number of a product's outputs.
    """
    return int(library().vector_width())


def to_blocks(weight: Tensor) -> Tensor:
    """A weight `[out, in]` in blocks of W outputs, the last padded: `[out / W, in, W]`, bfloat16 `[out / W, in / 2, W,
    2]`.
    """
    out, into = weight.shape
    together = 2 if weight.dtype == torch.bfloat16 else 1  # inputs whose numbers lie side by side
    whole = torch.nn.functional.pad(weight.contiguous(), (0, 0, 0, -out % vector_width()))
    return whole.view(-1, vector_width(), into // together, together).transpose(1, 2).contiguous()


def to_eight_bits(weight: Tensor) -> Tensor:
    """A weight `[out, in]` rounded to 8 bits, each output with a scale of its own, as bytes in blocks of W outputs
    `[out / W, (in + 8) W]`.

    A block holds its weights `[in / 4, W, 4]`, W scales in float32, and 128 times the sum of each output's weights. The sum is
    taken off again where the processor multiplies whole numbers without signs, so that inputs are moved up by 128.
    """
    out, into = weight.shape
    W = vector_width()
    whole = torch.nn.functional.pad(weight.float(), (0, 0, 0, -out % W))
    scales = whole.abs().amax(1).clamp(min=1e-30) / 127
    rounded = (whole / scales.unsqueeze(1)).round().to(torch.int8)
    moved = 128 * rounded.sum(1, dtype=torch.int32)
    blocks = rounded.view(-1, W, into // 4, 4).transpose(1, 2).reshape(-1, W * into)
    parts = (part.view(len(blocks), -1).view(torch.uint8) for part in (blocks, scales, moved))
    return torch.cat(tuple(parts), 1).contiguous()


def supports_eight_bits() -> bool:
    """Whether the processor has instructions for products of 8 bits, and the compiled code knows them."""
    return library() is not None and bool(library().has_eight_bits())


def supports(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether there is compiled code for weights there, of that precision."""
    return device.type == "cpu" and dtype in (torch.float32, torch.bfloat16) and library() is not None


def supports_weight(weight: Tensor, bias: Tensor | None) -> bool:
    """Whether `product` can serve a weight `[out, in]` here."""
    out, into = weight.shape
    return (
        supports(weight.device, weight.dtype)
        and into % vector_width() == 0
        and (bias is None or out % vector_width() == 0)
    )


def product(x: Tensor, blocks: Tensor, bias: Tensor | None, out: int) -> Tensor:
    """`x @ weight.T + bias` of x `[..., in]`, `MAX_TOKENS` rows at most, with the weight `[out, in]` in `blocks` (see
    `to_blocks`), or rounded (see `to_eight_bits`; x and bias are bfloat16 then).
    """
    into = x.shape[-1]
    y = x.new_empty((*x.shape[:-1], out))
    if x.dtype == torch.bfloat16 and library().input_bytes() == 4:  # no instruction multiplies pairs of bfloat16 here
        x = x.float()
    x = x.contiguous()
    threads = 1 if blocks.nbytes <= SINGLE_THREAD_PRODUCT_BYTES else torch.get_num_threads()
    library().linear(
        y.data_ptr(),
        x.data_ptr(),
        x.numel() // into,
        blocks.data_ptr(),
        None if bias is None else bias.data_ptr(),
        into,
        out,
        y.dtype == torch.bfloat16,
        blocks.dtype == torch.uint8,
        threads,
    )
    return y


def argmax(logits: Tensor) -> Tensor:
    """The index of the highest of `[..., V]`, of equals the first: int64 `[...]`."""
    logits = logits.contiguous()
    out = torch.empty(logits.shape[:-1], dtype=torch.int64)
    threads = torch.get_num_threads() if out.numel() > 1 else 1
    V, bf16 = logits.shape[-1], logits.dtype == torch.bfloat16
    library().argmax(out.data_ptr(), logits.data_ptr(), out.numel(), V, bf16, threads)
    return out


def top(logits: Tensor, k: int) -> Tensor:
    """The indices of the k highest of `[..., V]`, best first, of equals the first: int64 `[..., k]`."""
    logits = logits.contiguous()
    indices, V = torch.empty((*logits.shape[:-1], k), dtype=torch.int64), logits.shape[-1]
    rows = logits.numel() // V
    threads = torch.get_num_threads() if rows > 1 else 1
    library().top(indices.data_ptr(), logits.data_ptr(), rows, V, k, logits.dtype == torch.bfloat16, threads)
    return indices


def softmax(logits: Tensor, temperature: float) -> Tensor:
    """Softmax of logits `[..., V]` over a temperature, float32."""
    logits = logits.contiguous()
    probs, V = torch.empty(logits.shape, dtype=torch.float32), logits.shape[-1]
    rows, bf16 = logits.numel() // V, logits.dtype == torch.bfloat16
    library().softmax(probs.data_ptr(), logits.data_ptr(), rows, V, 1 / temperature, bf16, torch.get_num_threads())
    return probs


def draw(probs: Tensor, uniforms: Tensor) -> Tensor:
    """See `decoding.sampling.draw`; probs: float32."""
    probs, uniforms = probs.contiguous(), uniforms.expand(probs.shape[:-1]).double().contiguous()
    tokens, V = torch.empty(probs.shape[:-1], dtype=torch.int64), probs.shape[-1]
    rows = tokens.numel()
    threads = torch.get_num_threads() if rows > 1 else 1
    library().draw(tokens.data_ptr(), probs.data_ptr(), uniforms.data_ptr(), rows, V, threads)
    return tokens


class _Bias(Structure):
    _fields_ = [(name, c_void_p) for name in ("embedding", "blocks", "ids")] + [
        (name, c_int64) for name in ("rank", "eight_bits")
    ]


def bias_blocks(weight: Tensor) -> Tensor | None:
    """A weight `[V, r]` as `greedy_chain` and `greedy_tree` read it (`to_blocks`); None where they cannot."""
    if not supports(weight.device, weight.dtype) or any(size % vector_width() for size in weight.shape):
        return None
    return to_blocks(weight)


def _bias(embedding: Tensor, blocks: Tensor, ids: Tensor | None) -> _Bias:
    """A bias as compiled code takes it; the tensors must live as long as the call that reads them."""
    eight_bits = blocks.dtype == torch.uint8
    return _Bias(
        embedding.data_ptr(), blocks.data_ptr(), None if ids is None else ids.data_ptr(), embedding.shape[1], eight_bits
    )


def greedy_chain(logits: Tensor, bias: tuple[Tensor, Tensor], ids: Tensor | None) -> Tensor:
    """Of logits `[B, k, V]` the indices `[B, k]` of the highest, each but the first with a bias of the token before.

    bias: an embedding `[., r]` and a weight `[V, r]`, in blocks (`bias_blocks`) or rounded (`to_eight_bits`); behind
    token x the bias is the weight's product with x's embedding. ids: `[V]`, which tokens the logits are of; None: all.
    """
    B, k, V = logits.shape
    logits = logits.contiguous()  # named, so that it lives as long as the call reads it
    out, read = torch.empty((B, k), dtype=torch.int64), _bias(*bias, ids)
    bf16, threads = logits.dtype == torch.bfloat16, torch.get_num_threads()
    library().greedy_chain(out.data_ptr(), logits.data_ptr(), addressof(read), B, k, V, bf16, threads)
    return out


def greedy_tree(
    logits: Tensor,
    bias: tuple[Tensor, Tensor] | None,
    ids: Tensor | None,
    least: Sequence[float],
    children: int,
    trust: float,
) -> list[tuple[list[int], list[int], list[float]]]:
    """Trees of the most promising nodes of logits `[B, k, V]` of k levels, each row's best nodes first.

    A node's value is the sum along its path of min(0, log-probability + trust). bias, ids: those of `greedy_chain`.
    least: the lowest chances of the nodes, rising, as many as there are nodes at most. children: of a node at most.

    Returns each row's indices, parents (-1: the root) and values.
    """
    (B, k, V), n = logits.shape, len(least)
    logits = logits.contiguous()
    indices, parents, values, counts = (
        (c_int64 * (B * n))(),
        (c_int64 * (B * n))(),
        (c_float * (B * n))(),
        (c_int64 * B)(),
    )
    read = None if bias is None else _bias(*bias, ids)
    library().greedy_tree(
        *(indices, parents, values, counts, logits.data_ptr(), None if read is None else addressof(read)),
        *(B, k, V, n, children, (c_float * n)(*least), trust),
        logits.dtype == torch.bfloat16,
        torch.get_num_threads(),
    )
    rows = [slice(row * n, row * n + count) for row, count in enumerate(counts)]
    return [(indices[row], parents[row], values[row]) for row in rows]


def keep_path(entries: Tensor, row: int, start: int, path: Sequence[int]) -> None:
    """Of a cache's entries `[layers, B, heads, S, width]` row `row` gets, from slot `start` on, those of the slots
    `path`, which rise, in this order.
    """
    layers, B, heads, S, width = entries.shape
    bytes_each = width * entries.element_size()
    library().keep_path(
        entries.data_ptr(), layers, B, heads, S, bytes_each, row, start, (c_int64 * len(path))(*path), len(path)
    )
