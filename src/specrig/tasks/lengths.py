"""Checks, before a model is loaded, that prompts fit into the target's context. No torch here."""

from __future__ import annotations

from collections.abc import Sequence

from specrig.models import gate, hub
from specrig.models.pair import ModelError, PairFiles
from specrig.tasks.prompts import Prompt
from specrig.tasks.sources import PromptError


def check_lengths(prompts: Sequence[Prompt], task: str, pair: PairFiles, new_tokens: int) -> None:
    """Raise PromptError for a prompt that leaves no room for `new_tokens` in the target's context."""
    context = gate.context(pair)
    if context is None:
        return
    if pair.simulated_acceptance is not None:
        lengths = [len(prompt.text.encode()) for prompt in prompts]
    else:
        try:
            file = hub.fetch(pair.target, "tokenizer.json", pair.target_revision)
        except ModelError:
            return  # a tokenizer in another format: the loop checks what it encodes
        lengths = [
            len(entry.ids) for entry in hub.read_tokenizer(file).encode_batch([prompt.text for prompt in prompts])
        ]
    for prompt, length in zip(prompts, lengths, strict=True):
        if length + new_tokens > context:
            raise PromptError(
                f"prompt {prompt.id!r} of task {task!r} has {length} tokens and {new_tokens} are to follow, "
                f"the context of {pair.target} holds {context}: shorten it, leave it out, or lower max_new_tokens"
            )
