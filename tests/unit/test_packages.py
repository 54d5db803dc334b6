"""Tasks whose data an installed package holds or makes, and the scorer that asks such a package."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from specrig.measurement.task_prompts import fetch_prompts
from specrig.study.load import load_study
from specrig.study.problems import StudyError
from specrig.study.study import Study
from specrig.tasks import PromptError, packages
from specrig.tasks.packages import Package, package_rows
from specrig.tasks.scorers import Output, registry


def study(task: str, **keys: Any) -> Study:
    keys = {"study": "own", "pairs": ["tiny"], "tasks": [task], "methods": ["ngram"], "prompts": 4} | keys
    Path("configs/own.yaml").write_text(json.dumps(keys))
    return load_study(Path("configs/own.yaml"))


def rows(*lines: str) -> None:
    header = "task\tsource\tconfig\tturns\tscorer\n"
    Path("configs/tasks.tsv").write_text(header + "".join(f"{line}\n" for line in lines))


def test_conversations_of_a_package_become_turns(workplace: Path) -> None:
    rows("talk\tpackage:chitchat_dataset\t\t3\t")
    own = study("talk")
    assert own.tasks == ["talk@turn1", "talk@turn2", "talk@turn3"]
    fetch_prompts(own, "talk", own.root)
    assert (own.root / "data/talk.jsonl").is_file()  # where the workflow's rule expects them
    prompts = own.prompts_of("talk@turn2", own.root)
    assert len(prompts) == 4 and all(len(prompt.turns) == 3 and all(prompt.turns) for prompt in prompts)
    assert len({prompt.id for prompt in prompts}) == 4


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("package:nobodys", r"row 'talk', source.*'nobodys' is no package whose data are known.*chitchat_dataset"),
        ("package:absent_here", r"row 'talk', source.*absent_here is not installed.*`pip install absent-here`"),
    ],
)
def test_a_package_that_is_not_there_is_named_with_the_command(
    workplace: Path, source: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(packages.PACKAGES, "absent_here", Package("absent-here", lambda config: iter([])))
    rows(f"talk\t{source}\t\t1\t")
    with pytest.raises(StudyError, match=f"(?s){message}"):
        study("talk")


def test_what_a_package_does_not_have_is_named() -> None:
    with pytest.raises(PromptError, match=r"package:chitchat_dataset: it has no part 'german'; correct `config`"):
        list(package_rows("package:chitchat_dataset", "german"))


def test_answers_are_judged_by_the_packages_own_checker(workplace: Path) -> None:
    pytest.importorskip("reasoning_gym")
    (_, _, first), (_, _, second) = islice(package_rows("package:reasoning_gym", "chain_sum"), 2)
    assert first["prompt"] != second["prompt"] and first["id"] == "chain_sum-0"
    right = packages.reasoning_problem("chain_sum", 0)["answer"]
    scorer = registry()["reasoning_gym"]()
    for text, expected in ((right, 100), (f"So <answer> {right} </answer>.", 100), (f"{right}0", 50), ("none", 0)):
        found = scorer.score(Output(first["prompt"], text, first["reference"]))  # type: ignore[attr-defined]
        assert found == 100 if expected == 100 else found < 100
    other = json.dumps(json.loads(first["reference"]) | {"index": 1})
    with pytest.raises(ValueError, match="another problem 1 of chain_sum"):
        scorer.statistics(Output(first["prompt"], right, other))
    with pytest.raises(PromptError, match="correct `config`"):
        list(package_rows("package:reasoning_gym", "no_such"))
    rows("sums\tpackage:reasoning_gym\tchain_sum\t1\treasoning_gym")
    own = study("sums")
    fetch_prompts(own, "sums", own.root)
    assert [prompt.id for prompt in own.prompts_of("sums", own.root)] == [f"chain_sum-{index}" for index in range(4)]
