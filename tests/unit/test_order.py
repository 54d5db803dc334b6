"""The order of methods, reported and measured: Kendall's τ, its interval, who changed places and why."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kendalltau
from synthetic import write_study

from specrig.analysis.order import FACTORS, OrderComparison, compare_orders, kendall, rankings
from specrig.results.order_tables import changes_table, order_table, reasons_sentence, sentence
from specrig.results.study_data import read_study
from specrig.results.study_results import StudyResults
from specrig.study.claims import Claim


def claim(method: str, figure: float, **other: str) -> Claim:
    fields = {
        "id": f"{method.split()[0]}-{figure}",
        "source": "A paper",
        "target": "big",
        "task": "code",
        "temperature": "0",
        "metric": "speedup",
    }
    return Claim.model_validate({**fields, "method": method, "low": str(figure), "high": str(figure), **other})


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> StudyResults:
    """A study in which draft_model is faster than ngram, and adaptive_k between the two."""
    folder = write_study(tmp_path_factory.mktemp("order") / "s", ks=(4,), tasks=("code", "translation"), prompts=8)
    return StudyResults(read_study(folder))


def compare(results: StudyResults, *claims: Claim) -> list[OrderComparison]:
    return compare_orders(claims, results.best, results.study.cells)


def test_kendall_is_scipys_also_with_equal_figures() -> None:
    random = np.random.default_rng(3)
    for _ in range(50):
        one, two = random.integers(0, 5, 6), random.integers(0, 5, 6)
        assert kendall(one, two) == pytest.approx(kendalltau(one, two).statistic, nan_ok=True)
    stacked = random.standard_normal((7, 4))
    assert kendall([1, 2, 3, 4], stacked) == pytest.approx([kendalltau([1, 2, 3, 4], row).statistic for row in stacked])


def test_a_ranking_is_what_one_source_says_under_one_condition() -> None:
    claims = [
        claim("draft_model (68M)", 2.0),
        claim("prompt_lookup", 1.5),
        claim("ngram", 1.6),
        claim("eagle", 3.0, task="translation"),
        claim("eagle2", 3.1, task="translation", temperature="1"),
        claim("medusa", 2.2, metric="acceptance_length"),
        claim("autoregressive", 1.0),
    ]
    (found,) = rankings(claims)
    assert dict(found.figures) == {"draft_model": 2.0, "ngram": 1.6}, (
        "its own names for methods, the better of two figures"
    )


def test_the_same_order_and_the_reverse(results: StudyResults) -> None:
    speeds = results.best[results.best["task"] == "code"].set_index("method")["speedup"]
    assert speeds["draft_model"] > speeds["ngram"]
    (same,) = compare(results, claim("draft_model", 3.0), claim("ngram", 1.5))
    assert (same.tau, same.changes) == (1.0, []) and same.low <= same.tau <= same.high
    (reverse,) = compare(results, claim("draft_model", 1.5), claim("ngram", 3.0))
    (change,) = reverse.changes
    assert reverse.tau == -1.0 and (change.behind, change.ahead) == ("draft_model", "ngram")
    assert change.reported == 0.5 and change.measured == pytest.approx(speeds["draft_model"] / speeds["ngram"])
    assert reverse.measured == pytest.approx({name: speeds[name] for name in ("draft_model", "ngram")})


def test_factors_multiply_to_the_measured_quotient(results: StudyResults) -> None:
    (found,) = compare(results, claim("draft_model", 1.0, task="overall"), claim("ngram", 2.0, task="overall"))
    (change,) = found.changes
    assert found.tasks == ["code", "translation"]
    assert math.prod(change.factors.values()) == pytest.approx(change.measured)
    assert change.factors["draft_cost"] < 1 < change.factors["acceptance"], (
        "a draft model costs passes, and is accepted more often"
    )


def test_certainty_follows_from_the_scatter_of_prompts(results: StudyResults) -> None:
    """Draws of the difference of two means have Student's t: the share above 0 is its distribution function."""
    from scipy.stats import ttest_rel

    from specrig.analysis.speedup import group_times, log_speedups

    (found,) = compare(results, claim("draft_model", 1.0), claim("adaptive_k", 2.0))
    logs = {
        records[0].cell.method: log_speedups(group_times(records))
        for records in results.study.cells.values()
        if records[0].cell.task == "code"
    }
    p_value = ttest_rel(logs["draft_model"], logs["adaptive_k"], alternative="greater").pvalue
    certainty = found.changes[0].certainty if found.changes else None
    if certainty is None:  # the synthetic study has them the other way round
        (found,) = compare(results, claim("draft_model", 2.0), claim("adaptive_k", 1.0))
        (change,), p_value = found.changes, 1 - p_value
        certainty = change.certainty
    assert certainty == pytest.approx(1 - p_value, abs=0.03)


def test_what_may_not_be_compared_is_left_out(results: StudyResults) -> None:
    pair = [claim("draft_model", 2.0), claim("medusa", 3.0)]
    assert compare(results, *pair) == [], "the synthetic medusa is lossy"
    assert compare(results, claim("draft_model", 2.0, temperature="1"), claim("ngram", 1.0, temperature="1")) == []
    assert (
        compare(results, claim("draft_model", 2.0, task="math (GSM8K)"), claim("ngram", 1.0, task="math (GSM8K)")) == []
    )
    disturbed = results.best.assign(disturbed=np.where(results.best["method"] == "ngram", "yes: others", ""))
    lengths = [claim("draft_model", 3.0, metric="acceptance_length"), claim("ngram", 1.5, metric="acceptance_length")]
    speeds = [claim("draft_model", 3.0), claim("ngram", 1.5)]
    cells = results.study.cells
    assert [each.ranking.claim.metric for each in compare_orders([*speeds, *lengths], disturbed, cells)] == [
        "acceptance_length"
    ]


def test_the_sources_own_prompts_are_told_apart_from_the_same_kind_of_task(results: StudyResults) -> None:
    (kind,) = compare(
        results, claim("draft_model", 2.0, task="code (HumanEval)"), claim("ngram", 1.0, task="code (HumanEval)")
    )
    assert kind.tasks == ["code"] and not kind.exact


def test_tables_and_sentences(results: StudyResults) -> None:
    found = compare(results, claim("draft_model", 1.5), claim("ngram", 3.0), claim("adaptive_k", 1.0))
    table, changes = order_table(found), changes_table(found)
    assert table["reported"].item() == "ngram 3.00 > draft_model 1.50 > adaptive_k 1.00"
    assert len(changes) == table["changed"].item() and set(FACTORS) <= set(changes.columns)
    assert "over 1 reported orders by speed" in sentence(table).lower() and "acceptance in" in reasons_sentence(changes)
    assert sentence(order_table([])) == "No source ranks two methods that this study measured."
    assert reasons_sentence(pd.DataFrame(columns=list(FACTORS))) == ""
