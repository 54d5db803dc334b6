"""Shows generations as they grow: each token coloured by who wrote it, with acceptance and speed. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from specrig.report.documents.samples import Source, Writing

if TYPE_CHECKING:
    from specrig.decoding.types import Generation, Round

STYLES: dict[Source, str] = {"draft": "green", "target": "underline"}
"""Style of the tokens of each writer, as in the report; underlined for terminals without colour."""
MARGIN = 6
"""Lines of a terminal that growing text leaves free."""


@dataclass
class LiveGeneration:
    """One generation so far. decode_s: None until it has ended."""

    method: str
    writing: Writing
    changed: Callable[[], None] = lambda: None
    rounds: list[Round] = field(default_factory=list)
    decode_s: float | None = None
    ttft_s: float | None = None
    stop: str = ""
    _began: float = 0.0
    _display_s: float = 0.0

    def on_tokens(self, row: int, tokens: Sequence[int], one: Round | None) -> None:
        """Take the tokens of a round, a `TokenCallback`. The time to show them does not count as decoding."""
        began = perf_counter()
        if one is None:
            self._began = began
        else:
            self.rounds.append(one)
        accepted = 0 if one is None else min(one.accepted, len(tokens))
        for position, token in enumerate(tokens):
            self.writing.add(token, "draft" if position < accepted else "target", len(self.rounds))
        self.changed()
        self._display_s += perf_counter() - began

    def end(self, generation: Generation) -> None:
        """Take the times of the finished generation; bytes that became no character are shown as they are."""
        self.decode_s = max(0.0, generation.decode_s - self._display_s)
        self.ttft_s, self.stop = generation.ttft_s, generation.stop
        self.changed()

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second of decoding, the first token and its prefill left out; None before there are any."""
        spent = self.decode_s if self.decode_s is not None else perf_counter() - self._began - self._display_s
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
        """The text so far, coloured by who wrote it."""
        return Text.assemble(*((span.text, STYLES[span.source]) for span in self.writing.spans))

    def status(self) -> str:
        """Counts, acceptance and speed in one line."""
        parts = [f"{len(self.writing.tokens)} tokens in {len(self.rounds)} passes"]
        if (rate := self.acceptance_rate) is not None:
            parts[0] += f", {self.acceptance_length:.2f} a pass" if self.acceptance_length else ""
            drafted, accepted = (sum(getattr(one, name) for one in self.rounds) for name in ("drafted", "accepted"))
            parts.append(f"{accepted} of {drafted} drafted accepted ({rate:.0%})")
        if (speed := self.tokens_per_s) is not None:
            parts.append(f"{speed:.0f} tokens/s" if speed >= 10 else f"{speed:.2g} tokens/s")
        return " · ".join(parts)

    def as_values(self) -> dict[str, Any]:
        """All of it as values for JSON."""
        return {
            "method": self.method,
            "text": "".join(span.text for span in self.writing.spans),
            "tokens": self.writing.tokens,
            "spans": [{"text": span.text, "source": span.source, "round": span.round} for span in self.writing.spans],
            "rounds": [
                {name: getattr(one, name) for name in ("drafted", "depth", "accepted", "emitted", "cut")}
                for one in self.rounds
            ],
            "stop": self.stop,
            "acceptance_rate": self.acceptance_rate,
            "acceptance_length": self.acceptance_length,
            "tokens_per_s": self.tokens_per_s,
            "ttft_s": self.ttft_s,
            "decode_s": self.decode_s,
        }


class GenerationView:
    """Shows generations next to each other while they grow; where the output is no terminal, once at the end."""

    def __init__(self, console: Console, generations: Sequence[LiveGeneration]) -> None:
        self.console, self.generations = console, generations
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="visible")
        for generation in generations:
            generation.changed = self._show

    def __enter__(self) -> GenerationView:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.console.is_terminal:
            self._live.update(self._rendered(), refresh=True)
            self._live.stop()
            return
        for each in self.generations:
            heading = [Text(f"{each.method}:", style="bold")] if len(self.generations) > 1 else []
            self.console.print(*heading, each.text(), Text(f"\n{each.status()}\n"), sep="\n", soft_wrap=True)

    def _show(self) -> None:
        if self.console.is_terminal:
            self._live.update(self._rendered(most=max(1, self.console.height - MARGIN)), refresh=True)

    def _rendered(self, most: int | None = None) -> RenderableType:
        """All generations. most: show so many last lines of text; None: all."""
        width = (self.console.width - 3 * (len(self.generations) - 1)) // len(self.generations)
        if len(self.generations) == 1:
            return _column(self.generations[0], self.console, width, most)
        table = Table(box=None, show_header=True, pad_edge=False, padding=(0, 3, 0, 0))
        for each in self.generations:
            table.add_column(each.method, width=width, overflow="fold")
        table.add_row(*(_column(each, self.console, width, most) for each in self.generations))
        return table


def _column(generation: LiveGeneration, console: Console, width: int, most: int | None) -> Group:
    text: RenderableType = generation.text()
    if most is not None:
        text = Text("\n").join(generation.text().wrap(console, width)[-most:])
    return Group(text, Text(f"\n{generation.status()}", style="dim"))
