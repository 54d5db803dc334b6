"""Puts requests behind text, so that prompt and output together have a given length. No torch here.

Random tokens would overstate the throughput of methods that copy or route by content; this is text as people write it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace

from specrig.tasks.prompts import Prompt
from specrig.tasks.sources import PromptError


def behind_text(
    prompts: Sequence[Prompt], task: str, texts: Sequence[str], room: int, count: Callable[[Prompt], int]
) -> list[Prompt]:
    """The prompts, each behind as many words of `texts` as fit: at most `room` tokens in all.

    Each prompt gets another passage, cut at its beginning. So a longer context ends as a shorter one does. count: the
    tokens of a prompt as the engine encodes it. Raises PromptError for a prompt that has more tokens by itself, and for
    texts that are too short.
    """
    found = []
    for number, prompt in enumerate(prompts):
        turn = (number + 1) % len(texts)
        passage = "\n\n".join([*texts[turn:], *texts[:turn]])
        if count(prompt) > room:
            raise PromptError(
                f"prompt {prompt.id!r} of task {task!r} has {count(prompt)} tokens, its context leaves room for {room}: "
                "give a longer context, or lower max_new_tokens"
            )
        if (held := count(_cut(prompt, passage, 0))) < room:
            raise PromptError(
                f"task {task!r}: context_text holds {held} tokens, its context needs {room}: name a longer file"
            )
        # Words from whose beginning the passage is taken; behind the last, nothing of it.
        starts = [match.start() for match in re.finditer(r"\S+", passage)] + [len(passage)]
        first = bisect_left(starts, True, key=lambda start: count(_cut(prompt, passage, start)) <= room)
        found.append(_cut(prompt, passage, starts[first]))
    return found


def _cut(prompt: Prompt, passage: str, start: int) -> Prompt:
    return replace(prompt, text="\n\n".join(filter(None, (passage[start:], prompt.text))))
