"""What is found damaged among records and models, and how it is quarantined."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic import write_job

from specrig.cell import Cell
from specrig.dag.lock import BusyError, lock_study
from specrig.measurement.quarantine import (
    HASHES,
    LEDGER,
    damaged_files,
    damaged_listed,
    damaged_records,
    quarantine,
    quarantined_names,
    write_hashes,
    write_ledger,
)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job's folder with the records of two cells and their index."""
    cells = [Cell(engine="native", pair="p", method="ngram", k=k, task="t", temperature=0.0) for k in (2, 4)]
    write_job(tmp_path, cells, prompts=1)
    return tmp_path / "records/native/p/ngram"


def test_whole_files_are_left_alone(job: Path) -> None:
    assert damaged_records(job) == {}
    assert damaged_records(job / "nowhere") == {}


def test_every_kind_of_damage_is_found_and_named(job: Path) -> None:
    one, two = sorted(job.glob("*.jsonl"))
    whole = one.read_bytes()
    one.write_bytes(whole.replace(b"2", b"3", 1))
    two.unlink()
    (job / "no-index-names-it.jsonl").write_bytes(whole[:-20])
    (job / "empty.jsonl").touch()
    found = damaged_records(job)
    assert found.pop(job / "no-index-names-it.jsonl").startswith("line 1: not a record (")
    assert found == {
        one: "its content is not what was written",
        two: "it is missing",
        job / "empty.jsonl": "it is empty",
    }


def test_a_damaged_index_condemns_no_record(job: Path) -> None:
    for broken in ("{", "[]", json.dumps({"cells": {"a": 1}})):
        (job / "index.json").write_text(broken)
        assert damaged_records(job) == {job / "index.json": "it is not an index of records"}


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"\xff", b"[]", b'{"a": 1}'])
def test_a_damaged_ledger_condemns_nothing(job: Path, content: bytes) -> None:
    root = job.parents[3]
    (root / LEDGER).write_bytes(content)
    assert damaged_listed(root) == {}


def test_answers_between_turns_are_held_against_the_ledger(tmp_path: Path) -> None:
    answers = tmp_path / "answers/tiny/chats.jsonl"
    answers.parent.mkdir(parents=True)
    answers.write_text('{"id": "0", "answers": ["yes"]}\n')
    write_ledger(tmp_path)
    assert damaged_listed(tmp_path) == {}
    answers.write_text('{"id": "0", "answers": ["no"]}\n')
    assert damaged_listed(tmp_path) == {answers: "its content is not what was written"}


def test_names_stay_the_same_once_it_is_quarantined(job: Path) -> None:
    """A param of Snakemake's: else the job would run a third time."""
    one, two = sorted(job.glob("*.jsonl"))
    two.unlink()
    for number in (1, 2):
        one.write_text("half")
        names = quarantined_names(job, damaged_records(job))
        messages = quarantine(damaged_records(job))
        assert quarantined_names(job, damaged_records(job)) == names
        assert f"{one.name}.damaged-{number}" in names and not (job / "index.json").exists()
        assert str(one) in "".join(messages)


def test_a_model_is_held_against_its_sums(tmp_path: Path) -> None:
    model = tmp_path / "target"
    model.mkdir()
    (model / "weights").write_bytes(b"1234")
    (model / "config").write_bytes(b"{}")
    assert damaged_files(model) == {}, "made before there were sums"
    write_hashes(model)
    assert damaged_files(model) == {} and HASHES in {path.name for path in model.iterdir()}
    (model / "weights").write_bytes(b"1235")
    (model / "config").unlink()
    assert set(damaged_files(model)) == {model / "weights", model / "config"}
    quarantine({model: "damaged"})
    assert not model.exists() and (tmp_path / "target.damaged-1/weights").is_file()


def test_the_lock_goes_with_its_process(tmp_path: Path) -> None:
    held = lock_study(tmp_path / "study")
    other = (
        "import sys; from pathlib import Path; from specrig.dag.lock import lock_study; lock_study(Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", other, str(tmp_path / "study")]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode and "another run of this study is at work (process " in refused.stderr
    with pytest.raises(BusyError, match="wait until it ends"):
        lock_study(tmp_path / "study")
    held.close()
    assert subprocess.run(command, check=False).returncode == 0
    lock_study(tmp_path / "study").close()
