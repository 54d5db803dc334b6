"""Runs of a job repeated: the two-way layout by hand, and what stands in the table of cells."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import cell_records

from specrig.analysis import replicates, speedup
from specrig.analysis.cells import by_cell, cells_table
from specrig.analysis.cost_model import pass_costs
from specrig.analysis.replicates import between_runs, drift
from specrig.analysis.statistics import mean
from specrig.cell import Cell
from specrig.measurement.records import Record

CELL = Cell(engine="native", pair="p", method="draft_model", k=3, task="code", temperature=0.0)


def again(records: list[Record], number: int, slower: float = 1.0) -> list[Record]:
    """The same records as another run of the job would have them, its method slower by a factor."""
    return [
        record.model_copy(
            update={
                "replicate": number,
                "run": record.run.model_copy(update={"decode_s": record.run.decode_s * slower}),
            }
        )
        for record in records
    ]


def test_the_two_way_layout_by_hand() -> None:
    """Two prompts, two runs: means of runs 0.5 and 1.5, so variance 0.5; the rest is ±0.5, mean square 1, of which half
    in a mean of two.
    """
    cell = np.array([[0.0, 2.0], [1.0, 1.0]])
    found = between_runs({"job": [cell]})
    assert found is not None and found.variance == 0.0, "no more than prompts explain"
    steady = np.array([[0.0, 1.0], [5.0, 6.0]])
    found = between_runs({"job": [steady]})
    assert found is not None and (found.variance, found.freedom) == pytest.approx((0.5, 1.0))
    added = mean(steady.mean(axis=1)) + found.of_mean(2)
    # Prompts' means 0.5 and 5.5: variance 12.5, 6.25 of their mean; runs: 0.5 / 2. One degree of freedom each.
    assert (added.variance, added.freedom) == pytest.approx((6.5, 6.5**2 / (6.25**2 + 0.25**2)))


def test_jobs_moved_by_themselves_count_each_and_jobs_moved_alike_as_one() -> None:
    random = np.random.default_rng(0)
    prompts = random.standard_normal((8, 1))
    own = {str(number): [prompts + 0.1 * random.standard_normal((1, 2))] for number in range(40)}
    found = between_runs(own)
    assert found is not None and found.freedom > 30 and found.variance == pytest.approx(0.01, rel=0.5)
    alike = {str(number): [prompts + np.array([[0.0, 0.2]])] for number in range(40)}
    found = between_runs(alike)
    assert found is not None and found.freedom == pytest.approx(1.0) and found.variance == pytest.approx(0.02)


def test_one_run_says_nothing_of_runs() -> None:
    assert between_runs({"job": [np.ones((8, 1))]}) is None and between_runs({}) is None
    assert replicates.between(by_cell(cell_records(CELL, alpha=0.7))) == {}
    row = cells_table(cell_records(CELL, alpha=0.7)).iloc[0]
    assert row["replicates"] == 1 and np.isnan([row["drift"], row["drift_low"], row["drift_high"]]).all()


def test_replicates_widen_the_interval_and_leave_the_units_prompts() -> None:
    first = cell_records(CELL, alpha=0.7)
    alike, moved = [*first, *again(first, 1)], [*first, *again(first, 1, slower=1.3)]
    one, two, third = (cells_table(records).iloc[0] for records in (first, alike, moved))
    assert (two["prompts"], two["replicates"]) == (6, 2)
    assert len(speedup.log_speedups(speedup.group_times(alike))) == 6
    for name in (
        "speedup",
        "speedup_low",
        "speedup_high",
        "tokens_per_s",
        "tokens_per_s_low",
        "acceptance_length_low",
        "drift",
    ):
        assert two[name] == pytest.approx(1.0 if name == "drift" else one[name]), name
    assert third["speedup"] == pytest.approx(one["speedup"] / 1.3**0.5)
    assert third["drift"] == pytest.approx(1 / 1.3) and third["drift_low"] == pytest.approx(third["drift_high"])
    for name in ("speedup", "end_to_end", "tokens_per_s", "ms_per_token"):
        ratio = [row[f"{name}_high"] / row[f"{name}_low"] for row in (third, one)]
        assert ratio[0] > 2 * ratio[1], name
    assert third["acceptance_length_high"] == one["acceptance_length_high"], "a slow run accepts as much"


def test_a_pairs_other_jobs_say_what_runs_differ_by() -> None:
    """One cell of two runs has one degree of freedom; with eleven other jobs its interval is of use."""
    random = np.random.default_rng(1)

    def job(number: int) -> list[Record]:
        first = cell_records(CELL.model_copy(update={"method": f"method{number}"}), alpha=0.7)
        return [*first, *again(first, 1, slower=float(np.exp(0.1 * random.standard_normal())))]

    jobs = [job(number) for number in range(12)]
    jobs[0] = [*jobs[0][:6], *again(jobs[0][:6], 1, slower=1.2)]
    alone, among = cells_table(jobs[0]).iloc[0], cells_table([record for each in jobs for record in each]).iloc[0]
    assert alone["speedup_high"] / alone["speedup_low"] > 2
    assert among["speedup_high"] / among["speedup_low"] < 1.7
    assert among["drift"] == alone["drift"] == pytest.approx(1 / 1.2)


def test_passes_of_replicates_are_passes_of_their_own() -> None:
    first = cell_records(CELL, alpha=0.7)
    costs, once = pass_costs([*first, *again(first, 1)]), pass_costs(first)
    assert costs.target_s == pytest.approx(2 * once.target_s) and costs.verify_cost == pytest.approx(once.verify_cost)


def test_drift_has_an_interval_over_prompts() -> None:
    change, (low, high) = drift(np.log([[1.0, 1.1], [2.0, 2.1], [1.5, 1.8]]))
    assert low < 1 < change < high and change == pytest.approx((1.1 * 1.05 * 1.2) ** (1 / 3))
