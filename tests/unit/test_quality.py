"""Scores of outputs: as the libraries compute them, method against baseline, and generated code only when asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from synthetic import write_study

from specrig.analysis.quality import KEYS, Score, quality_table, scores
from specrig.cell import Cell
from specrig.measurement.records import Record, Rounds, Run
from specrig.report.figures.loss import speed_against_loss
from specrig.report.figures.panels import SCREEN, NothingError
from specrig.report.quality_files import write_quality_table
from specrig.report.quality_table import quality_grid
from specrig.report.study_data import read_study
from specrig.report.study_results import StudyResults
from specrig.tasks import Prompt
from specrig.tasks.scorers import Output, Scorer, registry
from specrig.tasks.scorers.pass_at_1 import passes, program

TEXTS = ["the cat sat on the mat today", "a dog barked at me twice", "hello there my friend"]
REFERENCES = ["the cat sat on a mat today", "the dog barked at me two times", "hello there, friend of mine"]


def corpus_score(scorer: Scorer) -> float:
    found = [scorer.statistics(Output("", text, reference)) for text, reference in zip(TEXTS, REFERENCES, strict=True)]
    return scorer.combine([sum(column) for column in zip(*found, strict=True)], len(found))


@pytest.mark.parametrize(("name", "metric"), [("bleu", "BLEU"), ("chrf", "CHRF")])
def test_summed_statistics_give_sacrebleus_corpus_score(name: str, metric: str) -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    expected = getattr(sacrebleu, metric)().corpus_score(TEXTS, [REFERENCES]).score
    assert corpus_score(registry()[name]()) == pytest.approx(expected)


def test_rouge_of_a_known_pair() -> None:
    pytest.importorskip("rouge_score")
    scorer = registry()["rouge_l"]()
    # 6 of 7 words in common order, 7 and 7 words: precision and recall 6/7.
    assert scorer.combine(scorer.statistics(Output("", TEXTS[0], REFERENCES[0])), 1) == pytest.approx(100 * 6 / 7)


def test_distinct_2_counts_word_pairs() -> None:
    scorer = registry()["distinct_2"]()
    assert scorer.statistics(Output("", "a b a b")) == [pytest.approx(100 * 2 / 3)]
    assert scorer.statistics(Output("", "a")) == [0.0]


def test_every_scorer_is_in_the_file_of_its_name() -> None:
    assert set(registry()) == {"bleu", "chrf", "distinct_2", "pass_at_1", "reasoning_gym", "rouge_l"}


@pytest.mark.parametrize(
    ("code", "tests", "expected"),
    [
        ("def f(x):\n    return x + 1\n", "assert f(1) == 2", True),
        ("def f(x):\n    return x\n", "assert f(1) == 2", False),
        ("import os\nos._exit(0)", "assert False", False),
        ("import sys\nsys.exit(0)", "assert False", False),
        ("def f(:", "", False),
        ("x = bytearray(3 << 30)", "", False),
        ("open('big', 'wb').write(bytes(4 << 20))", "", False),
        ("import os\nassert 'HOME' not in os.environ", "", True),
        ("print('x' * (2 << 20))", "", False),
        ("from __future__ import annotations\ndef f(x: Y): return x", "assert f(2) == 2", True),
    ],
)
def test_programs_pass_only_by_running_to_their_end_within_limits(code: str, tests: str, expected: bool) -> None:
    assert passes(code, tests) is expected


def test_a_program_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specrig.tasks.scorers.pass_at_1.TIMEOUT_S", 1)
    assert passes("import time\ntime.sleep(60)  # no processor time, so only the clock stops it", "") is False


def test_completions_are_cut_and_fenced_answers_taken_out() -> None:
    stub = 'def f(x):\n    """Adds one."""\n'
    cut = program(Output(stub, "    return x + 1\n\nprint(f(2))\ndef g(): pass"))
    assert cut == stub + "    return x + 1\n\n"
    fenced = program(Output(stub, "Sure:\n```python\ndef f(x):\n    return x + 1\n```\nDone."))
    assert passes(fenced, "assert f(1) == 2")
    assert passes(cut, "assert f(1) == 2")


def record(number: int, text: str, baseline: str, *, temperature: float = 0.0, k: int = 4) -> Record:
    def run(written: str) -> Run:
        tokens = [ord(sign) for sign in written]
        return Run(tokens=tokens, stop="length", rounds=Rounds(), ttft_s=1, prefill_s=1, decode_s=1)

    cell = Cell(engine="native", pair="p", method="draft_model", k=k, task="t", temperature=temperature)
    return Record(
        cell=cell, digest="d", prompt_id=str(number), group=number, seed=0, prompt_tokens=1, text=text, baseline_text=baseline,
        run=run(text), baseline=run(baseline),
    )  # fmt: skip


PROMPTS = {"t": {str(number): Prompt(str(number), "p", reference) for number, reference in enumerate(REFERENCES)}}


def table(records: list[Record], *scorers: str, run_code: bool = False, prompts: Any = PROMPTS) -> Any:
    return quality_table(scores(records, prompts, {"t": list(scorers)}, run_code=run_code))


def test_a_lossless_method_scores_as_its_baseline_does() -> None:
    pytest.importorskip("sacrebleu")
    found = table([record(n, text, text, k=k) for n, text in enumerate(TEXTS) for k in (2, 4)], "bleu", "distinct_2")
    assert found["ks"].tolist() == ["2, 4"] * 2
    assert (found["score"] == found["baseline_score"]).all()
    assert found["difference"].tolist() == [0, 0]
    assert found["same"].all()
    assert found["score"][0] == pytest.approx(corpus_score(registry()["bleu"]())), "pooling k's changes nothing"


def test_a_method_that_writes_otherwise_is_told_apart_and_struck() -> None:
    records = [record(number, "same same same same", f"all {number} different words here") for number in range(12)]
    found = table(records, "distinct_2", prompts={"t": {str(number): Prompt(str(number), "p") for number in range(12)}})
    assert found["difference"][0] == pytest.approx(100 / 3 - 100)
    assert found["difference_high"][0] < 0
    assert not found["same"][0]
    (row,) = quality_grid(found, "s").rows
    assert any(entry.struck for entry in row)


def test_a_few_prompts_accuse_nobody() -> None:
    """Other samples of one distribution, three of them: the interval may miss 0, the test knows that three are too few."""
    records = [record(number, "same same same same", f"all {number} different words here") for number in range(3)]
    found = table(records, "distinct_2")
    assert found["difference_high"][0] < 0
    assert found["p_value"][0] == pytest.approx(0.25, abs=0.05), (
        "2 of the 8 ways to swap three prompts are as far apart"
    )
    assert found["same"][0]


def test_what_is_not_scored_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [record(number, text, text) for number, text in enumerate(TEXTS)]
    assert "run_generated_code: true" in table(records, "pass_at_1")["note"][0]
    bare = {"t": {str(number): Prompt(str(number), "p") for number in range(3)}}
    assert "no references" in table(records, "bleu", prompts=bare)["note"][0]
    monkeypatch.setattr("specrig.tasks.scorers.base.find_spec", lambda _: None)
    assert table(records, "rouge_l")["note"][0] == "not scored: pip install rouge-score"
    assert table(records, "bleu")["score"].isna().all()


def test_generated_code_runs_when_the_study_says_so() -> None:
    prompts = {"t": {"0": Prompt("0", "def f():\n", "assert f() == 1")}}
    found = table([record(0, "    return 1\n", "    return 2\n")], "pass_at_1", run_code=True, prompts=prompts)
    assert (found["score"][0], found["baseline_score"][0]) == (100, 0)


def test_scoring_is_off_by_default(workplace: Path) -> None:
    from specrig.study.load import load_study

    assert load_study(Path("configs/smollm2.yaml")).run_generated_code is False


def test_what_a_method_loses_stands_against_what_it_gains(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", methods=("draft_model", "medusa"), ks=(2, 4), tasks=("code",))
    results = StudyResults(read_study(folder))
    with pytest.raises(NothingError, match="no output of this study was scored"):
        speed_against_loss(results.losses, results.study.tasks, SCREEN)
    found = [
        Score(
            **{key: getattr(record.cell, key) for key in [*KEYS, "k"]},
            scorer="distinct_2",
            prompt_id=record.prompt_id,
            identical=False,
            lossless=record.cell.method != "medusa",
            usable=True,
            statistics=(int(record.prompt_id[-1]) % 3, 4) if record.cell.method == "medusa" else (4, 4),
            baseline_statistics=(4, 4),
        )
        for record in results.study.records
    ]
    write_quality_table(found, "study", folder / "tables")
    results = StudyResults(read_study(folder))
    losses = results.losses.set_index("method")
    assert losses.loc["draft_model", "difference"] == 0 > losses.loc["medusa", "difference_high"]
    best = results.best.set_index("method")
    assert (losses["speedup"] == best.loc[losses.index, "speedup"]).all() and (losses["k"] > 0).all()
    (panel,) = speed_against_loss(results.losses, results.study.tasks, SCREEN).axes
    assert panel.get_ylabel() == "distinct_2: score above plain decoding's"
    assert len(panel.containers) == 2
