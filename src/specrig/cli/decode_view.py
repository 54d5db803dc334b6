"""Generations that grow on a terminal: each token coloured by who wrote it, acceptance and speed as they stand. No
torch here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from specrig.reporting.documents.samples import Source, Writing

if TYPE_CHECKING:
    from specrig.decoding.types import Generation, Round

STYLES: dict[Source, str] = {"draft": "green underline", "target": ""}
"""How the tokens of each writer look; underlined too, for terminals without colour."""
BELOW = 6
"""Lines of a terminal that the text leaves free while it grows."""


@dataclass
class Side:
    """One generation as far as it has come. `decode_s` is None until it has ended."""

    method: str
    writing: Writing
    changed: Callable[[], None] = lambda: None
    rounds: list[Round] = field(default_factory=list)
    decode_s: float | None = None
    ttft_s: float | None = None
    stop: str = ""
    _began: float = 0.0
    _showing_s: float = 0.0

    def tell(self, row: int, tokens: Sequence[int], one: Round | None) -> None:
        """Take the tokens of a round (`decoding.types.TokenCallback`). The time that showing them takes does not count as
        decoding.
        """
        began = perf_counter()
        if one is None:
            self._began = began
        else:
            self.rounds.append(one)
        accepted = 0 if one is None else min(one.accepted, len(tokens))
        for place, token in enumerate(tokens):
            self.writing.add(token, "draft" if place < accepted else "target", len(self.rounds))
        self.changed()
        self._showing_s += perf_counter() - began

    def end(self, generation: Generation) -> None:
        """The generation is over: its times are known, and bytes that became no character are shown as they are."""
        self.decode_s = max(0.0, generation.decode_s - self._showing_s)
        self.ttft_s, self.stop = generation.ttft_s, generation.stop
        self.changed()

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second of decoding, the first token and its prefill left out; None before there are any."""
        spent = self.decode_s if self.decode_s is not None else perf_counter() - self._began - self._showing_s
        count = len(self.writing.tokens) - 1
        return count / spent if count > 0 and spent > 0 else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted of all drafted tokens; None where nothing was drafted."""
        drafted = sum(one.drafted for one in self.rounds)
        return sum(one.accepted for one in self.rounds) / drafted if drafted else None

    @property
    def acceptance_length(self) -> float | None:
        """Tokens a verification pass; a last round that a stop rule shortened is left out. None before there is any."""
        full = [one.emitted for one in self.rounds if not one.cut]
        return sum(full) / len(full) if full else None

    def text(self) -> Text:
        """What is written, coloured by who wrote it."""
        return Text.assemble(*((span.text, STYLES[span.source]) for span in self.writing.spans))

    def status(self) -> str:
        """The figures in one line."""
        parts = [f"{len(self.writing.tokens)} tokens in {len(self.rounds)} passes"]
        if (rate := self.acceptance_rate) is not None:
            parts[0] += f", {self.acceptance_length:.2f} a pass" if self.acceptance_length else ""
            drafted, accepted = (sum(getattr(one, name) for one in self.rounds) for name in ("drafted", "accepted"))
            parts.append(f"{accepted} of {drafted} drafted accepted ({rate:.0%})")
        if (speed := self.tokens_per_s) is not None:
            parts.append(f"{speed:.0f} tokens/s" if speed >= 10 else f"{speed:.2g} tokens/s")
        return " · ".join(parts)

    def described(self) -> dict[str, Any]:
        """Everything about it, as JSON holds it."""
        return {
            "method": self.method,
            "text": "".join(span.text for span in self.writing.spans),
            "tokens": self.writing.tokens,
            "spans": [{"text": span.text, "source": span.source, "round": span.round} for span in self.writing.spans],
            "rounds": [
                {
                    "drafted": one.drafted,
                    "depth": one.depth,
                    "accepted": one.accepted,
                    "emitted": one.emitted,
                    "cut": one.cut,
                }
                for one in self.rounds
            ],
            "stop": self.stop,
            "acceptance_rate": self.acceptance_rate,
            "acceptance_length": self.acceptance_length,
            "tokens_per_s": self.tokens_per_s,
            "ttft_s": self.ttft_s,
            "decode_s": self.decode_s,
        }


class Page:
    """Shows sides next to each other while they grow. Where the output is no terminal it shows them once, when all is
    done.
    """

    def __init__(self, console: Console, sides: Sequence[Side]) -> None:
        self.console, self.sides = console, sides
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="visible")
        for side in sides:
            side.changed = self._show

    def __enter__(self) -> Page:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.console.is_terminal:
            self._live.update(self._whole(), refresh=True)
            self._live.stop()
        else:
            self.console.print(self._whole())

    def _show(self) -> None:
        if self.console.is_terminal:
            self._live.update(self._whole(most=max(1, self.console.height - BELOW)), refresh=True)

    def _whole(self, most: int | None = None) -> RenderableType:
        """All sides. most: lines of text that fit, so that the end is shown while it grows; None: all."""
        width = (self.console.width - 3 * (len(self.sides) - 1)) // len(self.sides)
        if len(self.sides) == 1:
            return _column(self.sides[0], self.console, width, most)
        table = Table(box=None, show_header=True, pad_edge=False, padding=(0, 3, 0, 0))
        for side in self.sides:
            table.add_column(side.method, width=width, overflow="fold")
        table.add_row(*(_column(side, self.console, width, most) for side in self.sides))
        return table


def _column(side: Side, console: Console, width: int, most: int | None) -> Group:
    text: RenderableType = side.text()
    if most is not None:
        text = Text("\n").join(side.text().wrap(console, width)[-most:])
    return Group(text, Text(f"\n{side.status()}", style="dim"))
