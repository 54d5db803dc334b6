"""Successive halving: what a race costs, that its interval is not flattered by the choice, that it goes on after a stop."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from specrig import cli
from specrig.analysis.halving import SuccessiveHalving, schedule
from specrig.analysis.statistics import LEAST_UNITS
from specrig.cell import Cell
from specrig.measurement.records import Record, study_records
from specrig.planning import tune


def arms(count: int) -> list[Cell]:
    return [
        Cell(engine="native", pair="p", method="ngram", k=k, task="t", temperature=0.0) for k in range(1, count + 1)
    ]


def run(logs: np.ndarray, budget: float) -> SuccessiveHalving:
    """A race over log speedups [cells, units]."""
    race = SuccessiveHalving(arms(len(logs)), logs.shape[1], budget)
    while rung := race.rung:
        units = range(rung.start, rung.stop)
        race.enter({cell: pd.Series(logs[cell.k - 1, rung.start : rung.stop], units) for cell in rung.cells})
    return race


@pytest.mark.parametrize("cells", [2, 3, 7, 24, 60])
@pytest.mark.parametrize("units", [4, 8, 12, 80])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_a_schedule_chooses_and_judges_on_the_units_there_are(cells: int, units: int, share: float) -> None:
    rounds = schedule(cells, units, share * cells * units)
    sizes, counts = zip(*rounds, strict=True)
    assert sizes[0] == cells and sizes[-1] == 1 and list(sizes) == sorted(sizes, reverse=True)
    assert min(counts) >= 1 and counts[-1] >= LEAST_UNITS and sum(counts) <= units
    spent, least = sum(size * count for size, count in rounds), sum(sizes[:-1]) + 4 * sizes[-1]
    assert spent <= max(share * cells * units, least)
    assert spent > 0.5 * min(share * cells * units, units)


@pytest.mark.parametrize("units", [1, 2, 3])
def test_units_that_cannot_choose_and_judge_give_no_race(units: int) -> None:
    race = SuccessiveHalving(arms(5), units, 100)
    assert not race.possible and race.rung is None


def test_a_race_finds_the_fastest_cell_and_its_speedup() -> None:
    random = np.random.default_rng(1)
    logs = np.linspace(0, 0.6, 25)[::-1, None] + 0.02 * random.standard_normal((25, 12))
    race = run(logs, 0.1 * 25 * 24)
    choice = race.choice()
    assert choice is not None and choice.cell.k == 1
    assert choice.low < np.exp(0.6) < choice.high and choice.speedup == pytest.approx(np.exp(0.6), rel=0.05)


def test_of_equal_cells_the_luckiest_is_not_called_faster() -> None:
    random = np.random.default_rng(2)
    judged, covered, flattered = [], [], []
    for _ in range(200):
        race = run(0.2 * random.standard_normal((20, 8)), 0.1 * 20 * 16)
        choice = race.choice()
        assert choice is not None
        judged.append(np.log(choice.speedup))
        covered.append(choice.low < 1 < choice.high)
        flattered.append(race.logs[choice.cell].mean())
    assert abs(np.mean(judged)) < 0.02 < 0.05 < np.mean(flattered), "what chose says too much, what judges does not"
    assert np.mean(covered) > 0.92


def test_a_cell_that_fails_leaves_the_race() -> None:
    race = SuccessiveHalving(arms(4), 8, 6)
    rung = race.rung
    assert rung is not None
    race.enter({cell: pd.Series([0.1 * cell.k], [0]) for cell in rung.cells if cell.k != 4})
    assert race.rung is not None and {cell.k for cell in race.rung.cells} == {3, 2}
    race.enter({})
    assert race.rung is None and race.choice() is None


@pytest.fixture
def eight(letters: Path) -> Path:
    """The study `letters` with eight prompts."""
    texts = "thequick brownfox jumpsover thelazydog andruns shesings sheseesit hedoesnot".split()
    lines = [json.dumps({"id": str(number), "prompt": text}) + "\n" for number, text in enumerate(texts)]
    Path("prompts.jsonl").write_text("".join(lines))
    letters.write_text(yaml.safe_dump(yaml.safe_load(letters.read_text()) | {"prompts": 8}))
    return letters


def measured(number: int) -> list[Record]:
    return study_records(Path(f"results/letters/tune/round-{number}"))


def test_a_race_that_was_interrupted_goes_on(
    eight: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measure = tune.measure

    def interrupted(*arguments: object, part: tune.Part) -> None:
        if part.folder.name == "round-1":
            raise KeyboardInterrupt
        measure(*arguments, part=part)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(tune, "measure", interrupted)
        assert cli.main(["tune", str(eight)]) == 130
    first = measured(0)
    assert {record.prompt_id for record in first} == {"0"} and len({record.cell.name for record in first}) == 4
    capsys.readouterr()
    assert cli.main(["tune", str(eight), "--json"]) == 0
    (tuned,) = json.loads(capsys.readouterr().out)
    assert measured(0) == first, "what was measured is not measured again"
    more, last = measured(1), measured(2)
    assert {record.prompt_id for record in more} == {"1"} and len(more) == 2
    assert {record.prompt_id for record in last} == {"2", "3", "4", "5"}
    chosen = tuned["choice"]["cell"]
    assert {(record.cell.method, record.cell.k) for record in last} == {(chosen["method"], chosen["k"])}
    assert (tuned["measured"], tuned["grid"]) == (2 * (5 + 3 + 2 * 4), 2 * 5 * 8)
    assert all(record.run.tokens == record.baseline.tokens for record in first + more + last)
    assert not Path("results/letters/records").exists(), "a study's own records are left alone"


def test_models_that_are_not_made_yet_are_named(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", "configs/test.yaml"]) == 2
    assert (
        "models/tiny/medusa/config.json is not there yet" in (said := capsys.readouterr().err) and "-O measure" in said
    )
