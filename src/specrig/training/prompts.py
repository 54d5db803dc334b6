"""The requests that the target answers, so that it writes the text from which its draft and heads learn. No torch here.

Requests come from the study's corpus, from files, from data sets on the hub, or from the target itself
(`training.prompts`). None of them is a prompt of the study's evaluation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specrig.corpus import gather
from specrig.corpus.example import TASKS, hash_fraction, number
from specrig.corpus.wording import normalized
from specrig.models.chat_template import ChatTemplate, ChatTemplateError, of_tokenizer, prompt_ids
from specrig.tasks.sources import PromptError, Row, hub_rows, read_rows
from specrig.training.prompt_sources import PromptSource
from specrig.training.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Request:
    """What a user may ask. text: for a target that continues texts; turns: for one with a chat template, `role` and
    `content` each.
    """

    text: str
    turns: tuple[dict[str, str], ...]
    location: str
    """Where it is from, for error messages."""

    def texts(self) -> set[str]:
        """Everything in it that could be a prompt of an evaluation, as `normalized` compares it."""
        return {normalized(self.text), *(normalized(turn["content"]) for turn in self.turns if turn["role"] == "user")}


@dataclass(frozen=True, slots=True)
class Group:
    """Requests of one kind. share: of all requests, relative to other groups'; requests: None for those that the target
    writes.
    """

    kind: str
    share: float
    requests: list[Request] | None


@dataclass(frozen=True, slots=True)
class Planned:
    """A text to be written. prompt: the request's token ids; None where the target writes it. round: how many of its
    group came before.
    """

    kind: str
    round: int
    requests: tuple[str, ...] = ()
    prompt: list[int] | None = None


def request_groups(recipe: Recipe, corpus_dir: Path, *, heldout: bool) -> list[Group]:
    """What may be asked in training, or (heldout) to measure what was learnt: a group for each task of the corpus, each
    file, each data set, and each kind of request that the target writes.
    """
    found = []
    for source in recipe.sources:
        if source.kind == "corpus":
            groups = _of_corpus(recipe, corpus_dir, heldout=heldout)
            found += [Group(kind, source.share / len(groups), requests) for kind, requests in groups.items()]
        elif source.kind == "target":
            found.append(Group(source.source, source.share, None))
        else:
            found.append(Group(source.kind, source.share, _of_rows(source, recipe, heldout=heldout)))
    return found


def kept(groups: Sequence[Group], without: Collection[str]) -> tuple[list[Group], int]:
    """The groups without requests for any of `without`, and how many those were."""
    found, count = [], 0
    for group in groups:
        if group.requests is not None:
            requests = [each for each in group.requests if each.texts().isdisjoint(without)]
            count += len(group.requests) - len(requests)
            group = Group(group.kind, group.share, requests)
        found.append(group)
    return found, count


def plan(groups: Sequence[Group], recipe: Recipe, target: Path, tokenizer: Any) -> Iterator[Planned]:
    """Yield the texts to write, each group's as often as its share says, until all requests are used up; for ever where
    the target writes some.

    A prompt that fills more than half of a sequence is passed over. Raises PromptError where `chat` is true and the
    tokenizer has no chat template, and for a request that the template refuses.
    """
    template = of_tokenizer(tokenizer, target)
    chat = bool(template.text) if recipe.chat == "auto" else recipe.chat
    if chat and not template.text:
        raise PromptError(
            f"training.chat is true and the tokenizer of {target} has no chat template; say auto or false"
        )
    left = {at: _planned(group, recipe, tokenizer, template if chat else None) for at, group in enumerate(groups)}
    # The group that is furthest behind its share comes next.
    done = dict.fromkeys(left, 0)
    while left:
        at = min(left, key=lambda at: ((done[at] + 1) / groups[at].share, at))
        found = next(left[at], None)
        if found is None:
            del left[at]
            continue
        done[at] += 1
        yield found


def _planned(group: Group, recipe: Recipe, tokenizer: Any, template: ChatTemplate | None) -> Iterator[Planned]:
    count = 0
    if group.requests is None:
        while True:
            yield Planned(group.kind, count)
            count += 1
    for request in group.requests:
        prompt = prompt_ids(tokenizer, _rendered(request, template) if template else request.text)
        if 0 < len(prompt) <= (recipe.text.sequence + 1) // 2:
            users = tuple(turn["content"] for turn in request.turns if turn["role"] == "user")
            yield Planned(group.kind, count, users if template else (request.text,), prompt)
            count += 1


def _rendered(request: Request, template: ChatTemplate) -> str:
    """The request in the chat template of the target's tokenizer."""
    try:
        return template.render(request.turns)
    except ChatTemplateError as error:
        raise PromptError(
            f"{request.location}: {error.reason}; change them (some templates want no system line, or users and "
            "assistants in turn), or say training.chat: false"
        ) from error


