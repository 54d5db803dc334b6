"""Variants of a task, by name: `chat@turn2` is the second turn of its conversations, `chat@4096` its requests behind
text, 4096 tokens with the output. No torch here.

A variant is a task like any other: it has cells, records, rows of tables. Only its prompts are made from its task's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

SIGN = "@"
"""Between the name of a task and what tells its variant apart; no name in tasks.tsv has it."""
_PATTERN = re.compile(rf"(?P<task>.+){SIGN}(turn(?P<turn>\d+)|(?P<context>\d+))")


@dataclass(frozen=True, slots=True)
class Variant:
    """task: the row of tasks.tsv. turn: from 1; 0 for a task without turns. context: in tokens; 0 for no text in front."""

    task: str
    turn: int = 0
    context: int = 0


def variant_of(name: str) -> Variant:
    """What the name of a task says; a name without `SIGN` is the task itself."""
    found = _PATTERN.fullmatch(name)
    return Variant(found["task"], int(found["turn"] or 0), int(found["context"] or 0)) if found else Variant(name)


def variants(task: str, turns: int, contexts: Sequence[int] = ()) -> list[str]:
    """The names of the tasks that a study measures for a row: one for each turn of its conversations, or each context."""
    if contexts:
        return [f"{task}{SIGN}{context}" for context in contexts]
    return [f"{task}{SIGN}turn{turn}" for turn in range(1, turns + 1)] if turns > 1 else [task]
