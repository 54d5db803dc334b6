"""The target service's work: one pass over a batch of texts with their drafts, and the verdicts of the one verifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from specrig.decoding.sampling import Sampler
from specrig.decoding.types import Draft
from specrig.decoding.verify import verify
from specrig.engines.http.wire import Answer, Ask, WireError, distributions
from specrig.runtime.device import padded
from specrig.services.sessions import Seat, Sessions

if TYPE_CHECKING:
    from specrig.runtime.model import CachedModel

BATCH = 8


class Target:
    """Judges drafts with `decoding.verify`; a row without a draft takes a plain decoding step."""

    name = "target"

    def __init__(self, model: CachedModel, sessions: int, context: int) -> None:
        self.model = model
        self.sessions = Sessions(model, sessions, context)

    def check(self, asks: Sequence[Ask]) -> None:
        """Raise WireError for a row that cannot be judged."""
        for number, ask in enumerate(asks):
            self.sessions.check(number, ask)
            if ask.temperature > 0 and len(ask.uniforms) < len(ask.draft) + 1:
                raise WireError(
                    f"row {number} has {len(ask.uniforms)} uniforms, to judge {len(ask.draft)} tokens takes one more"
                )
            if ask.q is not None and ask.q.shape != (len(ask.draft), self.model.vocab_size):
                raise WireError(
                    f"row {number} has probabilities of {ask.q.shape[-1]} tokens, the model has {self.model.vocab_size}"
                )

    @torch.inference_mode()
    def step(self, asks: Sequence[Ask], half: bool) -> list[Answer]:
        """Judge each row's draft."""
        answers = [Answer(known=False) for _ in asks]
        seated = [
            (at, ask, seat) for at, (ask, seat) in enumerate(zip(asks, self.sessions.seat(asks), strict=True)) if seat
        ]
        seated.sort(key=lambda entry: entry[2].row)
        if seated:
            seats = [seat for _, _, seat in seated]
            self.sessions.run_all_but_last(seats, lacking=1)
            for (at, _, _), answer in zip(seated, self._judge([ask for _, ask, _ in seated], seats), strict=True):
                answers[at] = answer
        return answers

    def _judge(self, asks: Sequence[Ask], seats: Sequence[Seat]) -> list[Answer]:
        """One pass over each row's last token and draft, n + 1 tokens: logits [B, n + 1, V]."""
        lengths = [len(ask.draft) for ask in asks]
        n, device = max(lengths), self.model.device
        tokens = padded([[seat.text[-1], *ask.draft] for seat, ask in zip(seats, asks, strict=True)], n + 1, device)
        uniforms = torch.zeros(len(asks), n + 1)
        for row, ask in enumerate(asks):
            uniforms[row, : len(ask.uniforms)] = torch.tensor(ask.uniforms[: n + 1])
        sampler = Sampler.with_uniforms([ask.temperature for ask in asks], uniforms.to(device))
        self.sessions.use(seats)
        logits, _ = self.model.forward(tokens)
        q = None if sampler.greedy or not n else self._drawn_from(asks, tokens[:, 1:])
        verdict = verify(Draft(tokens[:, 1:], probs=q, lengths=lengths), logits, sampler)
        for seat, accepted in zip(seats, verdict.tokens, strict=True):
            seat.length = len(seat.text) + len(accepted) - 1  # the last token, and the accepted ones
            seat.text = seat.text + accepted[:-1]
        rows = zip(verdict.tokens, verdict.overlap, verdict.reached, strict=True)
        return [Answer(True, tokens, None, overlap, reached) for tokens, overlap, reached in rows]

    def _drawn_from(self, asks: Sequence[Ask], drafted: torch.Tensor) -> torch.Tensor:
        """What each drafted token was drawn from, `[B, n, V]`: one-hot where the row does not say."""
        q = torch.zeros(*drafted.shape, self.model.vocab_size).scatter_(-1, drafted.cpu().unsqueeze(-1), 1.0)
        for row, ask in enumerate(asks):
            if ask.q is not None and len(ask.draft):
                q[row, : len(ask.draft)] = torch.from_numpy(distributions(ask.q).copy())
        return q.to(drafted.device)
