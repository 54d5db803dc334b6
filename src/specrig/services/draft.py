"""The draft service's work: chains for a batch of texts, each with its own temperature and random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from specrig.decoding.drafters.draft_model import DraftModel
from specrig.decoding.sampling import Sampler
from specrig.decoding.types import Context
from specrig.engines.http.wire import Answer, Ask, WireError
from specrig.services.sessions import Seat, Sessions

if TYPE_CHECKING:
    from specrig.runtime.model import CachedModel

BATCH = 32


class Draft:
    """Runs `decoding.drafters.draft_model` over the rows of a batch."""

    name = "draft"

    def __init__(self, model: CachedModel, sessions: int, context: int) -> None:
        self.model = model
        self.sessions = Sessions(model, sessions, context)
        self.drafter = DraftModel(DraftModel.Options(), None)  # type: ignore[arg-type]  # it is given its model here
        self.drafter.model = model

    def check(self, asks: Sequence[Ask]) -> None:
        """Raise WireError for a row that cannot be drafted for."""
        for number, ask in enumerate(asks):
            self.sessions.check(number, ask)
            if ask.temperature > 0 and len(ask.uniforms) < ask.depth:
                raise WireError(f"row {number} has {len(ask.uniforms)} uniforms for {ask.depth} tokens to draw")

    @torch.inference_mode()
    def step(self, asks: Sequence[Ask], half: bool) -> list[Answer]:
        """Draft for each row; rows of depth 0 are only brought up to date."""
        answers = [Answer(known=False) for _ in asks]
        seated = [
            (at, ask, seat) for at, (ask, seat) in enumerate(zip(asks, self.sessions.seat(asks), strict=True)) if seat
        ]
        for at, _, _ in seated:
            answers[at].known = True
        self.sessions.run_all_but_last([seat for _, _, seat in seated], lacking=8)
        self.sessions.run_all_but_last([seat for _, ask, seat in seated if not ask.depth], lacking=1)
        drafting = sorted((entry for entry in seated if entry[1].depth), key=lambda entry: entry[2].row)
        if drafting:
            self._draft(drafting, answers, half)
        return answers

    def _draft(self, rows: Sequence[tuple[int, Ask, Seat]], answers: list[Answer], half: bool) -> None:
        seats, depths = [seat for _, _, seat in rows], [ask.depth for _, ask, _ in rows]
        texts, k = [list(seat.text) for seat in seats], max(depths)
        # Uniforms [B, k]; those of greedy rows, and those behind a row's depth, mean nothing.
        uniforms = torch.zeros(len(rows), k)
        for row, (_, ask, _) in enumerate(rows):
            uniforms[row, : len(ask.uniforms)] = torch.tensor(ask.uniforms[:k])
        sampler = Sampler.with_uniforms(
            [ask.temperature for _, ask, _ in rows], uniforms.to(self.model.device), half=half
        )
        self.sessions.use(seats)
        draft = self.drafter.propose(Context(texts, [False] * len(rows), sampler, depths), k)
        tokens = draft.tokens.tolist()
        q = None if draft.probs is None else draft.probs.to(torch.float16 if half else torch.float32).cpu().numpy()
        for row, (at, ask, seat) in enumerate(rows):
            answers[at].tokens = tokens[row][: ask.depth]
            answers[at].q = q[row, : ask.depth] if q is not None and ask.temperature > 0 else None
            seat.text, seat.length = texts[row] + tokens[row][:-1], len(texts[row]) + k - 1
