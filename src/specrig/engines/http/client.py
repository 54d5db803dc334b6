"""What engines behind HTTP share: a completion with the times of its stream, and how an engine asks for it.

The client measures the times, from sending a request to each read, so they include the network. Token ids are the
server's own; text is never tokenized again.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

from specrig.cell import Cell
from specrig.decoding.types import Counts, Generation
from specrig.engines.base import EngineError, TokenizerEngine
from specrig.engines.http import counters
from specrig.http_client import CONNECTIONS, Client, ServerError
from specrig.models import hub
from specrig.models.endpoint import Endpoint
from specrig.models.pair import PairFiles

STREAMED = 0.25
"""Where fewer reads than this share of an answer's rounds brought its tokens, something between gathers them."""
GATHERED = (
    "answers arrive in a few pieces, so there is no time per token and no speedup: let the server, and each proxy before "
    "it, send every token at once (nginx: proxy_buffering off)"
)


@dataclass(slots=True)
class Completion:
    """One completion. arrivals: (seconds since the request was sent, tokens that had arrived by then), growing; events
    that one read brought have one arrival. events: how many events held tokens; 0 for an answer that was not streamed,
    whose times are the server's own. notes: what its figures suffer from.
    """

    tokens: list[int] = field(default_factory=list)
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    stop: Literal["eos", "length"] = "length"
    counts: Counts | None = None
    events: int = 0
    notes: list[str] = field(default_factory=list)

    def note_arrival(self, seconds: float) -> None:
        """Note that the tokens since the last arrival, if any, came at `seconds`."""
        if len(self.tokens) > (self.arrivals[-1][1] if self.arrivals else 0):
            self.events += 1
            if self.arrivals and self.arrivals[-1][0] == seconds:
                self.arrivals.pop()
            self.arrivals.append((seconds, len(self.tokens)))

    def gathered(self, k: int) -> bool:
        """Whether its tokens came in fewer reads than `STREAMED` of its rounds, so that the times between them are not
        the server's. Where nobody counted the rounds, each emitted at most k + 1 tokens.
        """
        rounds = self.counts.rounds if self.counts is not None else (len(self.tokens) - 1) / (k + 1)
        return bool(self.events) and len(self.arrivals) - 1 < STREAMED * rounds


def generations_of(replies: Sequence[Completion], k: int) -> list[Generation]:
    """Generations of a batch that was sent at once; times are the batch's.

    `ttft_s` ends when each row has its first token, so that no row's prefill counts as decoding; `decode_s` runs from
    there to the last token. Tokens that came before have no measured time, so the time of the others is scaled to all.
    Where a row was not streamed round by round, nothing is timed as decoding: all tokens count as prefill's, which lasts
    until the last one.
    """
    first = max(reply.arrivals[0][0] for reply in replies)
    last = max(reply.arrivals[-1][0] for reply in replies)
    tokens = sum(len(reply.tokens) - 1 for reply in replies)
    together = sum(max(count for at, count in reply.arrivals if at <= first) - 1 for reply in replies)
    gathered = any(reply.gathered(k) for reply in replies)
    notes = dict.fromkeys([*([GATHERED] if gathered else []), *(note for reply in replies for note in reply.notes)])
    untimed = gathered or tokens == together
    if untimed:
        first = last
    return [
        Generation(
            tokens=reply.tokens,
            stop=reply.stop,
            rounds=[],
            overlap=0.0,
            reached=0,
            ttft_s=first,
            prefill_s=first,
            decode_s=(last - first) * (tokens / (tokens - together) if tokens > together else 1.0),
            counts=reply.counts,
            prefill_tokens=len(reply.tokens) if untimed else 1,
            notes=list(notes),
        )
        for reply in replies
    ]


