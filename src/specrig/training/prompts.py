"""What the target is asked, so that it writes the text from which its draft and heads learn. No torch here.

Training prompts come from the study's corpus, or from the file `training.prompts`. None of them is a prompt of the
study's evaluation.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specrig.corpus import gather
from specrig.corpus.example import TASKS, hash_fraction, number
from specrig.corpus.wording import normalized
from specrig.models import hub
from specrig.tasks.chat import render_chat
from specrig.tasks.sources import PromptError, read_rows
from specrig.training.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Ask:
    """What a user may ask. text: for a target that continues texts; turns: for one with a chat template, `role` and
    `content` each.
    """

    text: str
    turns: tuple[dict[str, str], ...]

    def says(self) -> set[str]:
        """Everything in it that could be a prompt of an evaluation, as `normalized` compares it."""
        return {normalized(self.text), *(normalized(turn["content"]) for turn in self.turns if turn["role"] == "user")}


def training_prompts(recipe: Recipe, corpus_dir: Path, target: Path, without: Collection[str] = ()) -> list[list[int]]:
    """Token ids of training prompts for the model in the folder `target`, shortest first.

    Of the corpus equally many of every task; of the user's file as many as `text.sequences`. A prompt takes at most
    half of a sequence.
    without: prompts that must not be among them, as `normalized` writes them; how many were is said on standard error.
    Raises PromptError for a file that cannot be used, and where `chat` is true and the tokenizer has no chat template.
    """
    groups, left_out = kept(asked(recipe, corpus_dir, heldout=False), without)
    if left_out:
        print(f"{left_out} training prompts are prompts of the evaluation and were left out", file=sys.stderr)
    return _encoded(groups, recipe, target, recipe.text.sequences)


def heldout_prompts(recipe: Recipe, corpus_dir: Path, target: Path) -> list[list[int]]:
    """Token ids of held-out prompts, chosen in the same way."""
    return _encoded(asked(recipe, corpus_dir, heldout=True), recipe, target, recipe.text.heldout_sequences)


def asked(recipe: Recipe, corpus_dir: Path, *, heldout: bool) -> list[list[Ask]]:
    """What may be asked in training, or (heldout) to measure what was learnt: a group for each task, of the user's file
    one.
    """
    if recipe.prompts is not None:
        return [_in_file(recipe, heldout=heldout)]
    rows = gather.read(corpus_dir / ("heldout.jsonl" if heldout else "train.jsonl"))
    groups = []
    for task in TASKS:
        mine = {row["prompt"]: _ask(row["prompt"], row["instruction"]) for row in rows if row["task"] == task}
        # In training a part is taken, whatever the order in which the corpus was gathered.
        names = list(mine) if heldout else sorted(mine, key=lambda prompt: number(recipe.seed, prompt))
        groups.append([mine[name] for name in names])
    return groups


def kept(groups: Sequence[Sequence[Ask]], without: Collection[str]) -> tuple[list[list[Ask]], int]:
    """The groups without what asks any of `without`, and how many that were."""
    found = [[ask for ask in group if ask.says().isdisjoint(without)] for group in groups]
    return found, sum(map(len, groups)) - sum(map(len, found))


def _ask(text: str, instruction: str) -> Ask:
    return Ask(text, ({"role": "user", "content": instruction},))


def _in_file(recipe: Recipe, *, heldout: bool) -> list[Ask]:
    """The prompts of the user's file, each once; a hash of what they say decides which are held out."""
    assert recipe.prompts is not None
    found: dict[str, Ask] = {}
    for _, place, row in read_rows(recipe.prompts.expanduser()):
        ask = _from_row(row, place)
        if (
            hash_fraction(recipe.seed, "training prompt", normalized(ask.text)) < recipe.corpus.heldout_share
        ) == heldout:
            found.setdefault(normalized(ask.text), ask)
    if not found:
        part = "held out" if heldout else "to learn from"
        raise PromptError(
            f"{recipe.prompts}: no prompt in it is {part}; give it some hundreds, or change corpus.heldout_share"
        )
    return sorted(found.values(), key=lambda ask: number(recipe.seed, normalized(ask.text)))


def _from_row(row: dict[str, Any], place: str) -> Ask:
    """A row's `prompt`; the first of its `turns`; or its `messages` up to the last that a user wrote."""
    first = row.get("prompt") or next(iter(row.get("turns") or ()), None)
    if isinstance(first, str) and first.strip():
        return _ask(first, first)
    messages = row.get("messages") or ()
    if isinstance(messages, list) and all(
        isinstance(each, dict) and {"role", "content"} <= each.keys() for each in messages
    ):
        turns = [{"role": str(each["role"]), "content": str(each["content"])} for each in messages]
        while turns and turns[-1]["role"] != "user":
            turns.pop()
        if turns and turns[-1]["content"].strip():
            return Ask(turns[-1]["content"], tuple(turns))
    raise PromptError(
        f"{place}: no prompt to train on; a row needs `prompt` (a text), `turns` (texts) or `messages` (each with role and content, one "
        f"of them a user's); this one has {', '.join(map(repr, row)) or 'nothing'}"
    )


def _encoded(groups: Sequence[Sequence[Ask]], recipe: Recipe, target: Path, count: int) -> list[list[int]]:
    """`count` prompts, each group's share of them, that fill at most half of a sequence."""
    tokenizer = hub.tokenizer(str(target))
    chat = bool(tokenizer.chat_template) if recipe.chat == "auto" else recipe.chat
    if chat and not tokenizer.chat_template:
        raise PromptError(
            f"training.chat is true and the tokenizer of {target} has no chat template; say auto or false"
        )
    share, prompts = count // len(groups), []
    for group in groups:
        # Some are too long: twice as many are tried as are taken.
        texts = [render_chat(tokenizer, ask.turns) if chat else ask.text for ask in group[: 2 * count]]
        ids: list[list[int]] = tokenizer(texts)["input_ids"] if texts else []
        prompts += [prompt for prompt in ids if 0 < len(prompt) <= (recipe.text.sequence + 1) // 2][:share]
    return sorted(prompts, key=len)
