"""`learning_curve.tsv`: how many tokens a round a draft or head has emitted after so much text, version by version. No
torch here.

The file lies beside the weights. Its rows were measured by decoding, each with a version of the weights that may no
longer exist. So a study copies the rows into its study.json, and its report needs no weights.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from pydantic import Field

from specrig.settings import Settings
from specrig.study.problems import Problems
from specrig.study.rows import Pair, table_rows

FILE = "learning_curve.tsv"
"""The file's name, in the folder of a draft or head."""


class LearningPoint(Settings):
    """A row of `learning_curve.tsv`: one version of the weights, decoded in one way."""

    commit: str = ""
    """The commit that holds this version."""
    texts: int = Field(ge=1)
    """Distinct texts that this version has learnt from, earlier versions included."""
    tokens: int = Field(ge=1)
    """Tokens in these texts that the target wrote."""
    texts_seen: int = Field(ge=1)
    """The same texts, each counted as often as a step learnt from it: the sum of steps × batch."""
    method: str = Field(min_length=1)
    """The method that drafted."""
    k: int = Field(ge=1)
    """Its k."""
    variant: str = ""
    """Its options as records name them, e.g. `nodes10`; empty: the defaults."""
    acceptance_length: float = Field(ge=1, allow_inf_nan=False)
    """Tokens a round, the mean over prompts."""
    prompts: int = Field(ge=1)
    """How many prompts were decoded."""
    task: str = Field(min_length=1)
    """What prompts, in words."""


def read_learning_curve(folder: Path, problems: Problems) -> list[LearningPoint]:
    """The rows in the folder of a draft or head; none without the file. Invalid rows are added to `problems`."""
    file = folder / FILE
    return [point for _, point in table_rows(file, LearningPoint, problems)] if file.is_file() else []


def write_learning_curve(folder: Path, points: Iterable[LearningPoint]) -> None:
    """Write the file of a folder; without rows there is none."""
    lines = ["\t".join(f"{value}" for _, value in point) for point in points]
    if not lines:
        (folder / FILE).unlink(missing_ok=True)
        return
    header = "\t".join(LearningPoint.model_fields)
    (folder / FILE).write_text("".join(f"{line}\n" for line in (header, *lines)), encoding="utf-8")


def learning_curves(
    pairs: Mapping[str, Pair], needs: Mapping[str, Collection[str]], problems: Problems
) -> dict[str, dict[str, list[LearningPoint]]]:
    """Pair -> draft or head -> its rows, for those in the pair's `needs` whose local folder has the file.

    A folder that several pairs or heads name counts once.
    """
    found: dict[str, dict[str, list[LearningPoint]]] = {}
    folders: set[str] = set()
    for name, row in pairs.items():
        for model, folder in {"draft": row.draft, **row.head_folders}.items():
            if folder and model in needs[name] and folder not in folders:
                folders.add(folder)
                if points := read_learning_curve(Path(folder), problems):
                    found.setdefault(name, {})[model] = points
    return found
