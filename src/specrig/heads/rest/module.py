"""The datastore of REST: text that the target wrote, and the order of its suffixes, by which any part of it is found
(He et al., 2311.08252).

The order is a suffix array: the positions of the text, sorted by what stands there. All positions where a given run of
tokens occurs then lie side by side, and two binary searches find the first and the last of them. What followed there,
and how often, is read off the same range.

Example: the text `a b c a b d`, positions 0 to 5, sorted: 0 (a b c), 3 (a b d), 1 (b c), 4 (b d), 2 (c), 5 (d). The run
`a b` occurs in the range from the first to the second of these; one position goes on with c, the other with d.

Checkpoint: config.json of model type "rest" and model.safetensors with `tokens` `[N]` and `order` `[N]`, int32. Each of
the texts ends with the number V, which no token has (V: the vocabulary), so that no run of tokens reaches from one text
into the next.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from transformers import PreTrainedConfig

from specrig.heads.checkpoint import reading
from specrig.heads.likeliest import likeliest
from specrig.runtime.types import DecodingError

if TYPE_CHECKING:
    from pathlib import Path

    from specrig.runtime.model import CachedModel

SORTED = 64
"""The order sorts suffixes by so many of their first tokens at least: a match and what is drafted behind it are shorter
together.
"""


class Span(NamedTuple):
    """All positions where one run of tokens occurs: `order[first:last]`; length: the run's tokens."""

    first: int
    last: int
    length: int


class Datastore:
    """Finds every occurrence of a run of tokens in N tokens of text."""

    def __init__(self, tokens: NDArray[np.int32], order: NDArray[np.int32], vocabulary: int) -> None:
        self.tokens, self.order, self.vocabulary = tokens, order, vocabulary

    @cached_property
    def _bytes(self) -> bytes:
        """The text with four bytes a token, the high one first: runs then compare as their bytes do, which is fast."""
        return self.tokens.astype(">u4").tobytes()

    @cached_property
    def _positions(self) -> memoryview:
        """`order` as Python's own integers."""
        return np.ascontiguousarray(self.order).data

    @cached_property
    def _text(self) -> memoryview:
        """`tokens` as Python's own integers."""
        return np.ascontiguousarray(self.tokens).data

    def find(self, run: Sequence[int]) -> Span:
        """Where a run of at least one token occurs; an empty span if nowhere."""
        key_bytes, size, text = np.array(run, ">u4").tobytes(), 4 * len(run), self._bytes

        def here(position: int) -> bytes:
            return text[4 * position : 4 * position + size]

        first = bisect_left(self._positions, key_bytes, key=here)
        return Span(first, bisect_right(self._positions, key_bytes, first, key=here), len(run))

    def longest_suffix(self, text: Sequence[int], longest: int, shortest: int) -> Span | None:
        """Where the longest suffix of `text` occurs that has between `shortest` and `longest` tokens; None where none
        of these does.
        """
        # If a suffix occurs, so does every shorter one: the longest that does is found by halving.
        low, high, best = shortest, min(longest, len(text)), None
        while low <= high:
            size = (low + high) // 2
            found = self.find(text[len(text) - size :])
            if found.first < found.last:
                low, best = size + 1, found
            else:
                high = size - 1
        return best

    def tree(
        self, text: Sequence[int], longest: int, shortest: int, nodes: int, depth: int
    ) -> tuple[list[int], list[int]]:
        """(tokens, parents) of the tree of at most `nodes` nodes and `depth` levels that followed the longest suffix of
        `text`; both empty where none is known.
        """
        span = self.longest_suffix(text, longest, shortest)
        return ([], []) if span is None else likeliest(span, self.followers, nodes, depth)[1:]

    def followers(
        self, span: Span, times: float = 1, besides: Collection[int] = ()
    ) -> Iterator[tuple[float, int, int, Span]]:
        """The tokens that follow a run: (share of its occurrences, `first`, token, where the run and the token occur).

        times: only those that follow so often at least, and the tokens `besides`. The shares of a run that ends a text
        now and then sum to less than 1.
        """
        if span.last == span.first + 1:  # nearly every run that is long: its position alone says what follows
            token = self._text[self._positions[span.first] + span.length]
            if token < self.vocabulary and (times <= 1 or token in besides):
                yield 1.0, span.first, token, Span(span.first, span.last, span.length + 1)
            return
        after = self.tokens[self.order[span.first : span.last] + span.length]  # rising, since the order sorts by it
        begins = np.ones(len(after), bool)
        np.not_equal(after[1:], after[:-1], out=begins[1:])
        starts = np.flatnonzero(begins)
        ends = np.append(starts[1:], len(after))
        found = after[starts]
        kept = found < self.vocabulary
        if times > 1:
            kept &= (ends - starts >= times) | np.isin(found, list(besides))
        for token, start, end in zip(found[kept].tolist(), starts[kept].tolist(), ends[kept].tolist(), strict=True):
            followers_span = Span(span.first + start, span.first + end, span.length + 1)
            yield (end - start) / len(after), followers_span.first, token, followers_span


