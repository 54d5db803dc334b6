"""The audit passes right methods, and its tests keep their levels and see what they promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flaws import METHODS, cell

from specrig.audit import exact
from specrig.audit.distribution import ChiSquared, g_test, next_token_test, rank_test
from specrig.audit.exact import ExactTest, bonus_tokens, draw_samples
from specrig.audit.multiple_testing import FAMILY_WISE, audited_cells, holm_failures, strictest_level, with_verdicts
from specrig.audit.positions import transform, uniformity
from specrig.audit.run import COLUMNS, audit_exact
from specrig.audit.toy_pair import VOCABULARY, build
from specrig.decoding.types import Generation, Round
from specrig.engines.native import Native
from specrig.study.load import load_study

ALARM = 1e-4


@pytest.fixture(scope="session")
def toy_pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("toy_pair")


@pytest.mark.parametrize("label", ["autoregressive", *METHODS])
def test_right_methods_pass_and_every_part_of_a_sampler_works(toy_pair: Path, label: str) -> None:
    """Drafts are rejected at once, in their midst and not at all; there are rounds beyond the first.

    So whatever is wrong in a sampler has its chance to show. 512 samples show a bias of 0.15 in total variation at one of
    the tokens; what is fainter is for `test_verify` and for the audit of a study, which draws 40 times as many.
    """
    native, found = generations(label, toy_pair)
    assert exact.evaluate(native.target, found, 1.0).p_value > ALARM
    if label in METHODS:
        rounds = [entry for generation in found for entry in generation.rounds if entry.depth and not entry.cut]
        none, all_ = ([r.accepted == 0 for r in rounds], [r.accepted == r.depth for r in rounds])
        assert min(np.mean(none), np.mean(all_)) > 0.003
        assert any(0 < entry.accepted < entry.depth for entry in rounds)
        assert np.mean([len(generation.rounds) > 1 for generation in found]) > 0.5


def generations(label: str, folder: Path, samples: int = 512) -> tuple[Native, list[Generation]]:
    calls = cell(label)
    native = Native(build(folder, exact.methods()[calls.method].needs))
    return native, draw_samples(native, calls, samples)


def test_k_adapts_while_adaptive_k_is_audited(toy_pair: Path) -> None:
    offered = {entry.drafted for generation in generations("adaptive_k", toy_pair)[1] for entry in generation.rounds}
    assert offered >= {3, 4, 5}, "down after rejections, up after a draft that was accepted to its end"


AUDITED: dict[str, Any] = {
    "study": "audited", "pairs": ["tiny"], "tasks": ["code", "translation"],
    "methods": [
        {"method": "adaptive_k", "k": 8}, {"method": "lookahead", "k": 3}, {"method": "draft_model", "k": 4, "temperatures": [0, 1]},
        {"method": "draft_model", "k": 4, "temperatures": [1], "acceptance": "block"},
    ],
}  # fmt: skip


def test_the_cells_own_ks_and_options_are_audited(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int, dict[str, object]]] = []

    def noted(engine: str, cell_: object, *_: object) -> ExactTest:
        calls.append((cell_.method, cell_.k, cell_.options))  # type: ignore[attr-defined]
        return ExactTest((ChiSquared("-", 10.0, 10, 1000),), (), 1000)

    monkeypatch.setattr(exact, "exact_test", noted)
    study = load_study(AUDITED)
    audit_exact(study, "native", workplace / "exact-native.csv")
    assert [(method, k) for method, k, _ in calls] == [
        ("adaptive_k", 8),
        ("lookahead", 3),
        ("draft_model", 4),
        ("draft_model", 4),
    ]
    assert calls[0][2]["start"] == 4 and calls[0][2]["minimum"] == 2
    assert [options["acceptance"] for _, _, options in calls[2:]] == ["exact", "block"]
    rows = pd.read_csv(workplace / "exact-native.csv")
    assert list(rows) == COLUMNS
    assert rows["passed"].isna().all(), "judged when all of the study's p-values are there"
    assert with_verdicts(rows)["passed"].tolist() == [True] * 4


def test_an_engine_that_stops_early_is_told(toy_pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    native = Native(build(toy_pair))
    monkeypatch.setattr(native, "eos", frozenset(range(VOCABULARY)))
    with pytest.raises(exact.EngineError, match=r"native ended 8 of 8 continuations before"):
        draw_samples(native, cell("ngram"), 8)


def test_what_a_test_promises_to_see_it_sees() -> None:
    """However the difference is spread: evenly, or on one token."""
    right = {(token,): 0.1 for token in range(10)}
    test = g_test([(number % 10,) for number in range(5000)], right)
    assert test.p_value > 0.99
    detected = test.detectable(ALARM, 0.8)
    rng = np.random.default_rng(0)
    for tilt in ([detected / 5] * 5 + [-detected / 5] * 5, [detected] + [-detected / 9] * 9):
        drawn = rng.choice(10, size=(200, 5000), p=np.full(10, 0.1) + tilt)
        failed = sum(g_test([(int(token),) for token in one], right).p_value <= ALARM for one in drawn)
        assert failed >= 145
    assert test.power(detected, ALARM) == pytest.approx(0.8, abs=1e-6)


def test_a_finding_says_what_would_have_been_seen_and_no_distance_that_is_mere_chance() -> None:
    part = ChiSquared("token 2, given the one before", 31.0, 30, 20_480)
    test = ExactTest((part,), (), 20_480)
    seen, unseen = part.detectable(ALARM, 0.8), part.detectable(ALARM, 0.05)
    assert (
        f"a bias of {seen:.3f} in total variation at one of the tokens, the same whenever the same token comes before"
        in test.describe(ALARM)
    )
    assert f"one of {unseen:.3f} in 5 %" in test.describe(ALARM)
    wrong = ExactTest((ChiSquared("token 2, given the one before", 310.0, 30, 20_480), part), (), 20_480)
    assert wrong.describe(ALARM) == "not the target's distribution: token 2, given the one before"
    assert wrong.p_value == pytest.approx(2 * wrong.each[0].p_value)


def histories(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Contexts, tokens and the tokens' probabilities, each sample with its own; one token is rare."""
    contexts = rng.integers(0, 3, n)
    p = rng.dirichlet([4, 2, 1, 0.02], n)
    tokens = (p.cumsum(1) < rng.random((n, 1)) * p.sum(1, keepdims=True)).sum(1).clip(max=3)
    return contexts, tokens, p


