"""The block `traffic:` of a study: which loads its servers are measured under, and the points that follow."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from specrig.cell import Cell
from specrig.settings import Settings, listed, once

OPEN_SLOTS = 32
"""Requests that a server decodes at once where a study names only rates."""
Seconds = Annotated[float, Field(gt=0)]


class Limits(Settings):
    """What a request must keep to count for goodput; null: no such limit."""

    ttft_s: Seconds | None = None
    """Maximum seconds to the first token."""
    tpot_s: Seconds | None = None
    """Maximum seconds for each later token, in the mean of the request."""
    latency_s: Seconds | None = None
    """Maximum seconds of the whole answer."""


class Traffic(Settings):
    """Load on engines that serve: how many requests at once, or how many a second. Method and baseline take turns."""

    concurrency: Annotated[list[Annotated[int, Field(ge=1)]], listed, once] = Field(default_factory=list)
    """Closed loop: this many requests are always in flight."""
    rate: Annotated[list[Seconds], listed, once] = Field(default_factory=list)
    """Open loop: this many requests arrive per second, whether or not the server is ready for them."""
    burstiness: float = Field(1.0, gt=0)
    """Shape of the gamma distribution of the times between arrivals: 1 is a Poisson process, below 1 bursts, far above
    1 an even beat."""
    requests: int = Field(200, ge=1)
    """Requests that count, for each of method and baseline at each load. p95 needs 200, p99 needs 1,000."""
    warmup: int = Field(8, ge=0)
    """Requests at the start of each turn that do not count; at least as many as are in flight at once."""
    turns: int = Field(3, ge=1)
    """How often method and baseline take turns at each load; the requests are divided among the turns."""
    prompts: int = Field(64, ge=1)
    """Different prompts of each task, sent again and again in the same order."""
    timeout_s: Seconds = 120.0
    """A request that gets no token for this long, or is not complete after it, is a counted time-out."""
    goodput: Limits = Limits()
    """Limits of a request that count for goodput."""

    @property
    def of_a_point(self) -> dict[str, Any]:
        """What decides the requests of each point and its server: of the other loads only how many requests the server
        decodes at once, not the limits that tables count by.
        """
        return self.model_dump(exclude={"goodput", "concurrency", "rate"}) | {"slots": self.slots}

    @property
    def slots(self) -> int:
        """Requests that a started server must be able to decode at once."""
        return max([*self.concurrency, OPEN_SLOTS if self.rate else 1])

    def points(self, cell: Cell) -> list[Point]:
        """The loads of a cell."""
        closed = [Point(cell=cell, loop="closed", load=float(value)) for value in self.concurrency]
        return closed + [Point(cell=cell, loop="open", load=value) for value in self.rate]


class Point(BaseModel):
    """A cell under one load. load: requests at once in a closed loop, requests a second in an open one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cell: Cell
    loop: Literal["closed", "open"]
    load: float

    @property
    def slug(self) -> str:
        """Its name in paths, e.g. `code-k4-t0-b1-c16` or `code-k4-t0-b1-r2.5`."""
        return f"{self.cell.slug}-{'c' if self.loop == 'closed' else 'r'}{self.load:g}"

    @property
    def name(self) -> str:
        """Its name for messages."""
        return f"{self.cell.name} with {self.load:g} {'requests at once' if self.loop == 'closed' else 'requests/s'}"
