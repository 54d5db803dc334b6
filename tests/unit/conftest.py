"""What is built or trained once and used by several files of tests. Each is read-only: a test that changes it takes a
copy.

torch is imported where it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from specrig.corpus import gather
from specrig.training.recipe import TINY, Recipe

Once: TypeAlias = Callable[[str, Callable[[Path], None]], Path]


@pytest.fixture(scope="session")
def tiny_corpus(once: Once) -> Path:
    """The folder of a study that has gathered the text of the recipe `TINY`: corpus/ and prompts/."""
    recipe = Recipe.model_validate(TINY)
    return once("corpus", lambda folder: gather.build(recipe.corpus, recipe.seed, folder))


@pytest.fixture(scope="session")
def tiny_pair(once: Once, tiny_corpus: Path) -> Path:
    """The pair of the recipe `TINY`, really trained: corpus/, models/target, models/draft and the target's text."""

    def build(folder: Path) -> None:
        from specrig.training.distil import train_draft
        from specrig.training.language_model import train_target
        from specrig.training.target_text import write_text

        recipe = Recipe.model_validate(TINY)
        (folder / "corpus").symlink_to(tiny_corpus / "corpus")
        train_target(recipe, folder / "corpus", folder / "models", folder / "models/target", progress=False)
        write_text(recipe, folder / "corpus", folder / "models", folder / "models/target")
        train_draft(recipe, folder / "corpus", folder / "models", folder / "models/target", progress=False)

    return once("pair", build)
