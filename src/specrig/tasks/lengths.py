"""Checks, before a model is loaded, that prompts fit into the target's context. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specrig.errors import first_line
from specrig.models import gate, hub
from specrig.models.pair import ModelError, PairFiles
from specrig.runtime.rotary import crossing
from specrig.tasks.prompts import Prompt
from specrig.tasks.sources import PromptError


def counter(pair: PairFiles) -> Callable[[Sequence[str]], list[int]]:
    """What counts the tokens of texts, a byte each for random weights. Raises ModelError without a tokenizer.json."""
    if pair.random_weights:
        return lambda texts: [len(text.encode()) for text in texts]
    tokenizer = hub.read_tokenizer(hub.fetch(pair.target, "tokenizer.json", pair.target_revision))

    def count(texts: Sequence[str]) -> list[int]:
        try:
            return [len(entry.ids) for entry in tokenizer.encode_batch(list(texts))]
        except Exception as error:  # the library has no type of its own
            raise PromptError(f"the tokenizer of {pair.target} cannot encode a prompt ({first_line(error)})") from error

    return count


def check_lengths(prompts: Sequence[Prompt], task: str, pair: PairFiles, new_tokens: int) -> None:
    """Raise PromptError for a prompt that leaves no room for `new_tokens` in the target's context."""
    context = gate.context(pair)
    if context is None:
        return
    switch = gate.rotary_switch(pair)
    if not pair.random_weights:
        try:
            hub.fetch(pair.target, "tokenizer.json", pair.target_revision)
        except ModelError:
            return  # a tokenizer in another format: the loop checks what it encodes
    lengths = counter(pair)([prompt.text for prompt in prompts])
    for prompt, length in zip(prompts, lengths, strict=True):
        if length + new_tokens > context:
            raise PromptError(
                f"prompt {prompt.id!r} of task {task!r} has {length} tokens and {new_tokens} are to follow, "
                f"the context of {pair.target} holds {context}: shorten it, leave it out, or lower max_new_tokens"
            )
        if (reason := crossing(switch, length, new_tokens)) is not None:
            raise PromptError(f"prompt {prompt.id!r} of task {task!r}: {reason}")
