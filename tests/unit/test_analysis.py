"""Metrics against numbers worked out by hand, and the cost model against a simulated accept/reject process."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import cell_records, simulate

from specrig.analysis import acceptance, cost_model, repetition, speedup, statistics
from specrig.analysis.cells import COLUMNS, cells_table
from specrig.cell import Cell
from specrig.measurement.records import Counts, Record, Rounds, Run

CELL = Cell(engine="native", pair="p", method="draft_model", k=3, task="code", temperature=0.0)


def run(tokens: int, decode_s: float, rounds: Rounds | None = None, **more: object) -> Run:
    values = {"ttft_s": 0.1, "prefill_s": 0.1, "overlap": 0.0, "reached": 0, **more}
    return Run(tokens=list(range(tokens)), stop="length", rounds=rounds or Rounds(), decode_s=decode_s, **values)


def record(method: Run, baseline: Run, group: int = 0, cell: Cell = CELL, row: int = 0) -> Record:
    return Record(
        cell=cell, digest="d", prompt_id=f"{group}.{row}", group=group, seed=0, prompt_tokens=5,
        text="", baseline_text="", run=method, baseline=baseline,
    )  # fmt: skip


def ends(times: speedup.Times) -> statistics.Interval:
    return statistics.interval(speedup.log_speedup(times), scale=np.exp)


# Three rounds of k = 3: all accepted and a bonus; one accepted and a correction; cut by the limit after one token.
ROUNDS = Rounds(drafted=[3, 3, 3], depth=[3, 3, 3], accepted=[3, 1, 1], emitted=[4, 2, 1], cut=True)
WHOLE = run(8, 0.7, ROUNDS, overlap=4.5, reached=6)
PLAIN = run(8, 1.4, target_passes={1: (7, 1.4)})


def test_acceptance_by_hand() -> None:
    records = [record(WHOLE, PLAIN)]
    assert acceptance.acceptance_rate(records) == pytest.approx(5 / 9)
    assert acceptance.acceptance_length(records) == pytest.approx((4 + 2) / 2)  # the cut round is left out
    assert acceptance.cut_rounds(records) == 1
    assert acceptance.emitted_lengths(records) == [4, 2]
    assert acceptance.alpha(records) == pytest.approx(0.75)
    frame = acceptance.positions(records).set_index("position")
    assert list(frame["conditional"]) == pytest.approx([1.0, 0.5, 1.0])
    assert list(frame["unconditional"]) == pytest.approx([1.0, 0.5, 0.5])


def test_acceptance_counts_rounds_without_a_draft() -> None:
    """The n-gram pitfall: 4.0 if the rounds without a match were forgotten."""
    rounds = Rounds(drafted=[3, 0, 0, 3], depth=[3, 0, 0, 3], accepted=[3, 0, 0, 3], emitted=[4, 1, 1, 4])
    records = [record(run(11, 1.0, rounds), PLAIN)]
    assert acceptance.acceptance_length(records) == pytest.approx(2.5)
    assert acceptance.acceptance_rate(records) == 1.0
    assert acceptance.positions(records)["unconditional"].tolist() == pytest.approx([0.5] * 3)
    assert acceptance.positions(records)["conditional"].tolist() == pytest.approx([1.0] * 3)


def test_nothing_drafted_is_undefined_not_zero() -> None:
    rounds = Rounds(drafted=[0, 0], depth=[0, 0], accepted=[0, 0], emitted=[1, 1])
    records = [record(run(3, 1.0, rounds), PLAIN, group=group) for group in range(3)]
    assert math.isnan(acceptance.acceptance_rate(records))
    assert math.isnan(acceptance.alpha(records))
    assert acceptance.acceptance_length(records) == 1.0
    assert all(map(math.isnan, statistics.interval(acceptance.acceptance_rate_estimate(records))))
    assert acceptance.positions(records).empty


def test_tree_nodes_inflate_the_rate_but_not_the_depth_rate() -> None:
    rounds = Rounds(drafted=[10], depth=[4], accepted=[2], emitted=[3])
    records = [record(run(4, 1.0, rounds), PLAIN)]
    assert acceptance.acceptance_rate(records) == pytest.approx(0.2)
    assert acceptance.depth_acceptance_rate(records) == pytest.approx(0.5)


def test_speedup_leaves_out_the_first_token_and_pairs_by_prompt() -> None:
    fast = record(run(5, 1.0), run(5, 2.0), group=0)  # 2.0x
    slow = record(run(9, 8.0), run(5, 2.0), group=1)  # 1.0 s a token against 0.5: 0.5x
    times = speedup.group_times([fast, slow])
    assert speedup.speedup(times) == pytest.approx(1.0)
    assert all(map(math.isnan, ends(times))), "two units give no interval"
    three = speedup.group_times([fast, slow, record(run(5, 2.0), run(5, 2.0), group=2)])
    # log 2 either way and 0: mean 0, standard error log 2 / √3, and t(0.975) = 4.30265 with two degrees of freedom.
    reach = 4.30265 / math.sqrt(3)
    assert ends(three) == pytest.approx((2**-reach, 2**reach), rel=1e-4)
    assert speedup.tokens_per_s(times) == pytest.approx((4 + 8) / 9)
    assert speedup.tokens_per_s(times, "baseline_") == pytest.approx(8 / 4)
    assert speedup.ms_per_token(times) == pytest.approx(9000 / 12)


def test_end_to_end_counts_prefill_and_every_token() -> None:
    times = speedup.group_times([record(run(10, 0.8, prefill_s=0.2), run(5, 1.0, prefill_s=0.5))])
    assert speedup.speedup(times, "end_to_end") == pytest.approx((1.5 / 5) / (1.0 / 10))


def test_batch_times_count_once_for_all_rows() -> None:
    batch = [record(run(5, 2.0), run(5, 4.0), group=0, row=row) for row in range(2)]
    times = speedup.group_times(batch)
    assert len(times) == 1
    assert speedup.tokens_per_s(times) == pytest.approx(8 / 2)
    assert speedup.ms_per_token(times) == pytest.approx(500)
    assert speedup.speedup(times) == pytest.approx(2.0)


def test_a_prompt_that_decodes_nothing_has_no_ratio() -> None:
    ended = record(run(1, 0.0), run(1, 0.0), group=0)
    times = speedup.group_times([ended, record(run(5, 1.0), run(5, 3.0), group=1)])
    assert speedup.speedup(times) == pytest.approx(3.0)
    assert all(map(math.isnan, ends(times)))  # one prompt is no spread
    assert math.isnan(speedup.speedup(speedup.group_times([ended])))


def test_worked_check_of_the_reported_row() -> None:
    """Row R003 of configs/reported.csv, Llama 3.1 8B ← 3.2 1B: α 0.72, k 5, c 1.24B/8.03B predict about 1.73; 175 ->
    290 tokens/s is 1.66.
    """
    assert cost_model.expected_tokens(0.72, 5) == pytest.approx(3.07, abs=0.005)
    assert cost_model.walltime_improvement(0.72, 5, 1.24 / 8.03) == pytest.approx(1.73, abs=0.01)


def test_costs_and_prediction_by_hand() -> None:
    rounds = Rounds(drafted=[3, 3], depth=[3, 3], accepted=[3, 0], emitted=[4, 1])
    method = run(6, 1.0, rounds, target_passes={4: (2, 0.5)}, draft_passes={1: (6, 0.12)})
    records = [record(method, run(6, 1.0, target_passes={1: (5, 1.0)}))]
    costs = cost_model.pass_costs(records)
    assert costs.target_pass_s == pytest.approx(0.2)
    assert costs.draft_cost == pytest.approx(0.02 / 0.2)
    assert costs.draft_cost_per_round == pytest.approx(0.3)
    assert costs.verify_cost == pytest.approx(0.25 / 0.2)
    predicted = cost_model.predicted_speedup(acceptance.acceptance_length(records), costs)
    assert predicted == pytest.approx(2.5 / (3 * 0.1 + 1.25))
    assert cost_model.efficiency(1.0, predicted) == pytest.approx(1.55 / 2.5)


def test_batch_passes_count_once() -> None:
    rounds = [
        Rounds(drafted=[3, 3], depth=[3, 3], accepted=[0, 0], emitted=[1, 1]),
        Rounds(drafted=[3], depth=[3], accepted=[0], emitted=[1]),
    ]
    passes = {"target_passes": {4: (2, 0.4)}, "draft_passes": {1: (6, 0.12)}}
    records = [
        record(run(3, 1.0, one, **passes), run(3, 1.0, target_passes={1: (2, 0.4)}), row=row)
        for row, one in enumerate(rounds)
    ]
    costs = cost_model.pass_costs(records)
    assert costs.draft_cost == pytest.approx(0.02 / 0.2)
    assert costs.verify_cost == pytest.approx(1.0)


def test_engines_that_time_no_passes_have_no_prediction() -> None:
    row = cells_table([record(run(5, 1.0), run(5, 2.0))]).iloc[0]
    assert row["speedup"] == pytest.approx(2.0)
    assert np.isnan([row["predicted_speedup"], row["efficiency"], row["verify_cost"], row["loop_share"]]).all()


@given(st.floats(0, 1), st.integers(0, 16))
def test_expected_tokens_is_the_closed_form(alpha: float, k: int) -> None:
    value = cost_model.expected_tokens(alpha, k)
    assert 1 <= value <= k + 1
    if alpha < 0.999:
        assert value == pytest.approx((1 - alpha ** (k + 1)) / (1 - alpha), rel=1e-6)


@settings(max_examples=15)
@given(st.floats(0.05, 0.95), st.integers(1, 8), st.integers(0, 10_000))
def test_simulated_process_agrees_with_leviathan(alpha: float, k: int, seed: int) -> None:
    """τ of a simulated accept/reject process is eq. (1), its rate E[accepted]/k, its per-position acceptance α and α^i."""
    simulated = simulate(alpha, k, 12_000, np.random.default_rng(seed))
    records = [record(simulated, PLAIN)]
    rounds = len(simulated.rounds.emitted)
    expected = cost_model.expected_tokens(alpha, k)
    noise = 5 * (k + 1) / 2 / math.sqrt(rounds)  # five standard errors of a mean that lies in 1 … k + 1
    assert abs(acceptance.acceptance_length(records) - expected) < noise
    assert abs(acceptance.acceptance_rate(records) - (expected - 1) / k) < noise
    frame = acceptance.positions(records)
    assert abs(frame["conditional"].iloc[0] - alpha) < 5 * 0.5 / math.sqrt(rounds)
    assert frame["unconditional"].to_numpy() == pytest.approx(
        alpha ** frame["position"].to_numpy(), abs=5 * 0.5 / math.sqrt(rounds)
    )
    assert acceptance.alpha(records) == pytest.approx(alpha)


def test_a_mean_over_tasks_has_the_degrees_of_freedom_of_welch() -> None:
    """By hand: variances 1/3 and 4/3 of the means of three; (5/3)² / ((1/9 + 16/9) / 2) = 50/17."""
    found = statistics.weighted([statistics.mean([-1.0, 0.0, 1.0]), statistics.mean([-2.0, 0.0, 2.0])])
    assert (found.value, found.variance, found.freedom) == pytest.approx((0, 5 / 12, 50 / 17))

    def over_strata(*strata: list[float]) -> statistics.Interval:
        return statistics.interval(statistics.average([statistics.mean(values) for values in strata]))

    assert over_strata([0.0, 0.0, 0.0], [1.0, 1.0]) == (0.5, 0.5), "no spread within, none at all"
    assert np.isnan(over_strata([0.0, 1.0], [1.0])).all()
    assert np.isnan(over_strata()).all()


def test_a_ratio_of_sums_by_hand() -> None:
    """Equal denominators make it a mean; units without one say nothing."""
    assert statistics.ratio_interval([3, 5, 7], [2, 2, 2]) == pytest.approx(statistics.mean_interval([1.5, 2.5, 3.5]))
    assert statistics.ratio_interval([3, 5, 7, 0], [2, 2, 2, 0]) == pytest.approx(
        statistics.mean_interval([1.5, 2.5, 3.5])
    )
    assert np.isnan(statistics.ratio_interval([3, 0], [2, 0])).all()
    assert np.isnan(statistics.ratio_interval([0, 0], [0, 0])).all()


def test_the_jackknife_of_a_mean_is_the_mean() -> None:
    values = np.array([1.0, 1.5, 4.0, 2.0])
    found = statistics.jackknife(values.mean(), [np.delete(values, unit).mean() for unit in range(4)])
    assert statistics.interval(found) == pytest.approx(statistics.mean_interval(values))


def test_the_interval_of_a_mean_of_ratios() -> None:
    """Alike units have no spread; one unit says nothing, and two of a single stratum next to nothing."""
    assert statistics.stratified_ratio_interval([[(6.0, 3.0)] * 4, [(4.0, 1.0)] * 2]) == (3.0, 3.0)
    assert all(np.isnan(statistics.stratified_ratio_interval([[(1.0, 1.0), (9.0, 1.0)]]))), "n = 2"
    assert all(np.isnan(statistics.stratified_ratio_interval([[(1.0, 1.0)], [(2.0, 1.0)] * 2])))


def test_prompts_needed_is_the_paired_t_test() -> None:
    """sd 0.1 against 5 %: scipy's own t quantiles hold at the answer and not one prompt below it."""
    logs = np.array([-0.1, 0.0, 0.1])

    def required(count: int) -> float:
        t = scipy.stats.t(count - 1)
        return ((t.ppf(0.975) + t.ppf(0.8)) * 0.1 / math.log(1.05)) ** 2

    needed = int(statistics.prompts_needed(logs))
    assert needed >= required(needed) and needed - 1 < required(needed - 1)
    assert needed == 35
    assert statistics.prompts_needed([0.3, 0.3]) == 2 and math.isnan(statistics.prompts_needed([0.3]))


