"""Prompts that a study would both learn from and evaluate with. No torch here."""

from __future__ import annotations

from pathlib import Path

from specrig.study.study import Study
from specrig.training.prompts import asked


def prompts_in_both(study: Study, root: Path) -> frozenset[str]:
    """What is asked in the file `training.prompts` and by the study's tasks, as far as these are at hand; training
    leaves it out.

    Empty without such a file: what the corpus holds back is none of its training text. Raises PromptError for a file
    that cannot be used.
    """
    if study.training.prompts is None:
        return frozenset()
    (asks,) = asked(study.training, root / "corpus", heldout=False)
    return study.evaluated(root) & frozenset().union(*(ask.says() for ask in asks))
