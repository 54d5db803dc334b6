"""Requests that a chat target writes itself (Magpie, arXiv:2406.08464), and what is no request. No torch here.

The target's chat template is cut where a user's text begins; what the target writes there is what users send it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from specrig.models.chat_template import PROBE as SENTINEL
from specrig.models.chat_template import ChatTemplateError, of_tokenizer, prompt_ids
from specrig.tasks.sources import PromptError

Message = dict[str, str]
"""`role` and `content`."""
FEWEST_WORDS = 4
REPEATED = 0.35
"""Largest share of a request's n-grams that occurred in it before."""
NGRAM = 3
LOOP = 24
"""Longest stretch that an answer repeats at its end and that is then cut."""
REPEATS = 4
"""So many times in a row a stretch is no longer text."""

OPENINGS = (
    "Write a Python function", "Write a function in Python that takes",
    "Fix the bug in the following code:\n\n```python\n", "Explain what this code does:\n\n```python\n",
    "Translate the following sentence into German:", "Translate German to English:", "Translate into French:\n\n",
    "Translate this text to Spanish:", "Summarize the following text:\n\n",
    "Summarize the news article below in two sentences.\n\n", "Give me a short summary of this paragraph:\n\n",
    "Write a short story about", "Write a story that begins with", "Compose a poem about", "Write an email to",
    "Write a blog post about", "Imagine you are", "Pretend to be", "Act as", "Solve this math problem:", "A train",
    "If a", "How many", "Calculate", "There are three", "Who was", "What is the name of", "When did", "Where is",
    "Which country", "Why do", "How does", "Explain why", "What are the differences between", "Describe the process of",
    "Extract all names and dates from this text:\n\n", "Given the following data, answer in JSON format:\n\n",
    "Classify the following reviews as positive or negative:\n\n", "Rewrite the following sentence:",
    "Edit the following paragraph for grammar:\n\n", "Answer the question with the passage below.\n\n",
    "Give me a list of", "Compare", "Convert the following", "Suggest", "Create a table of", "Plan",
)  # fmt: skip
"""First words of requests, of the kinds that users and benchmarks ask."""
SYSTEM_LINES = (
    "You are a helpful assistant.", "You are a programmer who answers with code.", "You are a translator.",
    "You are a teacher of mathematics.", "You are a journalist.",
    "You answer questions about history, geography and science.", "You are a writer of stories.",
)  # fmt: skip
"""System lines before a request."""


class Template:
    """The chat template of a target, cut for its users' texts."""

    def __init__(self, tokenizer: Any, target: object = "the target") -> None:
        """Raises PromptError where the template changes what users write, so that it cannot be cut."""
        self.tokenizer, self._template = tokenizer, of_tokenizer(tokenizer, target)
        _, end = self._cut([{"role": "user", "content": SENTINEL}])
        special = [token for token in tokenizer.all_special_tokens if token and end.lstrip().startswith(token)]
        self.end = max(special, key=len) if special else next(iter(end.split()), "")
        """What ends a user's text."""
        self.special = [token for token in tokenizer.all_special_tokens if token]
        if not self.end:
            raise PromptError("nothing in the chat template shows where a user's text ends: requests cannot be written")

    def before_user(self, messages: Sequence[Message]) -> str:
        """The conversation up to where the user's next text begins."""
        return self._cut([*messages, {"role": "user", "content": SENTINEL}])[0]

    def before_answer(self, messages: Sequence[Message]) -> str:
        """The conversation up to where the answer begins."""
        return self._rendered(messages)

    def takes(self, system: str) -> bool:
        """Whether the template has a place for a system line."""
        try:
            return system in self.before_user([{"role": "system", "content": system}])
        except PromptError:
            return False

    def tokens(self, text: str) -> list[int]:
        """The ids of a text."""
        return prompt_ids(self.tokenizer, text)

    def text(self, tokens: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        return str(self.tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _rendered(self, messages: Sequence[Message]) -> str:
        try:
            return self._template.render(messages)
        except ChatTemplateError as error:
            raise PromptError(f"{error.reason}: requests cannot be written") from error

    def _cut(self, messages: Sequence[Message]) -> tuple[str, str]:
        before, found, behind = self._rendered(messages).rpartition(SENTINEL)
        if not found:
            raise PromptError("the chat template does not hold a user's text as it stands: requests cannot be written")
        return before, behind


def template(tokenizer: Any, target: object) -> Template:
    """The template that requests are written into. Raises PromptError for a target without one."""
    if not tokenizer.chat_template:
        raise PromptError(
            f"the tokenizer of {target} has no chat template, which training.prompts: self needs: such a model "
            "writes no requests. Name a file of prompts"
        )
    return Template(tokenizer, target)


def is_request(text: str, special: Sequence[str] = ()) -> bool:
    """Whether a text that ended by itself is worth an answer: four words or more, no markers of the template, no
    repetition.
    """
    words = text.split()
    if len(words) < FEWEST_WORDS or any(token in text for token in special) or len(re.findall(r"[^\W\d_]", text)) < 10:
        return False
    grams = Counter(tuple(words[at : at + NGRAM]) for at in range(len(words) - NGRAM + 1))
    lines = Counter(line.strip() for line in text.splitlines() if len(line.split()) > 1)
    repeated = 1 - len(grams) / max(1, grams.total())
    return repeated <= REPEATED and max(lines.values(), default=0) < 3 and looping(words) is False


def looping(tokens: Sequence[object]) -> bool:
    """Whether the end of a text repeats one stretch of at most `LOOP` items `REPEATS` times, and at least `LOOP` items
    long.
    """
    for period in range(1, LOOP + 1):
        span = max(period * REPEATS, LOOP)
        if len(tokens) >= span and all(tokens[-at] == tokens[-at - period] for at in range(1, span - period + 1)):
            return True
    return False