def test_repeated_ngrams() -> None:
    assert repetition.repeated_ngrams([[1, 2, 3, 4, 5, 6]]) == 0
    assert repetition.repeated_ngrams([[1, 2, 1, 2, 1, 2, 1, 2]]) == pytest.approx(3 / 5)
    assert repetition.repeated_ngrams([[1, 2, 3, 4], [1, 2, 3, 4]]) == 0  # within an output, not between outputs
    assert math.isnan(repetition.repeated_ngrams([[1, 2, 3]]))
    assert repetition.distinct_ngrams([[1, 1, 1], [1, 1, 2]]) == pytest.approx(2 / 4)


def test_cells_table_columns_and_values() -> None:
    first = CELL.model_copy(update={"task": "code", "k": 4})
    other = first.model_copy(update={"k": 0, "method": "autoregressive"})
    frame = cells_table([*cell_records(first, alpha=0.7), *cell_records(other, alpha=0.0)])
    assert list(frame.columns[: len(COLUMNS)]) == COLUMNS
    drafted, plain = (row for _, row in frame.iterrows())
    assert (drafted["prompts"], drafted["repeats"], drafted["tokens"]) == (6, 2, 6 * 64)
    assert drafted["speedup_low"] < drafted["speedup"] < drafted["speedup_high"]
    assert drafted["draft_cost"] == pytest.approx(5e-4 / 6e-3, rel=0.05)
    assert 0.9 < drafted["efficiency"] < 1.1
    assert drafted["cut_rounds"] <= 12
    assert drafted[["target_share", "draft_share", "loop_share"]].sum() == pytest.approx(1)
    assert plain["acceptance_length"] == 1 and plain["efficiency"] == pytest.approx(1, abs=0.03)
    assert pd.isna(plain["acceptance_rate"]) and pd.isna(plain["draft_cost"])


