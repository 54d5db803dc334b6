"""What is built or trained once and used by several files of tests. Each is read-only: a test that changes it takes a
copy.

torch is imported where it is needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from specrig.corpus import gather
from specrig.corpus.example import TASKS
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


SUMS = Recipe.model_validate(
    {
        "vocabulary": 300,
        "target": {"layers": 3, "hidden": 32, "heads": 2, "intermediate": 48, "context": 64},
        "draft": {"layers": 1, "hidden": 32, "heads": 2, "intermediate": 48, "context": 64},
        "target_training": {"steps": 20, "batch": 4, "sequence": 32, "evaluations": 1},
        "draft_training": {"steps": 20, "batch": 4, "sequence": 32, "evaluations": 1},
        "text": {"sequences": 8, "sequence": 32, "heldout_sequences": 8},
    }
)


@pytest.fixture(scope="session")
def sums(once: Once) -> tuple[Recipe, Path]:
    """A pair for heads to learn from, barely trained, on sums: corpus/, target, draft and the target's text."""

    def build(folder: Path) -> None:
        from specrig.training.distil import train_draft
        from specrig.training.language_model import train_target
        from specrig.training.target_text import write_text

        rows = [
            {
                "task": TASKS[n % 4],
                "prompt": f"{n} and {n + 7} make",
                "completion": f" {2 * n + 7}, more than {n}",
                "instruction": f"Add {n} and {n + 7}",
            }
            for n in range(400)
        ]
        (folder / "corpus").mkdir()
        for name, part in (("train", rows[:360]), ("heldout", rows[360:])):
            lines = [
                json.dumps({**row, "text": row["prompt"] + row["completion"], "source": "-"}) + "\n" for row in part
            ]
            (folder / "corpus" / f"{name}.jsonl").write_text("".join(lines))
        train_target(SUMS, folder / "corpus", folder, folder / "target", progress=False)
        write_text(SUMS, folder / "corpus", folder, folder / "target")
        train_draft(SUMS, folder / "corpus", folder, folder / "target", progress=False)

    return SUMS, once("sums", build)
