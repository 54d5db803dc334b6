"""Find the rows of tasks.tsv that hold the task which a source names, e.g. `summarization (CNN/DM)`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from specrig.study.claims import Claim
from specrig.tasks.variants import SIGN

DATA_SETS = {
    "cnndm": ("cnndm", "cnndailymail", "specbenchsummarization"),
    "wmt14deen": ("wmt14deen", "specbenchtranslation"),
    "wmtende": ("wmtende", "wmt14ende", "wmt16ende"),
    "nq": ("naturalquestions", "specbenchqa"),
    "gsm8k": ("gsm8k", "specbenchmath"),
}
"""A source's name of a data set -> how the names of its rows in tasks.tsv may end. Both are in the spelling of `plain`.
"""


def matches_task(claim: Claim, name: str) -> bool:
    """Whether the row `name` of tasks.tsv holds the claim's task.

    Where the source names a data set, the row's name must end in it. Where it names only a kind of task, the row's name
    must contain it. `_chat` at its end says how prompts are put, not what they are. No source reports a variant alone.
    """
    if SIGN in name:
        return False
    data_set, row = plain(claim.data_set), plain(name.removesuffix("_chat"))
    if data_set:
        return row.endswith(DATA_SETS.get(data_set, (data_set,)))
    return bool(claim.task_name) and plain(claim.task_name) in row


def preferred(claim: Claim, task: str, names: Iterable[str]) -> list[str]:
    """Those of `names` that hold `task`, as the claim's source writes it; its own benchmark comes first."""
    found = [name for name in names if matches_task(claim.model_copy(update={"task": task}), name)]
    return sorted(found, key=lambda name: not of_benchmark(claim, name))


def of_benchmark(claim: Claim, name: str) -> bool:
    """Whether the row `name` is of the claim's source: it begins with the source's first word."""
    return plain(name).startswith(plain(claim.source.split()[0]))


def plain(text: str) -> str:
    """`text` in lower case with letters and digits only. `CNN/DM` and `cnn_dm` both become `cnndm`."""
    return re.sub(r"[^a-z0-9]", "", text.lower())
