"""One request's way between draft and target service: the rounds of `decoding.loop`, with both models elsewhere."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass

from specrig.decoding.loop import stop_at
from specrig.decoding.sampling import Sampler
from specrig.engines.http.remote import Text
from specrig.engines.http.wire import Answer
from specrig.services.app import Sample
from specrig.services.batching import FullError
from specrig.services.link import DraftLink, Link


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request asks for. k: most tokens drafted a round; 0: plain decoding."""

    prompt: Sequence[int]
    max_tokens: int
    temperature: float
    seed: int
    k: int


class Coordinator:
    """Decodes requests side by side, each in rounds of its own, and counts as vLLM counts.

    running: most requests that are decoded at once. queue: most that wait; one more raises FullError.
    """

    def __init__(
        self, target: Link, draft: DraftLink | None, *, eos: Collection[int], context: int, running: int, queue: int
    ) -> None:
        self.target, self.draft, self.eos, self.context = target, draft, frozenset(eos), context
        self.queue, self.waiting, self.running = queue, 0, 0
        self._places = asyncio.Semaphore(running)
        self.counts: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()
        self.accepted_at: Counter[int] = Counter()

    async def decode(self, wanted: Wanted) -> AsyncIterator[list[int]]:
        """The output's tokens as rounds emit them. Raises FullError where too many wait, ServiceError where the target
        fails.
        """
        if self.waiting >= self.queue:
            raise FullError(f"{self.queue} requests wait already")
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        drafts, judged = Text(), Text()
        try:
            self.counts["prompt_tokens"] += len(wanted.prompt)
            async for tokens in self._rounds(wanted, drafts, judged):
                self.counts["generation_tokens"] += len(tokens)
                yield tokens
        finally:
            self.running -= 1
            self._places.release()
            self.target.ended.append(judged.session)
            if self.draft is not None:
                self.draft.ended.append(drafts.session)

    async def _rounds(self, wanted: Wanted, drafts: Text, judged: Text) -> AsyncIterator[list[int]]:
        sampler = Sampler(wanted.temperature, [wanted.seed])

        def uniforms(count: int) -> list[float]:
            return [] if sampler.greedy else sampler.uniforms([count])[0].tolist()

        text, room = list(wanted.prompt), wanted.max_tokens
        # The draft runs the prompt while the target does.
        first = self.target.ask(judged, text, temperature=wanted.temperature, uniforms=uniforms(1))
        opening = self.draft.propose(drafts, text) if self.draft is not None and wanted.k else asyncio.sleep(0)
        answer, _ = await asyncio.gather(first, opening)
        while True:
            emitted = stop_at(answer.tokens, room, self.eos)
            room -= len(emitted)
            text += emitted
            over = "stop" if emitted[-1] in self.eos else "length" if room == 0 else None
            if over is not None:  # counted before the last tokens leave: who reads them looks no further
                self.finished[over] += 1
            yield emitted
            if over is not None:
                return
            draft = await self._propose(drafts, text, wanted, uniforms)
            given = uniforms(len(draft.tokens) + 1)
            answer = await self.target.ask(
                judged, text, draft=draft.tokens, q=draft.q, temperature=wanted.temperature, uniforms=given
            )
            if draft.tokens:
                self._count(len(draft.tokens), min(len(answer.tokens) - 1, len(stop_at(answer.tokens, room, self.eos))))

    async def _propose(
        self, drafts: Text, text: list[int], wanted: Wanted, uniforms: Callable[[int], list[float]]
    ) -> Answer:
        """The draft of a round; an empty one where there is none to be had."""
        depth = min(wanted.k, self.context - len(text))
        if self.draft is None or depth <= 0:
            return Answer(known=True)
        found = await self.draft.propose(
            drafts, text, depth=depth, temperature=wanted.temperature, uniforms=uniforms(depth)
        )
        if found is None:
            self.counts["undrafted"] += 1
        return found or Answer(known=True)

    def _count(self, drafted: int, accepted: int) -> None:
        self.counts["drafts"] += 1
        self.counts["drafted"] += drafted
        self.counts["accepted"] += accepted
        self.accepted_at.update(range(accepted))

    def samples(self) -> list[Sample]:
        """The metrics, under vLLM's names where vLLM has one."""
        counts = self.counts
        totals = [
            ("vllm:spec_decode_num_drafts_total", counts["drafts"]),
            ("vllm:spec_decode_num_draft_tokens_total", counts["drafted"]),
            ("vllm:spec_decode_num_accepted_tokens_total", counts["accepted"]),
            ("vllm:generation_tokens_total", counts["generation_tokens"]),
            ("vllm:prompt_tokens_total", counts["prompt_tokens"]),
            ("specrig:rounds_without_a_draft_total", counts["undrafted"]),
            ("specrig:draft_failures_total", self.draft.failures if self.draft else 0),
        ]
        gauges = [
            ("vllm:num_requests_running", self.running),
            ("vllm:num_requests_waiting", self.waiting),
            ("specrig:draft_available", int(self.draft is not None and self.draft.available)),
        ]
        at = [
            ("vllm:spec_decode_num_accepted_tokens_per_pos_total", f'position="{position}"', "counter", float(count))
            for position, count in sorted(self.accepted_at.items())
        ]
        done = [
            ("vllm:request_success_total", f'finished_reason="{reason}"', "counter", float(count))
            for reason, count in sorted(self.finished.items())
        ]
        return [
            *[(name, "", "counter", float(value)) for name, value in totals],
            *at,
            *done,
            *[(name, "", "gauge", float(value)) for name, value in gauges],
        ]
