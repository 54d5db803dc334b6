"""What a client and the services of draft and target send each other: the rows of a batch, as arrays one behind the
other.

A message is `MAGIC` and then its arrays in a fixed order, each as one character for its type, the number of its
elements (uint32) and the elements, all little-endian. Types are those of Python's `struct`: B uint8, I uint32, Q
uint64, e float16, f float32, d float64.

A question (`Ask` a row; B rows): sessions Q[B], held I[B], numbers of tokens I[B], tokens I[…], depths I[B], numbers of
drafted tokens I[B], these I[…], temperatures d[B], numbers of uniforms I[B], uniforms f[…], whether a row has
probabilities B[B], V I[1], probabilities e or f […], half B[1], ended sessions Q[…]. An answer (`Answer` a row): known
B[B], numbers of tokens I[B], tokens I[…], whether a row has probabilities B[B], V I[1], probabilities e or f […],
overlaps d[B], reached I[B], and of the model's passes the widths I[…], calls I[…], seconds d[…]. Where a row has
probabilities, it has V for each drafted token.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

from specrig.decoding.types import LEAST_TEMPERATURE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[Any]

MAGIC = b"SRIG1"
MEDIA_TYPE = "application/x-specrig-rows"
PATH = "/v1/rows"
MAX_DRAFT_TOKENS = 6
"""Most tokens that a coordinator asks for in a round."""
WIDEST_DRAFT = 16
"""Most that a service drafts or judges: the largest k of a study."""

Passes: TypeAlias = dict[int, tuple[int, float]]
"""Bare forward passes: width in tokens a row -> (calls, seconds)."""


class WireError(ValueError):
    """Bytes that are no message of this layout; the message says where they cease to be one."""


@dataclass(slots=True)
class Ask:
    """One row of a question. The row's text is what the service holds of its session, cut to `held` tokens, and then
    `tokens`.

    depth: how many tokens a draft service is to draft; 0: it only runs the text. draft: the tokens that a target
    service is to judge.
    uniforms: one for each token to draft, or for each to judge and one more; none at temperature 0.
    q: `[n, V]`, what each of `draft` was drawn from; None: nothing was drawn.
    """

    session: int
    held: int
    tokens: list[int]
    depth: int = 0
    draft: list[int] = field(default_factory=list)
    temperature: float = 0.0
    uniforms: Sequence[float] = ()
    q: Floats | None = None


@dataclass(slots=True)
class Answer:
    """One row of an answer. known: False where the service does not hold the session so far; then the whole text has to
    be sent.

    tokens: the drafted ones; or the accepted ones and then one of the target's own. overlap, reached: see `Verdict`.
    """

    known: bool
    tokens: list[int] = field(default_factory=list)
    q: Floats | None = None
    overlap: float = 0.0
    reached: int = 0


def pack_asks(asks: Sequence[Ask], *, half: bool = False, ended: Sequence[int] = ()) -> bytes:
    """A question. half: a draft service is to draw from, and send, probabilities in half precision. ended: sessions to
    forget.
    """
    return b"".join(
        [
            MAGIC,
            _array("Q", [ask.session for ask in asks]),
            _array("I", [ask.held for ask in asks]),
            *_lists("I", [ask.tokens for ask in asks]),
            _array("I", [ask.depth for ask in asks]),
            *_lists("I", [ask.draft for ask in asks]),
            _array("d", [ask.temperature for ask in asks]),
            *_lists("f", [ask.uniforms for ask in asks]),
            *_probabilities([ask.q for ask in asks]),
            _array("B", [half]),
            _array("Q", ended),
        ]
    )


def unpack_asks(message: bytes) -> tuple[list[Ask], bool, list[int]]:
    """(rows, half, ended sessions) of a question. Raises WireError."""
    read = _Reader(message)
    sessions, held = read.array("Q"), read.array("I")
    tokens, depths, drafts = read.lists("I"), read.array("I"), read.lists("I")
    temperatures, uniforms = read.array("d"), read.lists("f")
    qs = read.probabilities([len(draft) for draft in drafts])
    half, ended = read.array("B"), read.array("Q")
    read.end(rows=[sessions, held, tokens, depths, drafts, temperatures, uniforms, qs], single=half)
    rows = zip(sessions, held, tokens, depths, drafts, temperatures, uniforms, qs, strict=True)
    asks = [Ask(*row) for row in rows]
    for number, ask in enumerate(asks):
        _check(number, ask)
    return asks, bool(half[0]), ended


def pack_answers(answers: Sequence[Answer], passes: Passes) -> bytes:
    """An answer. passes: those of the model since its last one."""
    return b"".join(
        [
            MAGIC,
            _array("B", [answer.known for answer in answers]),
            *_lists("I", [answer.tokens for answer in answers]),
            *_probabilities([answer.q for answer in answers]),
            _array("d", [answer.overlap for answer in answers]),
            _array("I", [answer.reached for answer in answers]),
            _array("I", list(passes)),
            _array("I", [calls for calls, _ in passes.values()]),
            _array("d", [seconds for _, seconds in passes.values()]),
        ]
    )


def unpack_answers(message: bytes) -> tuple[list[Answer], Passes]:
    """(rows, passes) of an answer. Raises WireError."""
    read = _Reader(message)
    known, tokens = read.array("B"), read.lists("I")
    qs = read.probabilities([len(row) for row in tokens])
    overlaps, reached = read.array("d"), read.array("I")
    widths, calls, seconds = read.array("I"), read.array("I"), read.array("d")
    read.end(rows=[known, tokens, qs, overlaps, reached], single=[0])
    rows = zip(map(bool, known), tokens, qs, overlaps, reached, strict=True)
    return [Answer(*row) for row in rows], dict(zip(widths, zip(calls, seconds, strict=False), strict=False))


def distributions(q: Floats) -> Floats:
    """What tokens were drawn from, `[n, V]` float32, from the weights that were sent: rounded ones do not add up to 1,
    `draw` divides by the sum.
    """
    import numpy as np

    if q.dtype != np.float16:
        return q
    weights = q.astype(np.float32)
    return weights / weights.sum(-1, keepdims=True)


def _check(number: int, ask: Ask) -> None:
    """Raise WireError for a row that no service can run."""
    drafted = max(ask.depth, len(ask.draft))
    if not ask.tokens:
        raise WireError(f"row {number} has no new token")
    if drafted > WIDEST_DRAFT:
        raise WireError(f"row {number} has {drafted} draft tokens, the most are {WIDEST_DRAFT}")
    if not 0 <= ask.temperature < float("inf") or 0 < ask.temperature < LEAST_TEMPERATURE:
        raise WireError(
            f"row {number} has temperature {ask.temperature}, which is to be 0 or a finite number from {LEAST_TEMPERATURE:g} up"
        )
    # Beyond its range a number would draw a token that the model does not have.
    if not all(0 <= uniform < 1 for uniform in ask.uniforms):
        raise WireError(f"row {number} has a uniform that is not from 0 up and below 1")
    if ask.q is not None and ask.q.size and not _can_be_drawn_from(ask.q):
        raise WireError(
            f"row {number} has probabilities that nothing can be drawn from: negative, not finite, or all zero"
        )


def _can_be_drawn_from(q: Floats) -> bool:
    """Whether each of the distributions `[n, V]` has finite weights from 0 up, and not only zeros. A NaN passes neither
    comparison.
    """
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        totals = q.sum(-1, dtype=np.float32)
    return bool(q.min() >= 0 and totals.min() > 0 and totals.max() < np.inf)


def _array(kind: str, values: Any) -> bytes:
    import numpy as np

    packed = np.asarray(values, dtype=f"<{_NUMPY[kind]}").ravel()
    return kind.encode() + struct.pack("<I", packed.size) + packed.tobytes()


def _lists(kind: str, rows: Sequence[Any]) -> Iterator[bytes]:
    """The lengths of the rows' lists, and the lists one behind the other."""
    yield _array("I", [len(row) for row in rows])
    yield _array(kind, [value for row in rows for value in row])


