"""Prompts that a study would both learn from and evaluate with. No torch here."""

from __future__ import annotations

from pathlib import Path

from specrig.study.study import Study
from specrig.training.prompts import request_groups


def prompts_in_both(study: Study, root: Path) -> frozenset[str]:
    """What is asked in the file `training.prompts` and by the study's tasks, as far as these are at hand; training
    leaves it out.

    Empty without such a file: what the corpus holds back is none of its training text. Raises PromptError for a file
    that cannot be used.
    """
    if all(source.kind != "file" for source in study.training.sources):
        return frozenset()
    files = tuple(source for source in study.training.sources if source.kind == "file")
    groups = request_groups(study.training.model_copy(update={"prompts": files}), study.root / "corpus", heldout=False)
    requests = [request for group in groups for request in group.requests or ()]
    return study.evaluated(root) & frozenset().union(*(request.texts() for request in requests))
