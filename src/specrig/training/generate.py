"""Text that a model writes to learn from: many texts side by side, one token each a pass.

A text that is finished gives its row to the next one at once, so no row waits for a longer one (continuous batching,
Orca, OSDI 2022). Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from specrig.decoding.sampling import argmax
from specrig.heads.base import TrainingError
from specrig.heads.teacher import product_dtype, read_model
from specrig.runtime.model import CachedModel
from specrig.runtime.transformers_model import cached_model
from specrig.runtime.types import DecodingError

CATCH_UP = 8
"""A row that lacks more tokens than these in the cache gets them in a pass before the others go on."""
TOGETHER = {"cpu": 1, "cuda": 1 << 14}
"""Tokens of such a pass, but for one of a single row: a GPU that runs one row waits for its host (not timed)."""
BLOCK = 256
"""Tokens of the vocabulary whose probabilities are summed together before one token is looked for among them."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text that the model is to write next."""

    context: list[int]
    """All tokens before it."""
    room: int
    """Most tokens that it may have."""
    ends: Callable[[list[int]], bool]
    """Whether the tokens written so far are all."""
    temperature: float
    top_p: float = 1.0
    """Only the fewest most likely tokens that have this probability together are drawn."""


Result = TypeVar("Result")
Script = Generator[Piece, list[int], Result]
"""Decides what is written, piece by piece: yields a `Piece`, receives its tokens, returns what it made of them."""


