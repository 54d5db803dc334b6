"""Rows of data that an installed package holds or makes: `package:<module>` as the source of a task.

To add a package, write a function that yields its rows and name it in `PACKAGES`. Only the job that writes a task's
prompts imports the package.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from typing import Any

from specrig.errors import first_line
from specrig.tasks.sources import PromptError, Row

PREFIX = "package:"
SEED, MOST = 0, 100_000
"""Seed and number of the problems that reasoning-gym makes; each depends on the seed and its own index alone."""


@dataclass(frozen=True, slots=True)
class Package:
    """install: what pip installs. rows: yields rows, given the task's `config`; it may raise ValueError for that."""

    install: str
    rows: Callable[[str | None], Iterator[dict[str, Any]]]


def problem(source: str) -> tuple[str, str] | None:
    """(what is wrong, how to mend it) with a source `package:<module>` on this machine; None: nothing."""
    module = source.removeprefix(PREFIX)
    if module not in PACKAGES:
        return f"{module!r} is no package whose data are known", f"name one of {', '.join(PACKAGES)}"
    if find_spec(module) is None:
        return f"{module} is not installed", f"`pip install {PACKAGES[module].install}`"
    return None


def package_rows(source: str, config: str | None) -> Iterator[Row]:
    """The rows of a package, numbered from 1. Raises PromptError if it is missing or does not have what `config` names."""
    wrong = problem(source)
    if wrong is not None:
        raise PromptError(f"{source}: {wrong[0]}; {wrong[1]}")
    try:
        for number, row in enumerate(PACKAGES[source.removeprefix(PREFIX)].rows(config), 1):
            yield number, f"{source}: row {number}", row
    except ValueError as error:
        raise PromptError(f"{source}: {first_line(error)}; correct `config` in the task's row") from error


def _small_talk(config: str | None) -> Iterator[dict[str, Any]]:
    """Conversations of two people; who speaks first is the user. Messages sent one after another are one turn."""
    from chitchat_dataset import Dataset

    if config:
        raise ValueError(f"it has no part {config!r}")
    for name, conversation in Dataset().items():
        turns = [" ".join(message["text"] for message in messages) for messages in conversation["messages"]]
        if user_turns := [turn.strip() for turn in turns[::2] if turn.strip()]:
            yield {"id": name, "prompt": user_turns}


def _problems(config: str | None) -> Iterator[dict[str, Any]]:
    """Problems of one of reasoning-gym's data sets. The reference says which one it is, for the scorer."""
    if not config:
        raise ValueError("`config` must name one of reasoning-gym's data sets, such as chain_sum")
    for index in range(MOST):
        question = reasoning_problem(config, index)["question"]
        reference = {"dataset": config, "index": index, "sha256": sha256(question.encode()).hexdigest()}
        yield {"id": f"{config}-{index}", "prompt": question, "reference": json.dumps(reference)}


def reasoning_problem(name: str, index: int) -> dict[str, Any]:
    """A problem of reasoning-gym with its answer. Raises ValueError for an unknown data set."""
    return dict(reasoning_data(name)[index])


def reasoning_data(name: str) -> Any:
    """A data set of reasoning-gym, whose problems are made when they are asked for."""
    import reasoning_gym

    return reasoning_gym.create_dataset(name, seed=SEED, size=MOST)


PACKAGES = {
    "chitchat_dataset": Package("chitchat-dataset", _small_talk),
    "reasoning_gym": Package("reasoning-gym", _problems),
}
"""Module -> its data."""
