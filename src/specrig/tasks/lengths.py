"""Which prompts fit into the target's context, before a model is loaded: the others are left out, in every run. No torch
here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specrig.errors import first_line
from specrig.models import gate, gguf, hub
from specrig.models.pair import ModelError, PairFiles
from specrig.runtime.rotary import crossing
from specrig.tasks.prompts import Prompt
from specrig.tasks.sources import PromptError

AROUND = 8
"""Tokens that a tokenizer may put around a text, such as the one that begins it."""


def counter(pair: PairFiles) -> Callable[[Sequence[str]], list[int]]:
    """What counts the tokens of texts, a byte each for random weights. Raises ModelError without a tokenizer.json; a GGUF
    file needs none.
    """
    if pair.random_weights:
        return lambda texts: [len(text.encode()) for text in texts]
    if gguf.is_gguf(pair.target):
        tokenizer = gguf.tokenizer(pair.target)
    else:
        tokenizer = hub.read_tokenizer(hub.fetch(pair.target, "tokenizer.json", pair.target_revision))

    def count(texts: Sequence[str]) -> list[int]:
        try:
            return [len(entry.ids) for entry in tokenizer.encode_batch(list(texts))]
        except Exception as error:  # the library has no type of its own
            raise PromptError(f"the tokenizer of {pair.target} cannot encode a prompt ({first_line(error)})") from error

    return count


def too_long(prompts: Sequence[Prompt], pair: PairFiles, new_tokens: int) -> dict[str, str]:
    """Id of each prompt that leaves no room for `new_tokens` in the target's context -> why."""
    context, switch = gate.context(pair), gate.rotary_switch(pair)
    longest = max((len(prompt.text.encode()) for prompt in prompts), default=0)
    # A token is a byte at least; some stand around a text.
    if context is None or longest + AROUND + new_tokens <= min(context, switch or context):
        return {}
    try:
        count = counter(pair)
    except ModelError:
        return {}  # a tokenizer in another format: the loop checks what it encodes
    reasons: dict[str, str] = {}
    for prompt, length in zip(prompts, count([prompt.text for prompt in prompts]), strict=True):
        if length + new_tokens > context:
            reasons[prompt.id] = (
                f"it has {length} tokens and {new_tokens} are to follow, the context of {pair.target} holds {context}"
            )
        elif (reason := crossing(switch, length, new_tokens)) is not None:
            reasons[prompt.id] = reason
    return reasons


def fitting(prompts: Sequence[Prompt], task: str, pair: PairFiles, new_tokens: int) -> list[Prompt]:
    """The prompts that leave room for `new_tokens` in the target's context. Raises PromptError if none does."""
    reasons = too_long(prompts, pair, new_tokens)
    if prompts and len(reasons) == len(prompts):
        name, reason = next(iter(reasons.items()))
        all_of_them = f" (and none of the {len(prompts)} prompts fits)" if len(prompts) > 1 else ""
        raise PromptError(
            f"prompt {name!r} of task {task!r}: {reason}{all_of_them}: shorten it, or lower max_new_tokens"
        )
    return [prompt for prompt in prompts if prompt.id not in reasons]
