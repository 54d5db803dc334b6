"""What a GGUF file says of itself: its keys and the names, shapes and types of its tensors. No weight is read.

The format is that of `docs/gguf.md` in ggml. gguf's own reader takes a quarter of a minute for a vocabulary of 262,144
tokens, which every `specrig plan` would wait for.
"""

from __future__ import annotations

import mmap
import struct
from collections import Counter
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

from specrig.models.pair import ModelError

INSTALL = "pip install 'specrig[gguf]'"
START = struct.Struct("<4sIQQ")
"""The letters GGUF, the version, the numbers of tensors and of keys."""
VERSIONS = (2, 3)
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Types of values that are numbers -> their form in `struct`."""
STRING, ARRAY = 8, 9
ALIGNMENT = 32
"""Of tensors, where no key `general.alignment` says otherwise."""
POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class Tensor:
    """shape: the width first, as GGUF writes it; kind: gguf's `GGMLQuantizationType`; begin, size: its bytes in the file."""

    shape: tuple[int, ...]
    kind: Any
    begin: int
    size: int

    @property
    def elements(self) -> int:
        """How many numbers it has."""
        return prod(self.shape)


@dataclass(frozen=True)
class Header:
    """A whole GGUF file of one part.

    model: what the user calls the file; keys: every key of the file with its value, arrays as lists.
    """

    model: str
    file: Path
    keys: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def architecture(self) -> str:
        """As llama.cpp names it."""
        return str(self.keys.get("general.architecture", ""))

    @property
    def rows(self) -> int:
        """Tokens that the embedding has."""
        return self.tensors["token_embd.weight"].shape[1]

    def values(self, name: str) -> list[float]:
        """The numbers of a small tensor."""
        import numpy as np
        from gguf import dequantize

        tensor = self.tensors[name]
        with self.file.open("rb") as opened:
            opened.seek(tensor.begin)
            content = np.frombuffer(opened.read(tensor.size), dtype=np.uint8)
        return [float(value) for value in dequantize(content, tensor.kind).ravel()]

    def stored_type(self) -> str:
        """The type of most of the weights, as GGUF names it, e.g. Q4_1."""
        weights: Counter[str] = Counter()
        for tensor in self.tensors.values():
            weights[tensor.kind.name] += tensor.elements
        return weights.most_common(1)[0][0]

    def refusal(self, reason: str) -> ModelError:
        """The error that refuses the file."""
        return ModelError(f"{self.model}: {reason}")


def read(model: str, file: Path) -> Header:
    """The header of a file. Raises ModelError for one that is no GGUF file, is cut short, is one part of several, was
    written for another byte order, or has weights of a type that cannot be read here.
    """
    if find_spec("gguf") is None or find_spec("accelerate") is None:
        raise ModelError(f"{model}: reading GGUF files needs gguf and accelerate: `{INSTALL}`")
    about = file.stat()
    return _read(model, file, about.st_size, about.st_mtime_ns)


@cache
def _read(model: str, file: Path, size: int, _time: int) -> Header:
    with file.open("rb") as opened:
        _check_start(model, opened.read(START.size), size)
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                keys, tensors = _Content(content).header(model)
            except (struct.error, IndexError, UnicodeDecodeError, OverflowError, MemoryError) as error:
                raise ModelError(f"{model}: cut short or damaged: its header has no end; fetch it again") from error
    header = Header(model, file, keys, tensors)
    if (parts := keys.get("split.count", 1)) > 1:
        raise header.refusal(
            f"part {keys.get('split.no', 0) + 1} of {parts}; join them with llama.cpp's `llama-gguf-split --merge "
            "FIRST-PART WHOLE.gguf` and name that file"
        )
    if (end := max((tensor.begin + tensor.size for tensor in tensors.values()), default=0)) > size:
        raise header.refusal(f"cut short: its header speaks of {end:,} bytes, the file has {size:,}; fetch it again")
    if (unread := _unread_type(header)) is not None:
        raise header.refusal(
            f"its weights of type {unread} cannot be read here; take the file in another quantization (Q4_K_M, Q8_0, …)"
        )
    return header