class Writer:
    """A model that writes."""

    def __init__(self, folder: Path, where: torch.device) -> None:
        """Raises TrainingError for a model that cannot run over a key/value cache."""
        model = read_model(folder, product_dtype(where)).to(where)
        try:
            self.target: CachedModel = cached_model(model, device=where)
        except DecodingError as error:
            raise TrainingError(f"{folder}: cannot write text with this model: {error}") from error
        self.target.replay = None  # recorded passes read the rows that they were recorded with

    @torch.inference_mode()
    def write(
        self, scripts: Iterable[Script[Result]], seeds: Iterable[int], together: int, longest: int
    ) -> Iterator[tuple[int, Result]]:
        """Yield each script's number and what it returned, in the order in which they end.

        seeds: of each script's own random stream, so that its text does not depend on its neighbours, but for rounding.
        together: texts side by side. longest: most tokens of a text. The same call writes the same texts again.
        """
        self.target.choose_tables([1], longest - 1)
        self.target.start(together, longest + 1)
        cache, rows = self.target.cache, list[_Row[Result]]()
        waiting = enumerate(zip(scripts, seeds, strict=False))
        while True:
            while len(rows) < together and (entry := next(waiting, None)) is not None:
                number, (script, seed) = entry
                row = _Row(number, script, np.random.Generator(np.random.Philox(seed)))
                if row.advance(None):
                    rows.append(row)
                else:
                    yield number, row.result
            if not rows:
                return
            self._catch_up(rows)
            self.target.cache = cache.select_rows(range(len(rows)), [row.held for row in rows])
            logits, _ = self.target.forward(torch.tensor([[row.text[row.held]] for row in rows]).to(self.target.device))
            for row in rows:
                row.held += 1
            ready = [at for at, row in enumerate(rows) if row.held == len(row.text)]
            tokens = sample(logits[ready, 0], [rows[at].piece for at in ready], [rows[at].stream for at in ready])
            for at, token in reversed(list(zip(ready, tokens, strict=True))):
                row = rows[at]
                if row.take(token):
                    continue
                yield row.number, row.result
                # The last row moves to the free one, so that those that are left lie side by side.
                last = rows.pop()
                if last is not row:
                    cache.copy_row(len(rows), at, last.held)
                    rows[at] = last

    def _catch_up(self, rows: Sequence[_Row[Result]]) -> None:
        """Run what long contexts lack, but for the last token; rows that lack about as much go together."""
        cache = self.target.cache
        lacking = {at: len(row.text) - row.held - 1 for at, row in enumerate(rows)}
        long = sorted((at for at in lacking if lacking[at] >= CATCH_UP), key=lambda at: lacking[at])
        while long:
            width = lacking[long[-1]]
            count = max(1, TOGETHER[self.target.device.type] // width)
            # Shorter ones are filled up, where there is room: what lies behind a row's context is overwritten later.
            group = sorted([at for at in long if rows[at].held + width <= cache.slots][-count:])
            long = [at for at in long if at not in group]
            self.target.cache = cache.select_rows(group, [rows[at].held for at in group])
            tokens = [rows[at].text[rows[at].held : -1] + [0] * (width - lacking[at]) for at in group]
            self.target.forward(torch.tensor(tokens).to(self.target.device), last=[lacking[at] - 1 for at in group])
            for at in group:
                rows[at].held += lacking[at]
        self.target.cache = cache
        self.target.watch.clear()


class _Row(Generic[Result]):
    """A text in writing. The cache holds the first `held` tokens of `text`."""

    piece: Piece
    result: Result

    def __init__(self, number: int, script: Script[Result], stream: np.random.Generator) -> None:
        self.number, self.script, self.stream = number, script, stream
        self.text: list[int] = []
        self.held = 0

    def take(self, token: int) -> bool:
        """Add a token; False when the script has ended."""
        self.text.append(token)
        written = self.text[len(self.piece.context) :]
        return self.advance(written) if len(written) >= self.piece.room or self.piece.ends(written) else True

    def advance(self, written: list[int] | None) -> bool:
        """Go on to the script's next piece; False when it has ended. What its context shares with the text stays in the
        cache.
        """
        try:
            self.piece = next(self.script) if written is None else self.script.send(written)
        except StopIteration as end:
            self.result = end.value
            return False
        context = self.piece.context
        same = next((at for at, (a, b) in enumerate(zip(self.text, context, strict=False)) if a != b), None)
        shared = min(len(self.text), len(context)) if same is None else same
        self.held, self.text = min(self.held, shared, len(context) - 1), list(context)
        return True


def sample(logits: Tensor, pieces: Sequence[Piece], streams: Sequence[np.random.Generator]) -> list[int]:
    """A token for each row of `[R, V]` at its piece's temperature and top-p, from its own stream.

    Sums run over blocks of the vocabulary, so that only one block's are formed token by token.
    """
    found = [0] * len(pieces)
    greedy = [at for at, piece in enumerate(pieces) if piece.temperature == 0]
    if greedy:
        for at, token in zip(greedy, argmax(logits[greedy]).tolist(), strict=True):
            found[at] = token
    left = [at for at, piece in enumerate(pieces) if piece.temperature > 0]
    if not left:
        return found
    temperatures = torch.tensor([[pieces[at].temperature] for at in left], device=logits.device)
    probs = torch.softmax(logits[left].float() / temperatures, -1)
    if short := -probs.shape[-1] % BLOCK:
        probs = torch.nn.functional.pad(probs, (0, short))
    sums = probs.view(len(left), -1, BLOCK).sum(-1).double().cumsum(-1)
    while left:
        uniforms = torch.tensor([streams[at].random() for at in left], dtype=torch.float64, device=logits.device)
        tokens = _draw(probs, sums, uniforms)
        # A token is outside of the nucleus where those that are likelier have all its probability: draw again.
        again = [n for n, at in enumerate(left) if pieces[at].top_p < 1]
        if again:
            nuclei = probs[again]
            above = torch.where(nuclei > nuclei.gather(1, tokens[again].unsqueeze(1)), nuclei, 0.0).sum(-1).tolist()
            again = [n for n, likelier in zip(again, above, strict=True) if likelier >= pieces[left[n]].top_p]
        for n, token in enumerate(tokens.tolist()):
            found[left[n]] = token
        if not again:
            break
        left, probs, sums = [left[n] for n in again], probs[again], sums[again]
    return found


def _draw(probs: Tensor, sums: Tensor, uniforms: Tensor) -> Tensor:
    """By inverse CDF: the block whose cumulative sum exceeds the threshold, then the token within it; int64 `[R]`."""
    thresholds = (uniforms * sums[:, -1]).unsqueeze(1)
    block = torch.searchsorted(sums, thresholds, right=True).clamp(max=sums.shape[1] - 1)
    before = torch.where(block > 0, sums.gather(1, (block - 1).clamp(min=0)), 0.0)
    inside = probs.view(len(probs), -1, BLOCK).gather(1, block.unsqueeze(2).expand(-1, -1, BLOCK)).squeeze(1)
    inside = inside.double().cumsum(-1)
    # Just below the block's own sum, which rounding may have made smaller: no token of probability 0 is drawn.
    rest = torch.minimum(thresholds - before, inside[:, -1:] * (1 - 1e-12))
    return (block * BLOCK + torch.searchsorted(inside, rest, right=True).clamp(max=BLOCK - 1)).squeeze(1)
