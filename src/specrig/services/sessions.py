"""The texts that a model of a service holds in its cache, one row each. The row that was not used for longest gives way
to a new text.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from specrig.engines.http.wire import WIDEST_DRAFT, Ask, WireError
from specrig.runtime.model import CachedModel


@dataclass(slots=True)
class Seat:
    """A session's row. text: all tokens known of it, drafted or accepted ones included; the cache holds the first
    `length` of them.
    """

    row: int
    text: list[int] = field(default_factory=list)
    length: int = 0


class Sessions:
    """Cache rows of one model, found by session."""

    def __init__(self, model: CachedModel, rows: int, context: int) -> None:
        """rows: most texts that are held. context: most tokens of a text, drafted ones not counted."""
        model.replay = None  # a recorded pass reads the rows that it was recorded with
        model.start(rows, context + WIDEST_DRAFT + 1)
        self.model, self.rows, self.context = model, rows, context
        self._cache = model.cache
        self._seats: OrderedDict[int, Seat] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seats)

    def end(self, sessions: Sequence[int]) -> None:
        """Forget these texts."""
        for session in sessions:
            self._seats.pop(session, None)

    def check(self, number: int, ask: Ask) -> None:
        """Raise WireError for tokens that the model does not have, and for a text that is too long for a row."""
        V = self.model.vocab_size
        if (largest := max([*ask.tokens, *ask.draft])) >= V:
            raise WireError(f"row {number} holds token {largest}, the model has {V}: are both of one vocabulary?")
        if ask.held + len(ask.tokens) > self.context:
            raise WireError(
                f"row {number} has {ask.held + len(ask.tokens)} tokens, there is room for {self.context} (--context)"
            )

    def seat(self, asks: Sequence[Ask]) -> list[Seat | None]:
        """Each row's seat, its text brought up to what the row says and its cache rolled back to what still holds.

        None where the text is not known so far, or where another row of the batch is of the same session.
        """
        found: list[Seat | None] = []
        asked, taken = {ask.session for ask in asks}, set[int]()
        for ask in asks:
            seat = None if ask.session in taken else self._known(ask)
            if seat is None and ask.session not in taken and ask.held == 0:
                seat = self._seats[ask.session] = Seat(self._free(asked))
            if seat is not None:
                taken.add(ask.session)
                self._seats.move_to_end(ask.session)
                # What was drafted ahead and has been accepted stands in the cache already.
                agreed = ask.held
                for old, new in zip(seat.text[ask.held :], ask.tokens, strict=False):
                    if old != new:
                        break
                    agreed += 1
                seat.text = seat.text[: ask.held] + ask.tokens
                seat.length = min(
                    seat.length, agreed, len(seat.text) - 1
                )  # the last token is always run: its logits are wanted
            found.append(seat)
        return found

    def use(self, seats: Sequence[Seat]) -> None:
        """The model's next passes are over these rows."""
        self.model.cache = self._cache.select_rows([seat.row for seat in seats], [seat.length for seat in seats])

    def run_all_but_last(self, seats: Sequence[Seat], lacking: int) -> None:
        """Run the texts of those rows that lack more than `lacking` tokens up to the last token, in a pass of their
        own.
        """
        late = [seat for seat in seats if len(seat.text) - seat.length > lacking]
        # New texts together; each that goes on alone, since the widest pass behind the longest context need not fit the
        # cache.
        for group in [[seat for seat in late if not seat.length], *([seat] for seat in late if seat.length)]:
            if group:
                self.use(group)
                self.model.catch_up([seat.text for seat in group], [False] * len(group), hold_last=True)
                for seat in group:
                    seat.length = len(seat.text) - 1
                self.model.watch.clear()  # prefill is no decoding step

    def _known(self, ask: Ask) -> Seat | None:
        seat = self._seats.get(ask.session)
        return seat if seat is not None and ask.held <= len(seat.text) else None

    def _free(self, asked: set[int]) -> int:
        """A free row, the lowest; else that of the session which was used longest ago and is not asked about now."""
        if len(self._seats) < self.rows:
            return min(set(range(self.rows)) - {seat.row for seat in self._seats.values()})
        oldest = next(session for session in self._seats if session not in asked)
        return self._seats.pop(oldest).row