def _probabilities(rows: Sequence[Floats | None]) -> Iterator[bytes]:
    """Which rows have some, V, and all of them one behind the other, in the precision that the rows are in."""
    import numpy as np

    there = [row for row in rows if row is not None and len(row)]
    yield _array("B", [row is not None for row in rows])
    yield _array("I", [there[0].shape[1] if there else 0])
    half = bool(there) and there[0].dtype == np.float16
    yield _array("e" if half else "f", np.concatenate(there) if there else [])


_NUMPY = {"B": "u1", "I": "u4", "Q": "u8", "e": "f2", "f": "f4", "d": "f8"}


class _Reader:
    """Reads a message's arrays one after the other."""

    def __init__(self, message: bytes) -> None:
        self.message = message
        self.at = len(MAGIC)
        if message[: self.at] != MAGIC:
            raise WireError(f"a message begins with {MAGIC.decode()}, this one with {message[: self.at]!r}")

    def raw(self, kinds: str) -> Floats:
        """The next array, which has one of the types `kinds`."""
        import numpy as np

        kind = self.message[self.at : self.at + 1].decode("latin-1")
        head = self.message[self.at + 1 : self.at + 5]
        if len(head) < 4 or kind not in kinds:
            raise WireError(f"byte {self.at}: an array of type {' or '.join(kinds)} is to begin here, found {kind!r}")
        (count,) = struct.unpack("<I", head)
        dtype, start = np.dtype(f"<{_NUMPY[kind]}"), self.at + 5
        if start + count * dtype.itemsize > len(self.message):
            raise WireError(f"byte {self.at}: an array of {count} × {dtype.itemsize} bytes runs over the message's end")
        self.at = start + count * dtype.itemsize
        return np.frombuffer(self.message, dtype, count, start)

    def array(self, kind: str) -> list[Any]:
        """The next array as a list."""
        return list(self.raw(kind).tolist())

    def lists(self, kind: str) -> list[list[Any]]:
        """The rows' lists."""
        counts, values = self.array("I"), self.array(kind)
        self._adds_up(sum(counts), len(values))
        return [values[end - count : end] for count, end in zip(counts, accumulate(counts), strict=True)]

    def probabilities(self, counts: Sequence[int]) -> list[Floats | None]:
        """The rows' probabilities; counts: the drafted tokens of each row."""
        there, sizes, values = self.array("B"), self.array("I"), self.raw("ef")
        self._adds_up(1, len(sizes))
        V = sizes[0]
        own = [count if flag else 0 for flag, count in zip(there, counts, strict=False)]
        self._adds_up(sum(own) * V, values.size)
        table = values.reshape(-1, V) if V else values.reshape(0, 0)
        return [
            table[end - count : end] if flag else None
            for flag, count, end in zip(there, own, accumulate(own), strict=False)
        ]

    def end(self, rows: Sequence[Sequence[Any]], single: Sequence[Any]) -> None:
        """Raise WireError unless all arrays with an element a row are of one length and nothing is left over."""
        if len({len(row) for row in rows}) != 1 or len(single) != 1 or self.at != len(self.message):
            raise WireError("its arrays speak of different numbers of rows, or something follows them")

    def _adds_up(self, wanted: int, found: int) -> None:
        if wanted != found:
            raise WireError(f"byte {self.at}: {wanted} elements are announced, {found} are there")
