"""What a target wrote from one source of prompts: a file of JSON lines, appended to text by text.

A run that was killed goes on where the file ends, and a study that wants more texts adds them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from specrig.errors import first_line
from specrig.files import file_sha256
from specrig.heads.base import TrainingError
from specrig.heads.teacher import end_tokens, weight_files
from specrig.models import hub
from specrig.models.chat_template import of_tokenizer, prompt_ids
from specrig.seeds import generator, number
from specrig.tasks.wording import Overlap, normalized
from specrig.training import self_requests
from specrig.training.conversations import Conversations, Written, answer, ends_at
from specrig.training.generate import Script, Writer
from specrig.training.prompt_sources import SELF, PromptSource
from specrig.training.prompts import Request, asks_in_chat, rendered, requests_of
from specrig.training.recipe import Recipe

Part = Literal["train", "heldout"]
HELDOUT_EVERY = 8
"""Every eighth prompt is held out."""
FRUITLESS = 64
"""After so many attempts in a row without a new text, a target that asks itself is given up: it would write for ever."""
_TEXT = TypeAdapter(Written)


class SourceText:
    """The texts of one target from one source of prompts."""

    def __init__(
        self, folder: Path, recipe: Recipe, source: PromptSource, target: Path, without: Collection[str] = ()
    ) -> None:
        """folder: of the file. without: the normalized requests of the evaluation, which are not learnt from.

        Raises PromptError for requests that cannot be had, TrainingError for a file that holds something else.
        """
        self.recipe, self.source, self.target = recipe, source, target
        self.tokenizer = hub.tokenizer(str(target))
        self.eos, self.width = end_tokens(target), recipe.text.sequence + 1
        self.overlap = Overlap(without)
        self.requests = [] if source.kind == SELF else requests_of(source, recipe.seed)
        template = of_tokenizer(self.tokenizer, target)
        self.template = template if source.kind != SELF and asks_in_chat(recipe.chat, template, target) else None
        self.file = folder / f"{source.name}-{self._key()}.jsonl"
        self.written = self._read()
        """Number of a prompt -> what was written for it; None where nothing came of it."""

    def texts(self, part: Part, count: int) -> list[Written]:
        """The first `count` texts there are, without duplicates and without prompts of the evaluation."""
        seen, texts = set[str](), list[Written]()
        for at in sorted(self.written):
            text = self.written[at]
            if text is None or _part(at) != part or self._evaluated(text) or (asked := _asked(text)) in seen:
                continue
            seen.add(asked)
            texts.append(text)
        return texts[:count]

    def write(self, train: int, heldout: int, writer: Callable[[], Writer]) -> None:
        """Write until there are so many texts, or no prompts are left. writer: called where something is to be written.

        Raises TrainingError for a target that asks itself nothing usable.
        """
        wanted: dict[Part, int] = {"heldout": heldout, "train": train}
        fruitless = 0
        while True:
            there = {part: len(self.texts(part, count)) for part, count in wanted.items()}
            numbers = [
                at
                for part, count in wanted.items()
                for at in itertools.islice(self._pending(part), count - there[part])
            ]
            if not numbers:
                return
            self._append(numbers, writer())
            new = sum(len(self.texts(part, count)) for part, count in wanted.items()) - sum(there.values())
            fruitless = 0 if new else fruitless + len(numbers)
            if fruitless >= FRUITLESS and self.source.kind == SELF:
                raise TrainingError(
                    f"{self.target}: {fruitless} times in a row this target asked nothing that is new and usable; raise "
                    "training.text.sequence or training.own_requests.tokens, or name a file in training.prompts"
                )

    def _append(self, numbers: list[int], writer: Writer) -> None:
        """Write the texts of some prompts, each into the file as soon as it is ready."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        scripts = (self._script(at, writer.target.max_positions) for at in numbers)
        seeds = (number(self.recipe.seed, "text", self.source.source, at) for at in numbers)
        with self.file.open("a", encoding="utf-8") as file:
            for done, (index, text) in enumerate(writer.write(scripts, seeds, self.recipe.text.batch, self.width), 1):
                at = numbers[index]
                self.written[at] = text
                file.write(json.dumps({"number": at, **({} if text is None else asdict(text))}) + "\n")
                file.flush()
                if done % self.recipe.text.batch == 0 or done == len(numbers):
                    print(f"{self.source.source}: {done} of {len(numbers)} texts", file=sys.stderr, flush=True)

    def _pending(self, part: Part) -> Iterator[int]:
        """The numbers of prompts for which nothing was tried yet; for ever where the target asks itself."""
        for at in itertools.count() if self.source.kind == SELF else range(len(self.requests)):
            if _part(at) == part and at not in self.written and (self.source.kind == SELF or self._usable(at)):
                yield at

    def _usable(self, at: int) -> bool:
        """Whether a request is no prompt of the evaluation, and leaves half of a text for its answer."""
        request = self.requests[at]
        return request.texts().isdisjoint(self.overlap.whole) and 0 < len(self._prompt(request)) <= self.width // 2

    def _prompt(self, request: Request) -> list[int]:
        text = request.text if self.template is None else rendered(request, self.template)
        return prompt_ids(self.tokenizer, text)

    def _script(self, at: int, positions: int) -> Script[Written | None]:
        temperatures = self.recipe.text.temperatures if _part(at) == "train" else (0.0,)
        temperature = temperatures[at % len(temperatures)]
        if self.source.kind == SELF:
            return self._conversations.conversation(generator(self.recipe.seed, "conversation", at), temperature)
        request, prompt = self.requests[at], self._prompt(self.requests[at])
        if len(prompt) >= positions:
            raise TrainingError(
                f"{request.location}: the prompt has {len(prompt)} tokens, {self.target} has {positions} positions; "
                "shorten it"
            )
        users = tuple(turn["content"] for turn in request.turns if turn["role"] == "user")
        asked = (request.text,) if self.template is None else users
        return answer(asked, prompt, self.width, temperature, ends_at(self.eos))

    @cached_property
    def _conversations(self) -> Conversations:
        template = self_requests.template(self.tokenizer, self.target)
        return Conversations(template, self.eos, self.width, self.recipe.own_requests)

    def _evaluated(self, text: Written) -> bool:
        """Whether a request in it is evaluated; one that the target wrote must not come near to one either."""
        if self.source.kind == SELF:
            return any(self.overlap.near(request) for request in text.requests)
        return any(normalized(request) in self.overlap.whole for request in text.requests)

    def _key(self) -> str:
        """Of what decides the texts: not how many there are to be."""
        recipe = self.recipe
        settings: list[Any] = [recipe.seed, recipe.text.sequence, recipe.text.temperatures, recipe.chat]
        settings += [recipe.own_requests.model_dump() if self.source.kind == SELF else None]
        settings += [[request.turns for request in self.requests], [file_sha256(f) for f in weight_files(self.target)]]
        return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:12]

    def _read(self) -> dict[int, Written | None]:
        """The file's texts; a last line that was cut is taken off. Raises TrainingError for a line that is no text."""
        written: dict[int, Written | None] = {}
        if not self.file.is_file():
            return written
        content = self.file.read_bytes()
        if not content.endswith(b"\n"):
            content = content[: content.rfind(b"\n") + 1]
            with self.file.open("r+b") as file:
                file.truncate(len(content))
        for line, text in enumerate(content.splitlines(), 1):
            try:
                fields = json.loads(text)
                at = int(fields.pop("number"))
                written[at] = _TEXT.validate_python(fields) if fields else None
            except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
                raise TrainingError(
                    f"{self.file}:{line}: not a text that a target wrote ({first_line(error)}); delete the file, and its "
                    "texts are written again"
                ) from error
        return written


def _part(at: int) -> Part:
    return "train" if at % HELDOUT_EVERY else "heldout"


def _asked(text: Written) -> str:
    """What texts are compared by: temperature apart, two answers to one request are one too many."""
    return normalized("\n".join(text.requests))
