"""A prompt that does not fit into the target's context is left out by name; the others run, the same at every run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runs import own_study
from specrig import cli
from specrig.dag.command_line import AGAIN
from specrig.measurement.task_prompts import prepared
from specrig.study.load import load_study
from specrig.study.problems import StudyError

TABLE = "pair\ttarget\tdraft\ntiny\ttarget\tdraft\n"


def test_the_others_run_and_a_forced_job_measures_again(
    letters: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"methods": [{"method": "ngram", "k": 3}], "max_new_tokens": 8}
    config = own_study("lengths", TABLE, ["fox", "x" * 125, "dog"], **keys)
    study = load_study(config)
    study.root.mkdir(parents=True)
    file = study.root / "study.json"
    file.write_text(study.model_dump_json())
    command = ["stage", "measure", "--study", str(file), "--engine", "native", "--pair", "tiny"]
    records = study.root / "records/native/tiny/ngram/own-k3-t0-b1.jsonl"
    stamps = []
    for forced in ("", "", "1"):
        monkeypatch.setenv(AGAIN, forced)
        assert cli.main(command) == 0
        assert [json.loads(line)["prompt_id"] for line in records.read_text().splitlines()] == ["0", "2"]
        stamps.append(records.stat().st_mtime_ns)
    assert stamps[0] == stamps[1] < stamps[2]
    said = capsys.readouterr().err
    assert said.count("task own: prompt '1' is left out: it has 125 tokens and 8 are to follow") == 1
    pair = study.paths.pair_files("tiny", study.root)
    assert [prompt.id for prompt in prepared(study, "own", pair, study.root)] == ["0", "2"]

    assert cli.main(["plan", str(config), "--show", "own"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["tiny, own, prompt '0' of 3: 3 tokens", "fox"]

    with pytest.raises(StudyError, match=r"prompt '0' of task 'own': it has 121 tokens .* none of the 2 prompts fits"):
        load_study(own_study("longer", TABLE, ["x" * 121, "y" * 122], **keys))


def test_a_misspelt_field_of_references_is_refused_when_planned(workplace: Path) -> None:
    rows = [{"id": 1, "prompt": "a", "answer": "b"}, {"id": 2, "prompt": "c"}]
    Path("mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = json.loads(json.dumps({"study": "x", "pairs": ["tiny"], "tasks": ["mine"], "methods": ["ngram"]}))
    for field, refused in (("anwser", True), ("answer", False), ("", False)):
        Path("configs/tasks.tsv").write_text(f"task\tsource\treference_field\nmine\tmine.jsonl\t{field}\n")
        if refused:
            with pytest.raises(
                StudyError, match=r"none of its rows has the field 'anwser'; the row has 'id', 'prompt'"
            ):
                load_study(config)
        else:
            load_study(config)