def test_empty_study_has_an_empty_table() -> None:
    assert cells_table([]).empty
    assert list(cells_table([]).columns[: len(COLUMNS)]) == COLUMNS


def test_a_batch_against_prompts_run_one_by_one() -> None:
    """Four prompts of 11 tokens: 1 s each alone, 2 s together: twice the throughput; a pass over 4 rows costs 2 of one."""

    def run(decode_s: float, pass_s: float) -> Run:
        rounds = Rounds(drafted=[0] * 10, depth=[0] * 10, accepted=[0] * 10, emitted=[1] * 10)
        times = {"ttft_s": 0.1, "prefill_s": 0.1, "decode_s": decode_s, "target_passes": {1: (10, 10 * pass_s)}}
        return Run(tokens=list(range(11)), stop="length", rounds=rounds, **times)

    cell = Cell(engine="native", pair="p", method="naive_batching", k=0, task="t", temperature=0, batch_size=4)
    records = [
        Record(
            cell=cell, digest="-", prompt_id=str(row), group=0, seed=0, prompt_tokens=3, text="", baseline_text="",
            baseline_alone=True, run=run(2.0, 0.2), baseline=run(1.0, 0.1),
        )
        for row in range(4)
    ]  # fmt: skip
    row = cells_table(records).iloc[0]
    assert row["speedup"] == pytest.approx(2.0)
    assert row["predicted_speedup"] == pytest.approx(2.0)
    assert row["baseline_tokens_per_s"] == pytest.approx(10.0)
    assert row["tokens_per_s"] == pytest.approx(20.0)
    assert row["baseline_ms_per_token"] == pytest.approx(100.0) and row["ms_per_token"] == pytest.approx(200.0)
    assert row["baseline_ttft_ms"] == row["ttft_ms"] == pytest.approx(100.0), "of one prompt, not of four"


