"""Disturbed cells are measured again: at the end of a job, within a budget, when the machine is quiet; signs alone choose."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from specrig.cell import Cell
from specrig.measurement import machine_state, runner
from specrig.measurement.attempts import attempt_file, least_disturbed, other_attempts, write_attempts
from specrig.measurement.machine_state import MachineState
from specrig.measurement.quarantine import quarantine_disturbed
from specrig.measurement.records import Load, Record, read_records
from specrig.measurement.signs import disturbance, loads
from specrig.report.study_data import read_study
from specrig.study.load import load_study
from specrig.study.study import Study

ENVIRONMENT = {"device": "cpu", "cpu": {"logical_cores": 1}, "torch": {"threads": 1}}
METHODS = ["draft_model", "ngram"]


def load(steal_s: float) -> Load:
    """What the system counted in a second of work; `steal_s` of a third is the limit."""
    return Load(elapsed_s=1.0, own_s=1.0, others_s=0.0, steal_s=steal_s, waited_s=0.0, held_s=0.0)


@pytest.mark.parametrize(
    ("steal", "counted"), [([0.3, 0.2, 0.1], 2), ([0.3, 0.0, 0.1], 1), ([0.2, 0.2], 0), ([0.0], 0), ([None, 0.1], 0)]
)
def test_the_least_disturbed_attempt_counts_the_first_of_equal_ones(steal: list[float | None], counted: int) -> None:
    attempts = [[None if each is None else load(each), load(each or 0.0)] for each in steal]
    assert least_disturbed(attempts, ENVIRONMENT) == counted


@pytest.mark.parametrize(("busy", "patience", "quiet"), [(0, 0.0, True), (2, 60.0, True), (1, 0.0, False)])
def test_it_waits_until_other_processes_are_done(
    monkeypatch: pytest.MonkeyPatch, busy: int, patience: float, quiet: bool
) -> None:
    looks = [load(0.0).model_copy(update={"others_s": 0.8})] * busy + [load(0.0)]
    monkeypatch.setattr(machine_state, "LOOK_S", 0.01)
    monkeypatch.setattr(machine_state, "between", lambda before, after: looks.pop(0).model_dump())
    assert MachineState("cpu").wait_until_quiet(ENVIRONMENT, patience) is quiet
    assert len(looks) == (0 if quiet else 1)


def test_it_does_not_wait_for_a_machine_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_state, "moment", lambda **_: pytest.fail("the counters of this machine were read"))
    assert MachineState("cpu", here=False).wait_until_quiet(ENVIRONMENT, 0.0)


def study_of(letters: Path, **remeasure: float) -> Study:
    return load_study(yaml.safe_load(letters.read_text()) | {"remeasure": remeasure})


class Planted:
    """A machine whose counters say what the test plants, by method and number of the attempt from 1."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, steal: Callable[[str, int], float]) -> None:
        self.blocks: list[list[str]] = []
        """The cells of each attempt, in order."""
        self.now, self.quiet = "", True
        attempt, run = runner._attempt, runner._Block._run

        def attempted(block: Any, *, last: bool) -> dict[Cell, list[Record]]:
            self.blocks.append([cell.slug for cell in block.cells])
            return attempt(block, last=last)

        def ran(block: Any, cell: Cell, *rest: Any) -> Any:
            self.now = cell.method
            return run(block, cell, *rest)

        def since(machine: MachineState, before: Any) -> Load:
            return load(steal(self.now, len(self.blocks)))

        monkeypatch.setattr(runner, "_attempt", attempted)
        monkeypatch.setattr(runner._Block, "_run", ran)
        monkeypatch.setattr(MachineState, "since", since)
        monkeypatch.setattr(MachineState, "wait_until_quiet", lambda *_: self.quiet)


def file_of(study: Study, method: str, slug: str = "own-k3-t0-b1") -> Path:
    return study.root / "records/native/tiny" / method / f"{slug}.jsonl"


def steal_of(path: Path) -> set[float]:
    return {record.run.load.steal_s for record in read_records(path) if record.run.load}


