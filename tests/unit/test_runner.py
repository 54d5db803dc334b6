"""How the runner lays out its experiment; that it runs is shown by the workflow tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from specrig.cell import Cell
from specrig.decoding.types import Drafter, Generation
from specrig.engines.native import Native
from specrig.measurement.blocks import MOST, WARMUP_TOKENS, baseline_of, blocks, seed_of
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
    assert seed_of(0, "t", "a") == seed_of(0, "t", "a")
    assert len({seed_of(0, "t", "a"), seed_of(0, "t", "b"), seed_of(1, "t", "a")}) == 3


def records_of(study: Study, method: str) -> list[Record]:
    folder = study.root / "records/native/tiny" / method
    index = json.loads((folder / "index.json").read_text())
    return [record for entry in index["cells"].values() for record in read_records(folder / entry["records"])]


def test_methods_measured_together_share_the_baselines_runs_and_nothing_else(letters: Path) -> None:
    study = load_study(letters)
    assert study.grid.jobs == {("native", "tiny", "together"): ["draft_model", "ngram", "suffix"]}
    measure(study, "native", "tiny", ["draft_model", "ngram", "suffix"])
    together = {method: records_of(study, method) for method in ("draft_model", "ngram", "suffix")}
    baselines = [[record.baseline for record in records[:3]] for records in together.values()]
    assert baselines[0] == baselines[1] == baselines[2], "one run of the baseline serves them all, its times too"
    for record in (record for records in together.values() for record in records):
        assert len(record.ends or []) == len(record.run.tokens) and record.ends == sorted(record.ends or [])
        assert (record.ends or [0])[-1] == len(record.text) > 0
    alone = load_study(yaml.safe_load(letters.read_text()) | {"study": "alone", "jobs": "method"})
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
    drafter_of, reset = Native._drafter, Native.reset_peak_memory

    def noted(engine: Native, cell: Cell, key: str) -> Drafter:
        if key not in engine._drafters:
            events.append("loaded")
        return drafter_of(engine, cell, key)

    def begun(engine: Native) -> None:
        events.append("begun")
        reset(engine)

    monkeypatch.setattr(Native, "_drafter", noted)
    monkeypatch.setattr(Native, "reset_peak_memory", begun)
    measure(study, "native", "tiny", ["ngram"])
    # Each of the two, plain decoding and the method, is loaded, then measured.
    assert events[:4] == ["loaded", "begun", "loaded", "begun"] and events.count("loaded") == 2


class Watched:
    """The cells and lengths of the generations of the native engine that record; it can end the process in one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **patches: object) -> None:
        self.ran: list[tuple[str, int]] = []
        self.fault: tuple[str, int, type[BaseException]] | None = None
        generate = Native.generate

        def watched(engine: Native, cell: Cell, prompts: list[list[int]], **keys: Any) -> list[Generation]:
            if keys["max_new_tokens"] > WARMUP_TOKENS:
                name = f"{cell.method}-k{cell.k}"
                self.ran.append((name, len(prompts[0])))
                if self.fault and (name, self.names.count(name)) == self.fault[:2]:
                    raise self.fault[2]
            return generate(engine, cell, prompts, **keys)

        monkeypatch.setattr(Native, "generate", watched)
        for name, value in patches.items():
            monkeypatch.setattr(Native, name, value)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.ran]


def repeated(letters: Path, least: int, most: int, **keys: object) -> Study:
    repeats = {"least": least, "most": most, "agree": 1e-6}
    return load_study(yaml.safe_load(letters.read_text()) | {"repeats": repeats, "max_new_tokens": 24, **keys})


LENGTHS = [16, 19, 14]
"""Tokens of the three prompts."""