def test_the_next_token_test_keeps_its_level_and_its_degrees() -> None:
    rng = np.random.default_rng(1)
    found = [next_token_test("-", *histories(rng, 1500)) for _ in range(600)]
    p_values = np.array([test.p_value for test in found])
    assert {test.degrees for test in found} <= {6, 7, 8, 9}
    assert abs((p_values < 0.05).mean() - 0.05) < 0.03
    assert abs((p_values < 0.5).mean() - 0.5) < 0.08


def test_the_next_token_test_sees_a_bias_that_each_history_hides() -> None:
    """Frequencies over all samples are right; given what came before they are not."""
    rng = np.random.default_rng(2)
    contexts = rng.integers(0, 2, 4000)
    p = np.where(contexts[:, None] == 0, [[0.7, 0.3]], [[0.3, 0.7]])
    tokens = rng.integers(0, 2, 4000)  # half and half, as right samples are too, all together
    assert abs(tokens.mean() - p[:, 1].mean()) < 0.05
    assert next_token_test("-", contexts, tokens, p).p_value < 1e-30


def test_a_bonus_token_is_one_behind_a_draft_that_was_accepted_to_its_end() -> None:
    whole, rejected, plain, cut = Round(2, 2, 2, 3), Round(4, 4, 2, 3), Round(0, 0, 0, 1), Round(4, 4, 4, 4, cut=True)

    def positions(prefilled: int, *rounds: Round) -> list[int]:
        tokens = [0] * (prefilled + sum(entry.emitted for entry in rounds))
        (row,) = bonus_tokens([Generation(tokens, "length", list(rounds), 0.0, 0, 0.0, 0.0, 0.0)])
        found: list[int] = np.flatnonzero(row).tolist()
        return found

    assert positions(1, whole, rejected) == [3]
    assert positions(0, whole, plain, whole) == [2, 6], "an engine whose first pass verifies drafts"
    assert positions(1, rejected, whole) == [6]
    assert positions(1, plain, plain, plain, cut) == []
    assert positions(1, rejected, plain, whole) == [], "the eighth token is not tested"


def test_few_tokens_are_tested_by_how_likely_they_were() -> None:
    rng = np.random.default_rng(4)

    def drawn(p: np.ndarray) -> np.ndarray:
        return (p.cumsum(1) < rng.random((len(p), 1))).sum(1).clip(max=p.shape[1] - 1)

    found = []
    for _ in range(600):
        p = rng.dirichlet(np.full(8, 0.7), 200)
        found.append(rank_test("-", drawn(p), p).p_value)
    assert abs((np.array(found) < 0.05).mean() - 0.05) < 0.03
    assert rank_test("-", drawn(rng.permutation(p)), p).p_value < 1e-9, "drawn from another context's distribution"
    assert rank_test("-", np.zeros(0, dtype=int), np.zeros((0, 8))).p_value == 1, "no bonus token is no evidence"
    assert rank_test("-", np.array([8, 0]), p[:2]).p_value == 0, "outside the vocabulary"


def test_impossible_tokens_fail_at_once() -> None:
    p = np.array([[0.5, 0.5, 0.0]] * 100)
    contexts = np.zeros(100, dtype=int)
    for wrong in (2, 3):  # of probability zero; not in the vocabulary
        assert next_token_test("-", contexts, np.array([0, 1] * 49 + [0, wrong]), p).p_value == 0
    assert g_test([(0,), (1,)] * 10, {(0,): 0.5, (1,): 0.5}).p_value == 1, (
        "too few samples for any test are no evidence"
    )
    assert g_test([(0,)] * 50 + [(1,)] * 49 + [(2,)], {(0,): 0.5, (1,): 0.5}).p_value == 0


