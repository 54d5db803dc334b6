"""The models behind the draft and the target service, and the texts that they hold in their caches.

Each text has a session and a row of the cache. The row that was not used for longest gives way to a new text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from specrig.decoding.drafters.draft_model import DraftModel
from specrig.decoding.sampling import Sampler
from specrig.decoding.types import Context, Draft
from specrig.decoding.verify import verify
from specrig.runtime.device import padded
from specrig.services.protocol import WIDEST_DRAFT, ProtocolError, RowOutput, RowRequest, distributions

if TYPE_CHECKING:
    from specrig.runtime.model import CachedModel


@dataclass(slots=True)
class Session:
    """A text's row. text: all tokens known of it, drafted or accepted ones included; the cache holds the first
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
        self._sessions: OrderedDict[int, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def end(self, sessions: Sequence[int]) -> None:
        """Forget these texts."""
        for session in sessions:
            self._sessions.pop(session, None)

    def check(self, number: int, row: RowRequest) -> None:
        """Raise ProtocolError for tokens that the model does not have, and for a text that is too long for a row."""
        model, length = self.model, row.num_cached + len(row.tokens)
        V = model.vocab_size if model.order is None else len(model.order)
        if (largest := max([*row.tokens, *row.draft])) >= V:
            raise ProtocolError(f"row {number} holds token {largest}, the model has {V}: are both of one vocabulary?")
        if length > self.context:
            raise ProtocolError(f"row {number} has {length} tokens, there is room for {self.context} (--context)")

    def open(self, rows: Sequence[RowRequest]) -> list[Session | None]:
        """Each row's session, its text brought up to what the row says and its cache rolled back to what still holds.

        None where the text is not known so far, or where another row of the batch is of the same session.
        """
        found: list[Session | None] = []
        requested, taken = {row.session for row in rows}, set[int]()
        for row in rows:
            session = None if row.session in taken else self._known(row)
            if session is None and row.session not in taken and row.num_cached == 0:
                session = self._sessions[row.session] = Session(self._free(requested))
            if session is not None:
                taken.add(row.session)
                self._sessions.move_to_end(row.session)
                # What was drafted ahead and has been accepted stands in the cache already.
                agreed = row.num_cached
                for old, new in zip(session.text[row.num_cached :], row.tokens, strict=False):
                    if old != new:
                        break
                    agreed += 1
                session.text = session.text[: row.num_cached] + row.tokens
                # The last token is always run: its logits are needed.
                session.length = min(session.length, agreed, len(session.text) - 1)
            found.append(session)
        return found

    def use(self, sessions: Sequence[Session]) -> None:
        """The model's next passes are over these rows."""
        self.model.cache = self._cache.select_rows(
            [session.row for session in sessions], [session.length for session in sessions]
        )

    def run_all_but_last(self, sessions: Sequence[Session], lacking: int) -> None:
        """Run the texts of those rows that lack more than `lacking` tokens up to the last token, in passes of their
        own.
        """
        late = [session for session in sessions if len(session.text) - session.length > lacking]
        # New texts together; each that goes on alone, since the widest pass behind the longest context need not fit the
        # cache.
        new = [session for session in late if not session.length]
        for group in [new, *([session] for session in late if session.length)]:
            if group:
                self.use(group)
                self.model.catch_up([session.text for session in group], [False] * len(group), hold_last=True)
                for session in group:
                    session.length = len(session.text) - 1
                self.model.watch.clear()  # prefill is no decoding step

    def _known(self, row: RowRequest) -> Session | None:
        session = self._sessions.get(row.session)
        return session if session is not None and row.num_cached <= len(session.text) else None

    def _free(self, requested: set[int]) -> int:
        """A free row, the lowest; else that of the session which was used longest ago and is not in this batch."""
        if len(self._sessions) < self.rows:
            return min(set(range(self.rows)) - {session.row for session in self._sessions.values()})
        oldest = next(session for session in self._sessions if session not in requested)
        return self._sessions.pop(oldest).row


class Worker(ABC):
    """A model that runs batches of rows."""

    name: str

    def __init__(self, model: CachedModel, sessions: int, context: int) -> None:
        self.model = model
        self.sessions = Sessions(model, sessions, context)
        self.ended = deque[int]()
        """Sessions that clients have ended. The next `step` forgets them: the one that runs now may use their rows."""

    def check(self, rows: Sequence[RowRequest]) -> None:
        """Raise ProtocolError for a row that cannot be run."""
        for number, row in enumerate(rows):
            self.sessions.check(number, row)
            if row.temperature > 0 and len(row.uniforms) < (needed := self.uniforms_needed(row)):
                raise ProtocolError(f"row {number} has {len(row.uniforms)} uniforms, it needs {needed}")
            if row.q is not None and row.q.shape[1] != self.model.vocab_size:
                V = self.model.vocab_size
                raise ProtocolError(f"row {number} has probabilities of {row.q.shape[1]} tokens, the model has {V}")

    @torch.inference_mode()
    def step(self, rows: Sequence[RowRequest], half: bool) -> list[RowOutput]:
        """Run a batch. half: draw from, and return, probabilities in float16."""
        while self.ended:
            self.sessions.end([self.ended.popleft()])
        outputs = [RowOutput(known=False) for _ in rows]
        opened = enumerate(zip(rows, self.sessions.open(rows), strict=True))
        known = sorted(((at, row, session) for at, (row, session) in opened if session), key=lambda found: found[2].row)
        if known:
            numbers, ours, sessions = zip(*known, strict=True)
            for at, output in zip(numbers, self.run(ours, sessions, half), strict=True):
                outputs[at] = output
        return outputs

    @abstractmethod
    def uniforms_needed(self, row: RowRequest) -> int:
        """How many random numbers a row takes above temperature 0."""

    @abstractmethod
    def run(self, rows: Sequence[RowRequest], sessions: Sequence[Session], half: bool) -> list[RowOutput]:
        """The outputs of rows whose texts are known, in the order of the cache's rows."""

    def sampler(self, rows: Sequence[RowRequest], n: int, half: bool) -> Sampler:
        """Each row with its own temperature and n uniforms; those that a row lacks are never looked at."""
        uniforms = torch.zeros(len(rows), n)
        for number, row in enumerate(rows):
            uniforms[number, : len(row.uniforms)] = torch.tensor(row.uniforms[:n])
        return Sampler.with_uniforms([row.temperature for row in rows], uniforms.to(self.model.device), half=half)


class DraftWorker(Worker):
    """Runs `decoding.drafters.draft_model`; rows of depth 0 are only brought up to date."""

    name = "draft"

    def __init__(self, model: CachedModel, sessions: int, context: int) -> None:
        super().__init__(model, sessions, context)
        self.drafter = DraftModel(DraftModel.Options(), None)  # type: ignore[arg-type]  # it is given its model here
        self.drafter.model = model

    def uniforms_needed(self, row: RowRequest) -> int:
        """One for each token to draft."""
        return row.depth

    def run(self, rows: Sequence[RowRequest], sessions: Sequence[Session], half: bool) -> list[RowOutput]:
        """Draft for each row."""
        outputs = [RowOutput(known=True) for _ in rows]
        self.sessions.run_all_but_last(sessions, lacking=8)
        idle = [session for row, session in zip(rows, sessions, strict=True) if not row.depth]
        self.sessions.run_all_but_last(idle, lacking=1)
        drafting = [at for at, row in enumerate(rows) if row.depth]
        if drafting:
            ours, theirs = [rows[at] for at in drafting], [sessions[at] for at in drafting]
            for at, output in zip(drafting, self._draft(ours, theirs, half), strict=True):
                outputs[at] = output
        return outputs

    def _draft(self, rows: Sequence[RowRequest], sessions: Sequence[Session], half: bool) -> list[RowOutput]:
        texts, depths = [list(session.text) for session in sessions], [row.depth for row in rows]
        k = max(depths)
        self.sessions.use(sessions)
        draft = self.drafter.propose(Context(texts, [False] * len(rows), self.sampler(rows, k, half), depths), k)
        tokens = draft.tokens.tolist()
        q = None if draft.probs is None else draft.probs.to(torch.float16 if half else torch.float32).cpu().numpy()
        outputs = []
        for at, (row, session) in enumerate(zip(rows, sessions, strict=True)):
            own = q[at, : row.depth] if q is not None and row.temperature > 0 else None
            outputs.append(RowOutput(True, tokens[at][: row.depth], own))
            session.text, session.length = texts[at] + tokens[at][:-1], len(texts[at]) + k - 1
        return outputs


class TargetWorker(Worker):
    """Verifies drafts with `decoding.verify`; a row without a draft takes a plain decoding step."""

    name = "target"

    def uniforms_needed(self, row: RowRequest) -> int:
        """One for each token to verify, and one for the target's own."""
        return len(row.draft) + 1

    def run(self, rows: Sequence[RowRequest], sessions: Sequence[Session], half: bool) -> list[RowOutput]:
        """One pass over each row's last token and draft, n + 1 tokens: logits [B, n + 1, V]."""
        self.sessions.run_all_but_last(sessions, lacking=1)
        lengths = [len(row.draft) for row in rows]
        n, device = max(lengths), self.model.device
        texts = [[session.text[-1], *row.draft] for session, row in zip(sessions, rows, strict=True)]
        tokens = padded(texts, n + 1, device)
        sampler = self.sampler(rows, n + 1, half=False)
        self.sessions.use(sessions)
        logits, _ = self.model.forward(tokens)
        q = None if sampler.greedy or not n else self._drawn_from(rows, tokens[:, 1:])
        verdict = verify(Draft(tokens[:, 1:], probs=q, lengths=lengths), logits, sampler)
        for session, emitted in zip(sessions, verdict.tokens, strict=True):
            session.length = len(session.text) + len(emitted) - 1  # the last token, and the accepted ones
            session.text = session.text + emitted[:-1]
        return [RowOutput(True, emitted) for emitted in verdict.tokens]

    def _drawn_from(self, rows: Sequence[RowRequest], drafted: torch.Tensor) -> torch.Tensor:
        """What each drafted token was drawn from, `[B, n, V]`: one-hot where the row does not say."""
        q = torch.zeros(*drafted.shape, self.model.vocab_size).scatter_(-1, drafted.cpu().unsqueeze(-1), 1.0)
        for number, row in enumerate(rows):
            if row.q is not None and len(row.draft):
                q[number, : len(row.draft)] = torch.from_numpy(distributions(row.q).copy())
        return q.to(drafted.device)
