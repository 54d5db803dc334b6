"""One training example and the stable chance that decides what is held out. No torch here."""

from __future__ import annotations

import hashlib
import random
from dataclasses import asdict, dataclass

TASKS = ("code", "summarization", "translation", "creative_writing")
"""The four tasks of the embedded corpus, in the order in which they are built and reported."""


class CorpusError(ValueError):
    """A corpus that cannot be built or read; the message says what is missing and what to change."""


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt and its completion. `source` is the file or the entities it was made of; it never straddles the split."""

    task: str
    prompt: str
    completion: str
    source: str
    heldout: bool

    def row(self) -> dict[str, str]:
        """The line of `train.jsonl` / `heldout.jsonl`: the fields without `heldout`, and `text` = prompt + completion."""
        fields = asdict(self)
        del fields["heldout"]
        return {"task": self.task, "text": self.prompt + self.completion, **fields}


def number(*keys: object) -> int:
    """64 bits that depend on `keys` only: not on order of calls, machine or PYTHONHASHSEED."""
    text = "\x1f".join(str(key) for key in keys)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def chance(*keys: object) -> float:
    """`number` as a fraction in [0, 1)."""
    return number(*keys) / 2**64


def generator(*keys: object) -> random.Random:
    """A random generator seeded by `number`."""
    return random.Random(number(*keys))
