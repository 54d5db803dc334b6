"""Engines that cannot alternate: the baseline before and after, few starts, nothing finished lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from specrig.cell import Cell
from specrig.measurement.blocks import baseline_of
from specrig.measurement.records import Rounds, Run
from specrig.measurement.unpaired import Runs, measure_unpaired


def cell(k: int, task: str) -> Cell:
    return Cell(engine="vllm", pair="p", method="ngram", k=k, task=task, temperature=0.0, options={"n": 3, "min_n": 1})


def run(seconds: float, tokens: int = 5) -> Run:
    return Run(
        tokens=list(range(tokens)), stop="length", rounds=Rounds(), ttft_s=seconds, prefill_s=seconds, decode_s=seconds
    )


class Recorder:
    """A block whose engine is a list of what was asked: each baseline run is slower than the one before."""

    def __init__(self, cells: list[Cell], calls: list[str], broken: Sequence[str] = ()) -> None:
        self.cells, self.baseline = cells, baseline_of(cells[0])
        self.failed: dict[Cell, str] = {}
        self.calls, self.broken = calls, broken
        self.written: dict[Cell, tuple[Runs, Runs, Sequence[float | None]]] = {}

    def run_alone(self, cell: Cell) -> Runs | None:
        self.calls.append(cell.slug)
        if cell.slug in self.broken:
            self.failed[cell] = "EngineError: it died"
            return None
        seconds = float(self.calls.count(cell.slug)) if cell == self.baseline else 0.5
        return [[run(seconds)], [run(seconds)]]

    def write(self, cell: Cell, runs: Runs, baseline: Runs, drifts: Sequence[float | None]) -> None:
        self.written[cell] = runs, baseline, drifts


def blocks(calls: list[str], broken: Sequence[str] = ()) -> list[Recorder]:
    return [Recorder([cell(2, task), cell(4, task)], calls, broken) for task in ("code", "translation")]


def digests() -> dict[Cell, str]:
    return {cell(k, task): f"{k}{task}" for k in (2, 4) for task in ("code", "translation")}


def test_every_start_of_the_engine_serves_all_its_cells(tmp_path: Path) -> None:
    calls: list[str] = []
    both = blocks(calls)
    assert measure_unpaired(both, digests(), tmp_path) == {}
    assert calls == [
        "code-k0-t0-b1", "translation-k0-t0-b1", "code-k2-t0-b1", "translation-k2-t0-b1",
        "code-k4-t0-b1", "translation-k4-t0-b1", "code-k0-t0-b1", "translation-k0-t0-b1",
    ]  # fmt: skip
    runs, baseline, drifts = both[0].written[cell(4, "code")]
    assert [[each.decode_s for each in group] for group in runs] == [[0.5], [0.5]]
    assert [[each.decode_s for each in group] for group in baseline] == [[1.5], [1.5]]  # the mean of 1 s and 2 s
    assert baseline[0][0].ttft_s == 1.5
    assert drifts == [pytest.approx(1.0)] * 2
    assert not (tmp_path / "parts").exists()


def test_a_failed_cell_leaves_the_others(tmp_path: Path) -> None:
    both = blocks([], broken=["code-k2-t0-b1"])
    assert measure_unpaired(both, digests(), tmp_path) == {cell(2, "code"): "EngineError: it died"}
    assert [len(block.written) for block in both] == [1, 2]


def test_a_cell_that_is_the_baseline_may_fail_between_the_baselines_two_runs(tmp_path: Path) -> None:
    class Once(Recorder):
        """The second of the baseline's three runs fails, and the third forgets it as `runner` does."""

        def run_alone(self, cell: Cell) -> Runs | None:
            self.failed.pop(cell, None)
            self.broken = [cell.slug] if cell == self.baseline and self.calls.count(cell.slug) == 1 else []
            return super().run_alone(cell)

    plain = baseline_of(cell(2, "code"))
    block = Once([plain, cell(2, "code")], [])
    failed = measure_unpaired([block], digests() | {plain: "plain"}, tmp_path)
    assert failed == {plain: "EngineError: it died"} and list(block.written) == [cell(2, "code")]


def test_a_failed_baseline_fails_its_own_block_alone(tmp_path: Path) -> None:
    both = blocks([], broken=["translation-k0-t0-b1"])
    failed = measure_unpaired(both, digests(), tmp_path)
    assert set(failed) == {cell(2, "translation"), cell(4, "translation")}
    assert all(reason == "the baseline failed: EngineError: it died" for reason in failed.values())
    assert len(both[0].written) == 2


def test_a_baseline_that_fails_afterwards_costs_itself_alone(tmp_path: Path) -> None:
    class Dying(Recorder):
        """Its second start of the baseline fails in one block."""

        def run_alone(self, cell: Cell) -> Runs | None:
            again = cell.task == "translation" and cell == self.baseline and cell.slug in self.calls
            self.broken = [cell.slug] if again else []
            return super().run_alone(cell)

    first = [Dying(block.cells, block.calls) for block in blocks([])]
    failed = measure_unpaired(first, digests(), tmp_path)
    assert set(failed) == {cell(2, "translation"), cell(4, "translation")}
    assert [len(block.written) for block in first] == [2, 0]
    kept = {path.stem for path in (tmp_path / "parts").iterdir()}
    assert kept == {"translation-k2-t0-b1-before", "translation-k2-t0-b1", "translation-k4-t0-b1"}
    calls: list[str] = []
    left = blocks(calls)[1:]  # the other block is measured, so the job comes without it
    assert measure_unpaired(left, digests(), tmp_path) == {}
    assert calls == ["translation-k0-t0-b1"]
    assert len(left[0].written) == 2
    assert not (tmp_path / "parts").exists()


def test_a_killed_job_goes_on_where_it_was(tmp_path: Path) -> None:
    class Killed(Recorder):
        def run_alone(self, cell: Cell) -> Runs | None:
            if cell.slug == "code-k4-t0-b1":
                raise KeyboardInterrupt
            return super().run_alone(cell)

    first = [Killed(block.cells, block.calls) for block in blocks([])]
    with pytest.raises(KeyboardInterrupt):
        measure_unpaired(first, digests(), tmp_path)
    calls: list[str] = []
    again = blocks(calls)
    stale = tmp_path / "parts" / "translation-k2-t0-b1.json"
    stale.write_text(json.dumps({**json.loads(stale.read_text()), "digest": "of other code"}))
    assert measure_unpaired(again, digests(), tmp_path) == {}
    assert calls == [
        "translation-k2-t0-b1",
        "code-k4-t0-b1",
        "translation-k4-t0-b1",
        "code-k0-t0-b1",
        "translation-k0-t0-b1",
    ]
    assert [len(block.written) for block in again] == [2, 2]


def test_the_second_baselines_time_is_taken_per_token(tmp_path: Path) -> None:
    class Sampled(Recorder):
        """Its second start samples 9 tokens (8 decoded) where the first sampled 5 (4 decoded)."""

        def run_alone(self, cell: Cell) -> Runs | None:
            found = super().run_alone(cell)
            return [[run(2.0, tokens=9)]] * 2 if cell == self.baseline and self.calls.count(cell.slug) == 2 else found

    block = Sampled([cell(2, "code")], [])
    measure_unpaired([block], digests(), tmp_path)
    _, baseline, drifts = block.written[cell(2, "code")]
    assert baseline[0][0].decode_s == pytest.approx((1 + 2 * 4 / 8) / 2)
    assert drifts == [pytest.approx(0.0)] * 2
