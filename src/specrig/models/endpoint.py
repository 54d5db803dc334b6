"""Servers that already run and hold the models themselves; a study only names their addresses. No torch here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field

from specrig.cell import Cell
from specrig.settings import Allowed, Settings


class Endpoint(Settings):
    """A server that already runs. It was started with one pair, method and k, which requests cannot change."""

    pair: str
    """Row of pairs.tsv whose target it serves; the prompts' token ids come from that target's tokenizer."""
    method: str
    """The method it was started with; `autoregressive` for the baseline, with which the others are compared."""
    k: int = Field(0, ge=0)
    """The k it was started with; 0 for methods that use none."""
    variant: str = ""
    """The variant of the method's options it was started with, as `specrig plan` names it; empty for the defaults."""
    url: Annotated[str, Field(pattern=r"^https?://[^\s]+$"), Allowed("an address that begins with http:// or https://")]
    """The server's address, e.g. `http://gpu1:8000`."""
    engine: str = "server"
    """The engine that sends requests to it: `server` for the OpenAI API, or an engine with its own API."""
    endpoint: Literal["completions", "chat"] = "completions"
    """Which of OpenAI's two APIs the engine `server` uses. `completions` sends token ids. `chat` sends the prompt as one
    message of a user, and the server applies its own chat template."""
    model: str | None = None
    """The name it serves the model under; null: the first that it lists."""
    api_key_env: str | None = None
    """Environment variable that holds its key; the key itself is never written down."""
    fields: dict[str, Any] = Field(default_factory=dict)
    """More fields for each request, e.g. one that turns speculation on or off in a server that can do both."""

    def runs(self, cell: Cell) -> bool:
        """Whether this is the server for `cell`."""
        key = (cell.engine, cell.pair, cell.method, cell.k, cell.variant)
        return (self.engine, self.pair, self.method, self.k, self.variant) == key


def endpoint_of(cell: Cell, servers: Iterable[Endpoint]) -> Endpoint | None:
    """The first of `servers` that runs `cell`; None if there is none."""
    return next((server for server in servers if server.runs(cell)), None)
