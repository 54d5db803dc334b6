"""Turns of conversations: each is a task of its own, and the target's answer stands between them for all alike."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import synthetic
import yaml
from synthetic import write_study

from specrig import cli
from specrig.measurement.records import Record, read_records
from specrig.measurement.runner import measure
from specrig.measurement.task_prompts import prepared
from specrig.models.pair import PairFiles
from specrig.report.figures.panels import SCREEN, NothingError
from specrig.report.figures.sweeps import along
from specrig.report.study_data import read_study
from specrig.report.study_results import StudyResults
from specrig.study.load import load_study
from specrig.study.problems import StudyError
from specrig.study.study import Study
from specrig.tasks import Prompt, PromptError, read_prompts
from specrig.tasks.chat import ChatForm, require_chat_template
from specrig.tasks.variants import Variant, variant_of, variants

SHARED = Path(__file__).parents[3] / "shared" / "data"
QUESTIONS = SHARED / "spec_bench" / "question.jsonl"


def test_names_of_variants() -> None:
    assert variants("chat", 2) == ["chat@turn1", "chat@turn2"] and variants("chat", 1) == ["chat"]
    assert variant_of("chat@turn2") == Variant("chat", turn=2)
    assert variant_of("chat") == Variant("chat") and variant_of("chat@else") == Variant("chat@else")


def test_a_conversation_has_all_its_turns_or_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "chats.jsonl"
    rows = [{"id": 1, "turns": ["a", "b", "c"]}, {"id": 2, "turns": ["d"]}, {"id": 3, "turns": ["e", "f"]}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_prompts(file, prompt_field="turns", turns=2)
    assert found == [Prompt("1", "a", turns=("a", "b")), Prompt("3", "e", turns=("e", "f"))]
    with pytest.raises(PromptError, match="none of its 3 rows has 4 turns in 'turns'; lower `turns`"):
        read_prompts(file, prompt_field="turns", turns=4)
    with pytest.raises(PromptError, match=r":1: field 'id' is not a list of turns but a number"):
        read_prompts(file, prompt_field="id", turns=2)


@pytest.fixture
def chats(letters: Path) -> Path:
    rows = [{"id": str(n), "turns": [text, text[::-1]]} for n, text in enumerate(["fox", "dog", "runs"])]
    Path("chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("configs/tasks.tsv").write_text(
        "task\tsource\tprompt_field\tturns\tscorer\nown\tchats.jsonl\tturns\t2\tdistinct_2\n"
    )
    settings = yaml.safe_load(letters.read_text()) | {"methods": [{"method": "draft_model", "k": 3, "tasks": ["own"]}]}
    letters.write_text(yaml.safe_dump(settings))
    return letters


def records(study: Study, turn: int) -> list[Record]:
    return list(read_records(study.root / f"records/native/tiny/draft_model/own@turn{turn}-k3-t0-b1.jsonl"))


def test_the_next_turn_stands_behind_the_targets_answer(chats: Path) -> None:
    study = load_study(chats)
    assert study.tasks == ["own@turn1", "own@turn2"] == study.methods[0].tasks
    assert study.grid.conversations == [("tiny", "own")]
    assert study.scorers("own@turn1") == ["distinct_2"] and study.scorers("own@turn2") == []
    assert study.evaluated(study.root) == {"fox", "xof", "dog", "god", "runs", "snur"}
    measure(study, "native", "tiny", ["draft_model"])
    index = json.loads((study.root / "records/native/tiny/draft_model/index.json").read_text())
    assert list(index["cells"]) == ["own@turn1-k3-t0-b1"]
    assert "is not there yet: run the study again" in index["failed"]["own@turn2-k3-t0-b1"]

    assert cli.main(["stage", "answers", "--study", str(chats), "--pair", "tiny", "--task", "own"]) == 0
    measure(study, "native", "tiny", ["draft_model"])
    first, second = records(study, 1), records(study, 2)
    said = [json.loads(line) for line in (study.root / "answers/tiny/own.jsonl").read_text().splitlines()]
    assert [each["answers"] for each in said] == [[record.baseline_text] for record in first]
    pair = study.paths.pair_files("tiny", study.root)
    asked = prepared(study, "own@turn2", pair, study.root)
    assert asked[0].text == f"fox\n\n{first[0].baseline_text}\n\nxof"
    assert [record.prompt_tokens for record in second] == [len(prompt.text) for prompt in asked]
    assert all(record.run.tokens == record.baseline.tokens for record in second)

    # Other answers make other prompts, so the turn is measured again, and the first is not.
    said[0]["answers"] = ["else"]
    (study.root / "answers/tiny/own.jsonl").write_text("".join(json.dumps(each) + "\n" for each in said))
    measure(study, "native", "tiny", ["draft_model"])
    assert records(study, 1) == first and records(study, 2)[0].prompt_tokens == len("fox\n\nelse\n\nxof")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"id": "0"}\n', "not the answers to this task's turns"),
        ("half", "not the answers to this task's turns"),
        (
            "".join(json.dumps({"id": str(n), "turns": ["x", "y"], "answers": ["z"]}) + "\n" for n in range(3)),
            "it answers other turns",
        ),
    ],
)
def test_answers_of_something_else_are_refused(chats: Path, content: str, says: str) -> None:
    study = load_study(chats)
    file = study.paths.answers("tiny", "own@turn2", study.root)
    file.parent.mkdir(parents=True)
    file.write_text(content)
    with pytest.raises(PromptError, match=says):
        prepared(study, "own@turn2", study.paths.pair_files("tiny", study.root), study.root)


def test_turns_in_a_template_are_refused(chats: Path) -> None:
    Path("configs/tasks.tsv").write_text("task\tsource\tprompt_template\tturns\nown\tchats.jsonl\t{turns}\t2\n")
    with pytest.raises(StudyError, match="leave prompt_template empty"):
        load_study(chats)


@pytest.mark.skipif(not QUESTIONS.is_file(), reason="Spec-Bench's questions are not here")
def test_spec_bench_has_eighty_conversations_and_a_template_holds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = read_prompts(QUESTIONS, prompt_field="turns", id_field="question_id", turns=2)
    assert (
        len(found) == 80
        and found[0].turns[1] == "Rewrite your previous response. Start every sentence with the letter A."
    )

    class Chatty:
        chat_template, special_tokens_map = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", {}

        def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
            return {"input_ids": [0]}

        def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
            return []

    monkeypatch.setattr("specrig.models.hub.tokenizer", lambda *_: Chatty())
    form = ChatForm("t", require_chat_template("t", PairFiles("p", "somewhere")))
    asked = form.rendered(found[0], ["Aloha."])
    assert asked.text == f"<user>{found[0].turns[0]}<assistant>Aloha.<user>{found[0].turns[1]}"


def test_a_report_says_by_turn_what_was_lost_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = ("code@turn1", "code@turn2", "translation@turn1", "translation@turn2")
    monkeypatch.setattr(synthetic, "ALPHAS", dict(zip(tasks, (0.8, 0.5, 0.7, 0.4), strict=True)))
    folder = write_study(tmp_path / "turns", tasks=tasks, ks=(2, 4))
    results = StudyResults(read_study(folder))
    assert set(results.turns["row"]) == {"code", "translation"} and list(results.turns["turn"][:2]) == [1, 2]
    assert len(results.turns_grid.rows) == 4 * 4 == len(results.turns)
    row = results.turns.iloc[0]
    assert row["draft_cost_round"] + row["verify_cost"] == pytest.approx(
        row["acceptance_length"] / row["predicted_speedup"]
    )
    (sentence,) = results.turns_sentences
    assert "Most of the loss is due to acceptance." in sentence
    factors = [float(number) for number in re.findall(r"× (\d\.\d+)", sentence)]
    start, end = map(float, re.findall(r"(\d\.\d+) at turn", sentence))
    assert len(factors) == 4 and math.prod(factors) == pytest.approx(end / start, rel=0.05)
    figure = along(results.turns, "turn", SCREEN)
    assert [panel.get_title() for panel in figure.axes if panel.get_title()] == ["code", "translation"]
    plt.close(figure)
    with pytest.raises(NothingError, match="no task of this study was measured by turn"):
        along(results.turns.iloc[:0], "turn", SCREEN)
