"""How the runner lays out its experiment; that it runs is shown by the workflow tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from specrig.cell import Cell
from specrig.decoding.types import Drafter
from specrig.engines.native import Native
from specrig.measurement.blocks import MOST, baseline_of, blocks, seed_of
from specrig.measurement.machine_state import MachineState
from specrig.measurement.records import Record, read_records
from specrig.measurement.runner import measure
from specrig.study.load import load_study
from specrig.study.study import Study


def cell(method: str, k: int, batch_size: int, temperature: float = 0.0) -> Cell:
    return Cell(engine="native", pair="p", method=method, k=k, task="t", temperature=temperature, batch_size=batch_size)


def test_cells_share_a_block_only_where_they_share_prompts_batches_and_baseline() -> None:
    cells = [cell("draft_model", k, size, t) for k in (2, 4) for size in (1, 2) for t in (0.0, 1.0)]
    found = list(blocks(cells))
    assert [len(block) for block in found] == [2, 2, 2, 2]
    assert all(
        {(each.batch_size, each.temperature) for each in block} == {(block[0].batch_size, block[0].temperature)}
        for block in found
    )


def test_batches_of_different_sizes_never_share_a_block_even_with_one_baseline() -> None:
    cells = [cell("naive_batching", 0, size) for size in (2, 4)]
    assert {baseline_of(each).batch_size for each in cells} == {1}
    assert [[each.batch_size for each in block] for block in blocks(cells)] == [[2], [4]]


def test_methods_share_a_block_and_many_cells_are_parted_evenly() -> None:
    cells = [cell(method, k, 1) for method in ("draft_model", "ngram") for k in range(1, 7)]
    found = list(blocks(cells))
    assert [len(block) for block in found] == [6, 6] and [each for block in found for each in block] == cells
    assert len(cells) > MOST and [len(block) for block in blocks(cells, most=len(cells))] == [12]


def test_a_prompts_seed_depends_on_the_prompt_not_on_the_method() -> None:
    assert seed_of(0, "t", "a", 0) == seed_of(0, "t", "a", 0)
    assert (
        len({seed_of(0, "t", "a", 0), seed_of(0, "t", "b", 0), seed_of(0, "t", "a", 1), seed_of(1, "t", "a", 0)}) == 4
    )


def records_of(study: Study, method: str) -> list[Record]:
    folder = study.root / "records/native/tiny" / method
    index = json.loads((folder / "index.json").read_text())
    return [record for entry in index["cells"].values() for record in read_records(folder / entry["records"])]


def test_methods_measured_together_share_the_baselines_runs_and_nothing_else(letters: Path) -> None:
    # On a busy machine cells would be measured again, and their baselines with them.
    study = load_study(yaml.safe_load(letters.read_text()) | {"remeasure": {"times": 0}})
    assert study.grid.jobs == {("native", "tiny", "together"): ["draft_model", "ngram", "suffix"]}
    measure(study, "native", "tiny", ["draft_model", "ngram", "suffix"])
    together = {method: records_of(study, method) for method in ("draft_model", "ngram", "suffix")}
    baselines = [[record.baseline for record in records[:3]] for records in together.values()]
    assert baselines[0] == baselines[1] == baselines[2], "one run of the baseline serves them all, its times too"
    for record in (record for records in together.values() for record in records):
        assert len(record.ends or []) == len(record.run.tokens) and record.ends == sorted(record.ends or [])
        assert (record.ends or [0])[-1] == len(record.text) > 0
    alone = load_study(
        yaml.safe_load(letters.read_text()) | {"study": "alone", "jobs": "method", "remeasure": {"times": 0}}
    )
    assert len(alone.grid.jobs) == 3
    for method, records in together.items():
        measure(alone, "native", "tiny", [method])
        own = records_of(alone, method)
        assert [record.run.tokens for record in own] == [record.run.tokens for record in records]
        # The models of other methods decide nothing: a head that is trained anew makes no cell of theirs stale.
        assert [record.digest for record in own] == [record.digest for record in records]


def test_a_draft_that_cannot_be_loaded_fails_only_the_cells_that_need_it(letters: Path) -> None:
    study = load_study(letters)
    weights = Path("draft/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:1000])
    measure(study, "native", "tiny", ["draft_model", "ngram"])
    index = json.loads((study.root / "records/native/tiny/draft_model/index.json").read_text())
    assert index["cells"] == {} and len(index["failed"]) == 2
    assert all("draft" in reason for reason in index["failed"].values())
    assert len(records_of(study, "ngram")) == 3


def test_a_cells_peak_memory_leaves_out_what_other_methods_have_loaded(letters: Path) -> None:
    study = load_study(letters)
    with Native(study.paths.pair_files("tiny", study.root), threads=1) as engine:
        engine._loaded_mb["draft"] = 70.0
        sizes = []
        for method in ("ngram", "draft_model"):
            (cell,) = [each for each in study.grid.by_method["native", "tiny", method] if each.k == 3]
            engine.generate(cell, [[1, 2, 3]], max_new_tokens=4, seeds=[0])
            sizes.append(engine.peak_memory_mb())
        assert 60 < sizes[1] - sizes[0] < 80, "the draft counts for draft_model alone"


def test_what_a_method_loads_is_loaded_before_its_first_generation_is_measured(
    letters: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = load_study(yaml.safe_load(letters.read_text()) | {"warmup": 0})
    events: list[str] = []
    drafter_of, begin = Native._drafter, MachineState.begin

    def noted(engine: Native, cell: Cell, key: str) -> Drafter:
        if key not in engine._drafters:
            events.append("loaded")
        return drafter_of(engine, cell, key)

    def begun(machine: MachineState) -> Any:
        events.append("begun")
        return begin(machine)

    monkeypatch.setattr(Native, "_drafter", noted)
    monkeypatch.setattr(MachineState, "begin", begun)
    measure(study, "native", "tiny", ["ngram"])
    # Each of the two, plain decoding and the method, is loaded, then measured.
    assert events[:4] == ["loaded", "begun", "loaded", "begun"] and events.count("loaded") == 2