def test_disturbed_cells_are_measured_again_and_the_others_are_not(
    letters: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = study_of(letters, times=2, share=9.0)
    planted = Planted(monkeypatch, lambda method, attempt: 2.0 if method == "ngram" and attempt == 1 else 0.0)
    runner.measure(own, "native", "tiny", METHODS)
    assert planted.blocks == [["own-k2-t0-b1", "own-k3-t0-b1", "own-k3-t0-b1"], ["own-k3-t0-b1"]]
    disturbed, quiet = file_of(own, "ngram"), file_of(own, "draft_model")
    assert other_attempts(quiet) == {} and other_attempts(disturbed) == {1: attempt_file(disturbed, 1)}
    assert steal_of(disturbed) == {0.0} and steal_of(attempt_file(disturbed, 1)) == {2.0}
    first, second = ([*read_records(path)] for path in (attempt_file(disturbed, 1), disturbed))
    assert [record.run.tokens for record in first] == [record.run.tokens for record in second], "the same seeds"
    assert {record.digest for record in first} == {record.digest for record in second}
    index = json.loads((disturbed.parent / "index.json").read_text())
    assert [entry["records"] for entry in index["cells"].values()] == [disturbed.name]

    (own.root / "study.json").write_text(own.model_dump_json())
    found = read_study(own.root)
    assert len(found.records) == 9

    quarantine_disturbed(disturbed.parent, [disturbed.stem])
    assert sorted(path.name for path in disturbed.parent.glob("*.jsonl*")) == [
        f"{disturbed.name}.disturbed-1", f"{disturbed.name}.disturbed-2"
    ]  # fmt: skip


def test_beside_a_load_that_stays_the_least_disturbed_of_three_counts(
    letters: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = study_of(letters, times=2, share=9.0)
    planted = Planted(monkeypatch, lambda method, attempt: {1: 0.8, 2: 0.5, 3: 0.6}[attempt])
    runner.measure(own, "native", "tiny", METHODS)
    assert [len(block) for block in planted.blocks] == [3, 3, 3]
    for method in METHODS:
        path = file_of(own, method)
        assert steal_of(path) == {0.5}
        assert {number: steal_of(other) for number, other in other_attempts(path).items()} == {1: {0.8}, 3: {0.6}}


def test_the_others_are_measured_first(letters: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = yaml.safe_load(letters.read_text()) | {"temperatures": [0, 1], "remeasure": {"times": 1, "share": 9.0}}
    planted = Planted(monkeypatch, lambda method, attempt: 2.0 if attempt < 3 else 0.0)
    runner.measure(load_study(content), "native", "tiny", ["ngram"])
    assert planted.blocks == [["own-k3-t0-b1"], ["own-k3-t1-b1"]] * 2


def test_beside_a_machine_that_stays_busy_each_cell_keeps_its_attempt(
    letters: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = study_of(letters, times=2, share=9.0)
    planted = Planted(monkeypatch, lambda method, attempt: 0.8)
    planted.quiet = False
    runner.measure(own, "native", "tiny", METHODS)
    assert len(planted.blocks) == 1 and other_attempts(file_of(own, "ngram")) == {}
    assert "stayed busy" in capsys.readouterr().err


@pytest.mark.parametrize("remeasure", [{"times": 0, "share": 9.0}, {"times": 2, "share": 0.9}])
def test_it_can_be_turned_off_and_stays_in_its_budget(
    letters: Path, monkeypatch: pytest.MonkeyPatch, remeasure: dict[str, float]
) -> None:
    """The study is a single block: again as a whole it takes as long as all of it."""
    own = study_of(letters, **remeasure)
    planted = Planted(monkeypatch, lambda method, attempt: 0.4)
    runner.measure(own, "native", "tiny", METHODS)
    assert len(planted.blocks) == 1 and other_attempts(file_of(own, "ngram")) == {}


def test_a_cell_that_fails_when_it_is_measured_again_keeps_its_first_attempt(
    letters: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = study_of(letters, times=1, share=9.0)
    planted = Planted(monkeypatch, lambda method, attempt: 0.4)
    ran = runner._Block._run

    def dies(block: Any, cell: Cell, *rest: Any) -> Any:
        if len(planted.blocks) == 2 and cell.method == "ngram":
            raise MemoryError
        return ran(block, cell, *rest)

    monkeypatch.setattr(runner._Block, "_run", dies)
    runner.measure(own, "native", "tiny", METHODS)
    assert other_attempts(file_of(own, "ngram")) == {} and list(other_attempts(file_of(own, "draft_model"))) == [2]
    index = json.loads((file_of(own, "ngram").parent / "index.json").read_text())
    assert list(index["cells"]) == ["own-k3-t0-b1"] and index["failed"] == {}


def test_a_new_measurement_leaves_no_attempt_of_the_old_one(letters: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = study_of(letters, times=1, share=9.0)
    Planted(monkeypatch, lambda method, attempt: 0.4)
    runner.measure(own, "native", "tiny", ["ngram"])
    path = file_of(own, "ngram")
    assert list(other_attempts(path)) == [2]
    records = [*read_records(path)]
    assert disturbance(loads(records), ENVIRONMENT) > 1
    write_attempts(path, [records], 0)
    assert other_attempts(path) == {} and [*read_records(path)] == records


def test_choosing_by_signs_does_not_bias_the_speedup_and_choosing_by_speed_does(
    benchmark: Callable[[str], ModuleType],
) -> None:
    simulation = benchmark("attempts")
    alike = simulation.simulate(4000, extra=0.0)
    first, signs, speed = (alike[choice] for choice in ("the first", "by signs", "by speed"))
    assert abs(signs.bias) < 0.003 and abs(signs.bias - first.bias) < 2 * (first.error + signs.error)
    assert speed.bias > 4 * speed.error and alike["the fastest of three"].bias > 0.025
    assert signs.spread < 0.95 * first.spread and signs.marked < 0.2 * first.marked
    suffers = simulation.simulate(4000, extra=0.2)
    assert abs(suffers["by signs"].bias) < 0.8 * abs(suffers["the first"].bias), "less of what the load itself does"
