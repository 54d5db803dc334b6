"""Prompts that a study would both learn from and evaluate with. No torch here."""

from __future__ import annotations

from pathlib import Path

from specrig.study.study import Study
from specrig.training.prompts import requests_of


def prompts_in_both(study: Study, root: Path) -> frozenset[str]:
    """What is asked in the files of `training.prompts` and by the study's tasks, as far as these are at hand; training
    leaves it out. Raises PromptError for a file that cannot be used.
    """
    files = [source for source in study.training.prompts if source.kind == "file"]
    requests = [request for source in files for request in requests_of(source, study.training.seed)]
    return study.evaluated(root) & frozenset().union(*(request.texts() for request in requests))