def test_a_family_of_tests_is_judged_by_holms_procedure() -> None:
    level = FAMILY_WISE
    assert holm_failures([]).tolist() == []
    assert holm_failures([level / 3, level / 2 * 1.01, 0.9]).tolist() == [True, False, False]
    assert holm_failures([0.9, level / 2, level / 3]).tolist() == [False, True, True]
    assert holm_failures([level / 2] * 3).tolist() == [False] * 3, (
        "each is below the last step's level, none below the first's"
    )
    rng = np.random.default_rng(3)
    assert np.mean([holm_failures(rng.random(40)).any() for _ in range(4000)]) < 2 * level


def test_rows_of_several_files_are_one_family() -> None:
    detected = pd.DataFrame({"method": list("abcde"), "p_value": [0.6 * FAMILY_WISE, 0.5, 1e-30, np.nan, 1e-9]})
    detected["passed"] = [None, None, True, False, None]  # c is lossy by design, d was not tested
    assert with_verdicts(detected)["passed"].tolist() == [True, True, True, False, False], (
        "a fails alone, not among three"
    )
    assert with_verdicts(detected[:1])["passed"].tolist() == [False]
    assert with_verdicts(detected.drop(columns="p_value")).equals(detected.drop(columns="p_value"))


def test_the_strictest_level_counts_what_a_study_plans(workplace: Path) -> None:
    study = load_study(AUDITED)
    planned = round(FAMILY_WISE / strictest_level(study.grid.cells))
    assert planned == 4 + 2 * 2, "4 methods and variants on the toy pair, 2 of them sampled on two tasks"
    draft, *_ = (cell for cell in study.grid.cells if cell.method == "draft_model" and not cell.variant)
    swept = [draft.model_copy(update={"k": k, "temperature": t}) for k in (2, 6, 4) for t in (0.0, 0.6, 1.4)]
    assert [(probe.temperature, probe.k) for probe in audited_cells(swept)] == [(0.6, 2), (0.6, 6), (1.4, 2), (1.4, 6)]
    assert [(probe.temperature, probe.k) for probe in audited_cells(swept[::3])] == [(1.0, 2), (1.0, 6)], (
        "only greedy in the study"
    )


def test_transformed_draws_are_uniform_and_shifted_ones_are_not() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(50, 0.3), 4000)
    q = p**1.2 / (p**1.2).sum(1, keepdims=True)  # a sampler at temperature 0.83 that claims 1

    def draws(weights: np.ndarray) -> list[int]:
        return [int(rng.choice(50, p=row)) for row in weights]

    assert uniformity(transform(p, draws(p), rng)).p_value > ALARM
    assert uniformity(transform(p, draws(q), rng)).p_value < ALARM


def test_an_impossible_token_fails_at_once() -> None:
    p = np.array([[0.5, 0.5, 0.0]] * 30)
    assert uniformity(transform(p, [0] * 29 + [2], np.random.default_rng(0))).p_value == 0


def test_equal_probabilities_share_their_stretch() -> None:
    p = np.full((4000, 8), 1 / 8)
    values = transform(p, [3] * 4000, np.random.default_rng(0))  # whatever the id, the whole line is one tie
    assert uniformity(values).p_value > ALARM


def test_uniformity_keeps_its_level_for_a_handful_of_tokens_and_sees_what_it_says() -> None:
    rng = np.random.default_rng(0)
    p_values = np.array([uniformity(rng.random(30)).p_value for _ in range(1000)])
    assert abs((p_values < 0.05).mean() - 0.05) < 0.025  # a level of 0.03 or 0.08 instead of 0.05 is seen
    shift = float(uniformity(rng.random(200)).describe(ALARM).split("a shift of ")[1].split()[0])
    low = rng.random((400, 200)) < 0.5 + shift
    shifted = np.where(low, 0.5 * rng.random((400, 200)), 0.5 + 0.5 * rng.random((400, 200)))
    assert np.mean([uniformity(one).p_value <= ALARM for one in shifted]) > 0.75
    assert uniformity(np.empty(0)).describe(ALARM) == "no tokens"


def test_outputs_that_share_their_seeds_do_not_fail_more_often() -> None:
    """As those of a prompt for every k: pooled, five copies of a sample would count as five times as many draws."""
    rng = np.random.default_rng(0)
    samples = [rng.random(60) for _ in range(300)]  # the pooled test fails in more than 50 of them
    found = np.array([uniformity(*[values] * 5).p_value for values in samples])
    pooled = np.array([uniformity(np.tile(values, 5)).p_value for values in samples])
    assert (found < 0.05).mean() <= 0.05 < (pooled < 0.05).mean() / 4
    p_value = uniformity(samples[0]).p_value
    assert uniformity(samples[0], samples[0], np.empty(0)).p_value == pytest.approx(min(1.0, 2 * p_value))
    assert uniformity(samples[0], samples[1]).describe(ALARM).startswith("120 tokens, within chance of uniform")
