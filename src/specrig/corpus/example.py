"""An example of the corpus, and the hash that decides which examples are held out. No torch here."""

from __future__ import annotations

import hashlib
import random
from dataclasses import asdict, dataclass

TASKS = ("code", "summarization", "translation", "creative_writing")
"""The four tasks of the embedded corpus, in the order in which they are built and reported."""
CHAT = "_chat"
"""Behind a task's name: the same held-out examples as instructions to an assistant."""
EXPLANATION = "explanation" + CHAT
"""The held-out functions of `code`, which an assistant is asked to explain."""
PROMPT_FILES = (*TASKS, *(task + CHAT for task in TASKS), EXPLANATION)
"""Names of the files of held-out prompts, and of the tasks that read them."""


class CorpusError(ValueError):
    """A corpus that cannot be built or read; the message says what is missing and what to change."""


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt and its completion. `source` is what it was made from (a file, or entities), which is held out whole or
    not.

    `instruction` asks an assistant for the same, as a person would write; `answer` is what it may answer.
    """

    task: str
    prompt: str
    completion: str
    source: str
    heldout: bool
    instruction: str
    answer: str

    def row(self) -> dict[str, str]:
        """The example as a row of `train.jsonl` or `heldout.jsonl`: without `heldout`, with the joined `text`."""
        fields = asdict(self)
        del fields["heldout"]
        return {"task": self.task, "text": self.prompt + self.completion, **fields}


def number(*keys: object) -> int:
    """A 64-bit number that depends only on `keys`, not on the order of calls, the machine or PYTHONHASHSEED."""
    text = "\x1f".join(str(key) for key in keys)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def hash_fraction(*keys: object) -> float:
    """The `number` of `keys`, scaled to [0, 1)."""
    return number(*keys) / 2**64


def generator(*keys: object) -> random.Random:
    """A random generator that is seeded with the `number` of `keys`."""
    return random.Random(number(*keys))