def test_an_engines_totals_stand_in_for_rounds() -> None:
    """8 tokens, the first from prefill: 7 in 3 passes. What the engine does not count is undefined, not zero."""
    counts = Counts(rounds=3, drafted=9, accepted=5, per_position=[3, 1, 1])
    records = [record(run(8, 0.7, counts=counts), PLAIN, group=group) for group in range(2)]
    assert acceptance.acceptance_length(records) == pytest.approx(7 / 3)
    assert acceptance.acceptance_rate(records) == pytest.approx(5 / 9)
    assert acceptance.rounds(records) == 6
    assert acceptance.cut_rounds(records) == 0
    frame = acceptance.positions(records)
    assert frame["unconditional"].tolist() == pytest.approx([1.0, 1 / 3, 1 / 3])
    assert frame["conditional"].tolist() == pytest.approx([1.0, 1 / 3, 1.0])
    row = cells_table(records).iloc[0]
    assert row["acceptance_length"] == pytest.approx(7 / 3) and row["rounds"] == 6
    assert math.isnan(row["alpha"]) and math.isnan(row["depth_acceptance_rate"]) and math.isnan(row["peak_memory_mb"])
    bare = [record(run(8, 0.7, counts=Counts(rounds=3)), PLAIN)]
    assert math.isnan(acceptance.acceptance_rate(bare)) and acceptance.positions(bare).empty
    assert math.isnan(acceptance.acceptance_length([record(run(8, 0.7), PLAIN)]))


def test_the_cut_round_counts_where_engines_must_count_alike() -> None:
    records = [record(WHOLE, PLAIN)]
    assert acceptance.emitted_by_prompt(records) == {"0.0": (6, 2)}
    assert acceptance.emitted_by_prompt(records, cut=True) == {"0.0": (7, 3)}