def suffix_order(tokens: NDArray[np.int32], depth: int = SORTED) -> NDArray[np.int32]:
    """The positions of `tokens` `[N]`, sorted by at least `depth` tokens that stand there; among equals the earlier
    position first.

    Prefix doubling (Manber and Myers, 1993): from ranks by w tokens follow those by 2w, from each position's and the
    one w behind it.
    """
    N, width = len(tokens), 1
    rank = np.unique(tokens, return_inverse=True)[1].astype(np.int64)
    while width < depth and N and rank.max() < N - 1:
        behind = np.zeros(N, np.int64)  # 0: the text is over
        behind[: max(N - width, 0)] = rank[width:] + 1
        rank = np.unique(rank * (N + 1) + behind, return_inverse=True)[1]
        width *= 2
    return np.argsort(rank, kind="stable").astype(np.int32)


def datastore(texts: Iterable[Sequence[int]], vocabulary: int) -> Datastore:
    """The datastore of these texts."""
    tokens = np.array([token for text in texts for token in (*text, vocabulary)], np.int32)
    return Datastore(tokens, suffix_order(tokens), vocabulary)


def initialise(folder: Path, target: Any, seed: int) -> None:
    """Write a datastore of drawn tokens for a target with this configuration."""
    vocabulary = target.get_text_config(decoder=True).vocab_size
    drawn = np.random.default_rng(seed).integers(0, vocabulary, (8, 512))
    save(folder, datastore(drawn.tolist(), vocabulary))


def save(folder: Path, store: Datastore) -> None:
    """Write config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    config = PreTrainedConfig(vocab_size=store.vocabulary)
    config.model_type = "rest"
    config.save_pretrained(folder)
    save_file({"tokens": store.tokens, "order": store.order}, folder / "model.safetensors", metadata={"format": "pt"})


def load(folder: Path, target: CachedModel) -> Datastore:
    """Read a folder for this target. Raises DecodingError where it holds no datastore of the target's vocabulary."""
    with reading(folder, "datastore of REST"):
        V = getattr(PreTrainedConfig.from_pretrained(folder), "vocab_size", None)
        found = load_file(folder / "model.safetensors")
    tokens, order = found.get("tokens"), found.get("order")
    if V is None or tokens is None or order is None or tokens.shape != order.shape or tokens.ndim != 1:
        raise DecodingError(
            f"{folder}: not a datastore of REST: it needs vocab_size, and tokens and order of one length"
        )
    if target.config.vocab_size != V:
        raise DecodingError(f"{folder}: the datastore is of {V} tokens, the target has {target.config.vocab_size}")
    # What is padding for the target, and the end of a text, follows nothing.
    return Datastore(tokens, order, min(V, target.vocab_size))