def _of_corpus(recipe: Recipe, corpus_dir: Path, *, heldout: bool) -> dict[str, list[Request]]:
    rows = gather.read(corpus_dir / ("heldout.jsonl" if heldout else "train.jsonl"))
    groups = {}
    for task in TASKS:
        mine = {
            row["prompt"]: _request(row["prompt"], _asked(row), f"the corpus, {task}")
            for row in rows
            if row["task"] == task
        }
        # In training a part is taken, whatever the order in which the corpus was gathered.
        names = list(mine) if heldout else sorted(mine, key=lambda prompt: number(recipe.seed, prompt))
        groups[task] = [mine[name] for name in names]
    return groups


def _asked(row: dict[str, str]) -> str:
    """What an assistant is asked in a row of the corpus: to write a function, or every second time to explain it."""
    if row["task"] == "code" and number("explain", row["prompt"]) % 2:
        return gather.explanation(row["prompt"], row["completion"])[0]
    return row["instruction"]


def _request(text: str, instruction: str, location: str) -> Request:
    return Request(text, ({"role": "user", "content": instruction},), location)


def rows_of(source: PromptSource) -> Iterator[Row]:
    """The rows of a file or data set. Raises PromptError for one that cannot be read."""
    if source.kind == "hub":
        return hub_rows(source.source, source.config, source.split, source.revision)
    return read_rows(Path(source.source).expanduser())


def _of_rows(source: PromptSource, recipe: Recipe, *, heldout: bool) -> list[Request]:
    """The requests of a file or data set, each once; a hash of their text decides which are held out."""
    found: dict[str, Request] = {}
    for _, location, row in rows_of(source):
        request = _from_row(row, location)
        if (
            hash_fraction(recipe.seed, "training prompt", normalized(request.text)) < recipe.corpus.heldout_share
        ) == heldout:
            found.setdefault(normalized(request.text), request)
    if not found:
        part = "held out" if heldout else "to learn from"
        raise PromptError(
            f"{source.source}: no prompt in it is {part}; give it some hundreds, or change corpus.heldout_share"
        )
    return sorted(found.values(), key=lambda request: number(recipe.seed, normalized(request.text)))


def _from_row(row: dict[str, Any], location: str) -> Request:
    """A row's `prompt`; the first of its `turns`; or its `messages` up to the last that a user wrote."""
    turns = row.get("turns")
    first = row.get("prompt") or (next(iter(turns), None) if isinstance(turns, list) else None)
    if isinstance(first, str) and first.strip():
        return _request(first, first, location)
    messages = row.get("messages") or ()
    if isinstance(messages, list) and all(
        isinstance(each, dict) and {"role", "content"} <= each.keys() for each in messages
    ):
        asked = [{"role": str(each["role"]), "content": str(each["content"])} for each in messages]
        while asked and asked[-1]["role"] != "user":
            asked.pop()
        if asked and asked[-1]["content"].strip():
            return Request(asked[-1]["content"], tuple(asked), location)
    raise PromptError(
        f"{location}: no prompt to train on; a row needs `prompt` (a text), `turns` (a list of texts) or `messages` (each with role "
        f"and content, one of them a user's); this one has {', '.join(map(repr, row)) or 'nothing'}"
    )