def test_prompts_are_repeated_in_turn_until_their_times_settle(letters: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    measure(repeated(letters, 2, 4), "native", "tiny", ["ngram"])
    both = ["autoregressive-k0", "ngram-k3"]
    in_turn = [[*both], both[::-1], [*both]], [both[::-1], [*both], both[::-1]]  # who goes first rotates
    for repeat, order in enumerate(in_turn):
        expected = [(name, length) for names, length in zip(order, LENGTHS, strict=True) for name in names]
        assert watched.ran[6 * repeat : 6 * repeat + 6] == expected, "the whole once, then the whole again"
    records = records_of(repeated(letters, 2, 4), "ngram")
    for run in (run for record in records for run in (record.run, record.baseline)):
        assert 2 <= len(run.repeats) <= 4 and (run.settled or len(run.repeats) == 4)
        assert run.timing == "rounds" and all(len(each.round_s) == len(run.rounds.emitted) for each in run.repeats)
        assert run.decode_s == pytest.approx(sum(map(min, zip(*(each.round_s for each in run.repeats), strict=True))))
    counts = [len(run.repeats) for record in records for run in (record.run, record.baseline)]
    assert sum(counts) == len(watched.ran), "only what is not settled goes on"


def test_a_killed_job_keeps_its_repeats_and_its_finished_cells(letters: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = repeated(letters, 2, 2)
    watched = Watched(monkeypatch)
    watched.fault = "ngram-k3", 5, KeyboardInterrupt  # in the second repeat
    with pytest.raises(KeyboardInterrupt):
        measure(study, "native", "tiny", ["ngram"])
    folder = study.root / "records/native/tiny/ngram"
    assert [path.name for path in folder.glob("parts/*")] == ["own-k3-t0-b1.json"]
    assert not [*folder.glob("*.jsonl")], "a cell is written whole or not at all"
    again = Watched(monkeypatch)
    measure(study, "native", "tiny", ["ngram"])
    assert len(again.ran) == 6, "the first repeat counts"
    assert {len(record.run.repeats) for record in records_of(study, "ngram")} == {2}
    assert not (folder / "parts").exists()


def test_an_engine_that_cannot_alternate_runs_the_baseline_before_and_after(
    letters: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = repeated(letters, 2, 2)
    watched = Watched(monkeypatch, paired=False)
    measure(study, "native", "tiny", ["draft_model"])
    baseline, methods = ["autoregressive-k0"] * 3, [name for k in (2, 3) for name in [f"draft_model-k{k}"] * 6]
    assert watched.names == [*baseline, *methods, *baseline]
    for record in records_of(study, "draft_model"):
        assert len(record.run.repeats) == len(record.baseline.repeats) == 2


def test_a_baseline_that_fails_afterwards_leaves_its_cells_what_they_ran(
    letters: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = repeated(letters, 2, 2)
    watched = Watched(monkeypatch, paired=False)
    watched.fault = "autoregressive-k0", 4, RuntimeError
    measure(study, "native", "tiny", ["ngram"])
    folder = study.root / "records/native/tiny/ngram"
    failed = json.loads((folder / "index.json").read_text())["failed"]
    assert "the baseline failed: RuntimeError" in failed["own-k3-t0-b1"]
    again = Watched(monkeypatch)
    measure(study, "native", "tiny", ["ngram"])
    assert again.names == ["autoregressive-k0"] * 3 and len(records_of(study, "ngram")) == 3


def test_a_failed_cell_leaves_the_others(letters: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = repeated(letters, 2, 2)
    watched = Watched(monkeypatch)
    watched.fault = "draft_model-k2", 4, RuntimeError
    measure(study, "native", "tiny", ["draft_model"])
    folder = study.root / "records/native/tiny/draft_model"
    index = json.loads((folder / "index.json").read_text())
    assert [*index["failed"]] == ["own-k2-t0-b1"] and [*index["cells"]] == ["own-k3-t0-b1"]
    assert not (folder / "parts").exists()


def test_a_size_chosen_by_timing_is_chosen_once_and_recorded(letters: Path) -> None:
    methods = [{"method": "token_recycling", "k": 3, "nodes": "auto"}, {"method": "ngram", "k": 3}]
    study = repeated(letters, 3, 3, methods=methods)
    measure(study, "native", "tiny", ["token_recycling", "ngram"])
    records = records_of(study, "token_recycling")
    assert {record.run.timing for record in records} == {"rounds"}, "every repeat drafts the same"
    assert {len(record.chosen["pass_costs"]["1"]) for record in records} == {64}
    assert not any(record.chosen for record in records_of(study, "ngram"))