class HttpEngine(TokenizerEngine):
    """Sends token ids to a server, a batch at once, one request a prompt."""

    serves = True
    in_process = False
    limit_s: float | None = None
    """The longest time of a streamed answer, for clients that are made from now on."""

    def __init__(self, pair: PairFiles, *, device: str = "cpu", threads: int | None = None) -> None:
        super().__init__(pair, device=device, threads=threads)
        self.tokenizer = hub.tokenizer(pair.target, pair.target_revision)
        self._clients: dict[tuple[str, str | None], Client] = {}
        self._said: set[tuple[str, str]] = set()

    @abstractmethod
    def request_completion(
        self, cell: Cell, prompt: Sequence[int], *, max_new_tokens: int, seed: int, alone: bool
    ) -> Completion:
        """The completion of one prompt. alone: no other request runs, so the server's counters count this prompt."""

    def environment(self) -> dict[str, Any]:
        """See `Engine`; also what the servers that the study names say of themselves."""
        known = super().environment()
        mine = [server for server in self.pair.servers if server.engine == self.name]
        if mine:
            known["engine"]["servers"] = {
                " ".join(filter(None, (server.method, server.variant, f"k={server.k}"))): self.described(server)
                for server in mine
            }
        return known

    def described(self, server: Endpoint) -> dict[str, Any]:
        """What a server that the study names says of itself."""
        return {}

    def ready(self, cell: Cell) -> None:
        """Start the cell's server where needed, before any time is measured."""

    @property
    def beside(self) -> bool:
        """Whether the servers of a method and its baseline run at the same time."""
        return True

    def stream(self, cell: Cell, prompt: Sequence[int], *, max_new_tokens: int, seed: int) -> Completion:
        """The completion of one prompt among others, with the arrival of each token. Call `ready` before."""
        return self.request_completion(cell, prompt, max_new_tokens=max_new_tokens, seed=seed, alone=False)

    def counters(self, cell: Cell) -> counters.Counters:
        """What the cell's server has counted of its speculation so far; empty if it does not say."""
        return counters.Counters()

    def ended(self, cell: Cell, within_s: float = 0.2) -> str:
        """How the cell's server ended that this engine had started; empty where it still runs after `within_s`."""
        return ""

    def generate(
        self, cell: Cell, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, seeds: Sequence[int]
    ) -> list[Generation]:
        """See `Engine`."""
        if not prompts:
            return []
        self.ready(cell)

        alone = len(prompts) == 1

        def request_completion(prompt: Sequence[int], seed: int) -> Completion:
            try:
                reply = self.request_completion(cell, prompt, max_new_tokens=max_new_tokens, seed=seed, alone=alone)
            except ServerError as error:
                if reason := self.ended(cell, within_s=1.0):
                    raise EngineError(reason) from error
                raise
            if not reply.tokens:
                raise EngineError(f"an answer of the server for {cell.name} held no token")
            if len(reply.tokens) > max_new_tokens or (len(reply.tokens) < max_new_tokens and reply.stop == "length"):
                kind = "longer" if len(reply.tokens) > max_new_tokens else "shorter"
                reply.notes.append(f"an answer was {kind} than asked: {len(reply.tokens)} tokens, not {max_new_tokens}")
            return reply

        if alone:
            return self._warned(cell, generations_of([request_completion(prompts[0], seeds[0])], cell.k))
        with ThreadPoolExecutor(max_workers=min(len(prompts), CONNECTIONS)) as pool:
            return self._warned(cell, generations_of(list(pool.map(request_completion, prompts, seeds)), cell.k))

    def _warned(self, cell: Cell, generations: list[Generation]) -> list[Generation]:
        """The generations; what each cell suffers from is said once."""
        for note in generations[0].notes:
            if (cell.name, note) not in self._said:
                self._said.add((cell.name, note))
                print(f"{cell.name}: {note}", file=sys.stderr)
        return generations

    def client(self, url: str, endpoint: Endpoint | None = None) -> Client:
        """The client of an address and a key, kept so that no request pays for a new connection."""
        key_env = endpoint.api_key_env if endpoint else None
        if (url, key_env) not in self._clients:
            self._clients[url, key_env] = Client(url, key_env=key_env, limit_s=self.limit_s)
        return self._clients[url, key_env]

    def peak_memory_mb(self) -> float:
        """0: the memory is the server's."""
        return 0.0

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            client.session.close()
