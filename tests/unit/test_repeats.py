"""The time of a generation from its repeats: the least time of each round, until that settles."""

from __future__ import annotations

import pytest

from specrig.measurement.records import Repeat, Rounds, Run
from specrig.measurement.repeats import pooled, settled


def run(round_s: list[float], *, tokens: int | None = None, decode_s: float | None = None, accepted: int = 0) -> Run:
    """One repeat with these rounds. tokens: without the first, by default one a round."""
    tokens, decode_s = len(round_s) if tokens is None else tokens, decode_s or sum(round_s)
    repeat = Repeat(
        tokens=tokens,
        ttft_s=0.1 * decode_s,
        prefill_s=0.2 * decode_s,
        decode_s=decode_s,
        round_s=round_s,
        energy_j=decode_s,
    )
    count = len(round_s)
    rounds = Rounds(drafted=[4] * count, depth=[4] * count, accepted=[accepted] * count, emitted=[1] * count)
    return Run(
        tokens=list(range(1 + tokens)), stop="length", rounds=rounds, ttft_s=repeat.ttft_s, prefill_s=repeat.prefill_s,
        decode_s=decode_s, repeats=[repeat], target_passes={5: (count, decode_s / 2)},
    )  # fmt: skip


def test_each_round_counts_with_its_least_time() -> None:
    (found,) = pooled([[run([1, 5, 1])], [run([4, 1, 2])], [run([3, 3, 3])]], 0.02)
    assert (found.timing, found.decode_s) == ("rounds", 3.0)
    assert [repeat.decode_s for repeat in found.repeats] == [7, 7, 9], "a record keeps every repeat"
    assert (found.ttft_s, found.prefill_s) == (pytest.approx(0.7), pytest.approx(1.4))
    assert found.energy_j == pytest.approx(23 / 3)
    assert found.target_passes == {5: (3, pytest.approx(1.5))}, "half of the time, as in the fastest whole repeat"


def test_repeats_whose_rounds_differ_count_with_the_least_whole_run() -> None:
    (found,) = pooled([[run([1, 5, 1], accepted=1)], [run([2, 2, 2], accepted=3)]], 0.02)
    assert (found.timing, found.decode_s, found.rounds.accepted) == ("run", 6.0, [3, 3, 3])
    (total,) = pooled([[run([], tokens=4, decode_s=3)], [run([], tokens=4, decode_s=2)]], 0.02)
    assert (total.timing, total.decode_s) == ("run", 2), "an engine that reports totals only"


def test_a_batch_that_a_server_composes_counts_with_its_mean_time_per_token() -> None:
    batches = [[run([], tokens=4, decode_s=seconds)] * 2 for seconds in (3.0, 2.0)]
    assert [(row.timing, row.decode_s) for row in pooled(batches, 0.02)] == [("mean", 2.5)] * 2
    (sampled,) = pooled([[run([], tokens=4, decode_s=4.0)], [run([], tokens=8, decode_s=4.0)]], 0.02)
    assert (sampled.timing, sampled.decode_s) == ("mean", pytest.approx(4 * (1 + 0.5) / 2))
    # A batch of the loop has rounds of its own.
    assert [row.timing for row in pooled([[run([1.0, 1.0])] * 2] * 2, 0.02)] == ["rounds"] * 2


def test_times_settle_where_the_last_repeat_lowers_them_by_little() -> None:
    def after(*round_s: list[float]) -> bool:
        return settled([run(seconds).repeats[0] for seconds in round_s], "rounds", 0.02)

    assert not after([1, 1]), "one repeat says nothing of itself"
    assert after([1, 1], [1.5, 0.97]) and not after([1, 1], [1.5, 0.95])
    assert after([1, 1], [9, 9]), "a slower repeat lowers nothing"
    assert not after([1, 1], [1, 1], [0.5, 1]) and after([1, 1], [0.5, 1], [1, 1])
    assert settled([run([], tokens=0, decode_s=1e-6).repeats[0]] * 2, "run", 0.02), "nothing was decoded"