def _check_start(model: str, start: bytes, size: int) -> None:
    if start.startswith(POINTER[: START.size]):
        raise ModelError(f"{model}: it is a pointer of Git LFS, not the file itself: `git lfs pull` fetches it")
    if start and not b"GGUF".startswith(start[:4]):
        raise ModelError(f"{model}: no GGUF file: it does not begin with the letters GGUF; correct the path")
    if len(start) < START.size:
        raise ModelError(f"{model}: cut short: the file has {size:,} bytes; fetch it again")
    version = START.unpack(start)[1]
    if version not in VERSIONS and int.from_bytes(start[4:8], "big") in VERSIONS:
        raise ModelError(
            f"{model}: written for machines of the other byte order (big-endian); take the little-endian file, or "
            "convert the model again"
        )
    if version not in VERSIONS:
        raise ModelError(
            f"{model}: version {version} of the format is not read, only {' and '.join(map(str, VERSIONS))}; convert "
            "the model again with llama.cpp of today"
        )


class _Content:
    """The bytes of a file, read from the front."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content, self._at = content, 0

    def header(self, model: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The keys and the tensors. Raises ModelError for a type of weights that gguf does not know."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        _, _, tensor_count, key_count = self._numbers("4sIQQ")
        keys = {self._string(): self._value(*self._numbers("I")) for _ in range(key_count)}
        entries = []
        for _ in range(tensor_count):
            name, (dimensions,) = self._string(), self._numbers("I")
            entries.append((name, self._numbers(f"{dimensions}Q"), *self._numbers("IQ")))
        alignment = keys.get("general.alignment", ALIGNMENT)
        data = -(-self._at // alignment) * alignment
        tensors = {}
        for name, shape, kind, offset in entries:
            try:
                elements, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
            except (ValueError, KeyError) as error:
                raise ModelError(
                    f"{model}: the tensor {name} is of type {kind}, which gguf does not know; take the file in another "
                    "quantization (Q4_K_M, Q8_0, …), or a newer gguf"
                ) from error
            tensors[name] = Tensor(shape, GGMLQuantizationType(kind), data + offset, prod(shape) // elements * size)
        return keys, tensors

    def _numbers(self, form: str) -> tuple[Any, ...]:
        found = struct.unpack_from(f"<{form}", self._content, self._at)
        self._at += struct.calcsize(f"<{form}")
        return found

    def _string(self) -> str:
        (length,) = self._numbers("Q")
        end = self._at + length
        if end > len(self._content):
            raise IndexError("a text that does not end")
        text = self._content[self._at : end].decode()
        self._at = end
        return text

    def _strings(self, count: int) -> list[str]:
        """The same for an array, whose 100,000 tokens every plan of a study waits for."""
        content, at, texts = self._content, self._at, []
        length_at = struct.Struct("<Q").unpack_from
        for _ in range(count):
            start = at + 8
            at = start + length_at(content, at)[0]
            texts.append(content[start:at].decode())
        if at > len(content):
            raise IndexError("a text that does not end")
        self._at = at
        return texts

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            inner, count = self._numbers("IQ")
            if inner in NUMBERS:
                return list(self._numbers(f"{count}{NUMBERS[inner]}"))
            return self._strings(count) if inner == STRING else [self._value(inner) for _ in range(count)]
        if kind not in NUMBERS:
            raise IndexError(f"no type {kind}")
        return self._numbers(NUMBERS[kind])[0]


def _unread_type(header: Header) -> str | None:
    """A type of the file's weights that gguf cannot spread out; None: it can all of them."""
    import numpy as np
    from gguf import GGML_QUANT_SIZES, dequantize

    for kind in {tensor.kind for tensor in header.tensors.values()}:
        try:
            dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8), kind)
        except NotImplementedError:
            return str(kind.name)
    return None
