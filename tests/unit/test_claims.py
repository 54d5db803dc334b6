"""Claims: every verdict on synthetic cells, the shipped table, and rows that are wrong."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from synthetic import write_study

from specrig import cli
from specrig.analysis import theory
from specrig.analysis.aggregates import parts
from specrig.analysis.claims import COLUMNS, VERDICTS, differing, judge, judgements_table
from specrig.analysis.commands import Catalogue, KnownPair
from specrig.analysis.cost_model import papers
from specrig.decoding.drafters import registry
from specrig.report.claim_tables import _catalogue, counts, reproduction, sentence
from specrig.report.figures.reported_figure import reported_points
from specrig.report.study_data import read_study
from specrig.report.study_results import StudyResults
from specrig.report.table_files import write_tables
from specrig.study.claims import Claim, read_claims
from specrig.study.problems import Positions, Problems, StudyError

LLAMA, SMALL = "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.2-1B-Instruct"
METHODS = {name: method.needs for name, method in registry().items()}
CATALOGUE = Catalogue(
    {"llama": KnownPair(LLAMA, SMALL, ["medusa"])},
    ["code", "mt_bench_writing", "spec_bench_mt_bench", "spec_bench_qa"],
    METHODS,
)
HEADER = list(Claim.model_fields)


def claim(**fields: object) -> Claim:
    base = {
        "id": "C1",
        "source": "a paper",
        "target": LLAMA,
        "draft": SMALL,
        "method": "draft_model",
        "k": "4",
        "task": "code",
    }
    base |= {
        "temperature": "0",
        "hardware": "RTX 4090",
        "precision": "bf16",
        "batch": "1",
        "metric": "speedup",
        "low": 1.6,
    }
    base |= fields
    return Claim.model_validate({**base, "high": base.get("high", base["low"])})


def cell(**fields: object) -> dict[str, object]:
    base = {
        "engine": "native",
        "pair": "llama",
        "method": "draft_model",
        "k": 4,
        "task": "code",
        "temperature": 0.0,
        "batch_size": 1,
        "prompts": 8,
        "freedom": 7 + 4,
    }
    base |= {
        "target": LLAMA,
        "draft": SMALL,
        "hardware": "NVIDIA GeForce RTX 4090",
        "dtype": "bfloat16",
        "task_text": "code corpus",
    }
    for name, value in (("speedup", 1.62), ("acceptance_length", 2.8), ("acceptance_rate", 0.6), ("alpha", 0.7)):
        base |= {name: value, f"{name}_low": 0.95 * value, f"{name}_high": 1.05 * value}
    return base | fields


def verdict(row: Claim, *cells: dict[str, object], others: tuple[Claim, ...] = ()) -> tuple[str, str]:
    found = judge([row, *others], pd.DataFrame(list(cells)), CATALOGUE)[0]
    assert found.reason
    return found.verdict, found.reason


def test_reproduced_higher_and_lower() -> None:
    assert verdict(claim(), cell())[0] == "reproduced"
    name, reason = verdict(claim(low=1.2), cell())
    assert name == "higher" and "35% above" in reason and "tolerance 5%" in reason
    name, reason = verdict(claim(low=2.0, high=2.5), cell())
    assert name == "lower" and "19% below" in reason
    judged = judgements_table(judge([claim(low=2.0, high=2.5)], pd.DataFrame([cell()]), CATALOGUE)).iloc[0]
    assert judged["ratio"] == pytest.approx(0.81) and judged["cell"].startswith("native/llama/draft_model")


def test_inside_the_range_or_the_tolerance_is_reproduced() -> None:
    assert verdict(claim(low=1.5, high=2.0), cell())[0] == "reproduced"
    # 1.75 · 0.95 = 1.6625.
    assert verdict(claim(low=1.75), cell(speedup_low=1.60, speedup_high=1.67))[0] == "reproduced"
    assert verdict(claim(low=1.80), cell(speedup_low=1.60, speedup_high=1.67))[0] == "lower"
    nan = float("nan")
    name, reason = verdict(claim(), cell(speedup_low=nan, speedup_high=nan))
    assert name == "reproduced" and "no interval" in reason


@pytest.mark.parametrize(
    ("fields", "condition"),
    [
        ({"k": 6}, "k (4 reported, 6 measured)"),
        ({"task": "translation"}, "task (code reported, translation measured)"),
        ({"temperature": 1.0}, "temperature (0 reported, 1 measured)"),
        ({"batch_size": 4}, "batch (1 reported, 4 measured)"),
        ({"hardware": "NVIDIA H200"}, "hardware (RTX 4090 reported, H200 measured)"),
        ({"hardware": "CPU"}, "hardware (RTX 4090 reported, CPU measured)"),
        ({"dtype": "float32"}, "precision (bf16 reported, float32 measured)"),
    ],
)
def test_not_comparable_names_the_condition(fields: dict[str, object], condition: str) -> None:
    name, reason = verdict(claim(), cell(**fields))
    assert name == "not comparable" and condition in reason


def test_nucleus_sampling_is_a_condition() -> None:
    name, reason = verdict(claim(temperature="nucleus 0.8"), cell(temperature=1.0))
    assert name == "not comparable" and "sampling (nucleus 0.8 reported" in reason


def test_acceptance_does_not_depend_on_hardware() -> None:
    row = claim(metric="acceptance_length", low=2.75)
    assert verdict(row, cell(hardware="CPU", dtype="float32"))[0] == "reproduced"
    assert verdict(claim(metric="acceptance_rate_alpha", low=0.71), cell(hardware="CPU"))[0] == "reproduced"


def test_a_statement_without_hardware_means_a_gpu() -> None:
    row = claim(target="any", draft="any", method="lookahead", k="", hardware="", precision="", low=1.5, high=2.3)
    assert verdict(row, cell(method="lookahead", k=3, speedup=1.9))[0] == "reproduced"
    name, reason = verdict(row, cell(method="lookahead", k=3, hardware="CPU"))
    assert name == "not comparable" and "hardware (a GPU reported, CPU measured)" in reason


def test_another_pair_is_no_measurement() -> None:
    assert verdict(claim(), cell(target="trained", draft="trained"))[0] == "not measured"


def test_not_measured_comes_with_the_command() -> None:
    found = judge([claim(task="multi-turn (MT-Bench)", k="3-5")], pd.DataFrame(), CATALOGUE)[0]
    assert found.verdict == "not measured" and "it takes" in found.reason
    assert "'pairs=[\"llama\"]'" in found.command and "'tasks=[\"spec_bench_mt_bench\"]'" in found.command
    assert '"k": [3, 4, 5]' in found.command and "printf" not in found.command
    absent = judge([claim(target="Qwen/Qwen3-8B", draft="", method="ngram")], pd.DataFrame(), CATALOGUE)[0]
    row = "printf 'Qwen3-8B\\tQwen/Qwen3-8B\\t\\t\\t\\tbfloat16\\t\\n' >> configs/pairs.tsv"
    assert f"|| {row}; }} && snakemake" in absent.command and "'pairs=[\"Qwen3-8B\"]'" in absent.command
    for headless in (claim(draft="", method="eagle"), claim(target="Qwen/Qwen3-8B", draft="", method="eagle2")):
        found = judge([headless], pd.DataFrame(), CATALOGUE)[0]
        assert "heads would be trained here" in found.reason
        assert "bfloat16\\ttrained\\n" in found.command and '-trained"]' in found.command, (
            "a row of its own, whose heads are trained"
        )
    mean = judge([claim(task="overall", source="Spec-Bench, a page")], pd.DataFrame(), CATALOGUE)[0]
    assert '\'tasks=["spec_bench_mt_bench", "spec_bench_qa"]\'' in mean.command and "overall" in mean.reason
    lost = judge([claim(task="rag")], pd.DataFrame(), CATALOGUE)[0]
    assert "tasks.tsv has no row for 'rag'" in lost.reason and not lost.command, "it would be refused"
    draftless = judge([claim(target="Qwen/Qwen3-8B", draft="")], pd.DataFrame(), CATALOGUE)[0]
    assert "the source names no draft model" in draftless.reason and not draftless.command
    foreign = judge([claim(method="telepathy")], pd.DataFrame(), CATALOGUE)[0]
    assert foreign.verdict == "not measured" and not foreign.command and "no method 'telepathy'" in foreign.reason


SIX = (
    "multi-turn (MT-Bench)",
    "translation (WMT14 DeEn)",
    "summarization (CNN/DM)",
    "question answering (NQ)",
    "math (GSM8K)",
    "rag",
)
ROWS = ("mt_bench", "translation", "summarization", "qa", "math", "rag")


def benchmark(**fields: object) -> tuple[Claim, tuple[Claim, ...]]:
    """A mean over Spec-Bench and what it is taken over."""
    source = {"source": "Spec-Bench, a page"}
    tasks = tuple(claim(id=f"T{number}", task=task, low=9.0, **source) for number, task in enumerate(SIX))
    return claim(**{"id": "M", "task": "overall", **source, **fields}), tasks


def test_a_mean_over_tasks_joins_to_the_measured_mean() -> None:
    speeds = (1.2, 1.4, 1.6, 1.8, 2.0, 2.2)
    cells = [
        cell(task=f"spec_bench_{name}", speedup=speed, speedup_low=speed / 1.1, speedup_high=speed * 1.1)
        for name, speed in zip(ROWS, speeds, strict=True)
    ]
    mean = float(np.exp(np.log(speeds).mean()))
    row, tasks = benchmark(low=1.66)
    found = judge(
        [row, *tasks],
        pd.DataFrame([*cells, cell(task="spec_bench_writing", speedup=5.0), *(c | {"k": 2} for c in cells)]),
        CATALOGUE,
    )[0]
    assert (
        found.verdict == "reproduced"
        and found.measured == pytest.approx(mean)
        and "mean of spec_bench_mt_bench, " in found.cell
    )
    # Six independent tasks of 8 prompts, each known to a factor 1.1 by t(0.975) with 11 degrees of freedom: their
    # mean has 66 of them.
    factor = 1.1 ** (6**-0.5 * scipy.stats.t.ppf(0.975, 66) / scipy.stats.t.ppf(0.975, 11))
    assert (found.low, found.high) == pytest.approx((mean / factor, mean * factor))
    assert "spec_bench_rag" in found.reason and "writing" not in found.reason
    row, _ = benchmark(metric="acceptance_length", low=2.8)
    found = judge([row, *tasks], pd.DataFrame(cells), CATALOGUE)[0]
    assert found.verdict == "reproduced" and found.measured == pytest.approx(2.8)
    name, reason = verdict(benchmark(low=1.66, hardware="H100")[0], *cells, others=tasks)
    assert name == "not comparable" and "hardware (H100 reported" in reason and "task (" not in reason


def test_a_mean_over_tasks_says_what_is_missing() -> None:
    row, tasks = benchmark()
    cells = [cell(task="spec_bench_qa"), cell(task="gsm8k"), cell(task="wmt14_de_en"), cell(task="cnn_dailymail")]
    name, reason = verdict(row, *cells, others=tasks)
    assert name == "not comparable"
    assert "the overall of 6 tasks reported, not measured: multi-turn (MT-Bench), rag" in reason
    # Acceptance by task does not say what a mean of speedups was taken over.
    lengths = [task.model_copy(update={"metric": "acceptance_length"}) for task in tasks]
    assert parts(row, tasks) == list(SIX) and parts(row, lengths) == []
    assert "over which tasks its source's rows do not say" in differing(row, cells[0])[0]
    found = judge([row, *tasks], pd.DataFrame(), CATALOGUE)[0]
    assert '"spec_bench_mt_bench", ' in found.command and '"spec_bench_qa"' in found.command
    assert "tasks.tsv has no row for 'translation (WMT14 DeEn)', " in found.reason


def test_impossible_pairs() -> None:
    name, reason = verdict(claim(target="bert-large-uncased", draft="distilbert-base-uncased", low=2.0, high=4.0))
    assert name == "impossible" and "encoder" in reason
    mixtral = claim(target="mistralai/Mixtral-8x7B-Instruct-v0.1", draft="mistralai/Mistral-7B-Instruct-v0.3")
    assert verdict(mixtral, cell())[0] != "impossible", "a draft of another vocabulary drafts all the same"


def test_theory_takes_the_acceptance_of_the_same_source() -> None:
    alpha = claim(id="C2", metric="acceptance_rate_alpha", low=0.7, hardware="")
    # E = 2.77 tokens at α = 0.7, k = 4; a round costs about 1.6 to 1.7 target passes.
    assert verdict(claim(low=1.6), others=(alpha,))[0] == "consistent with theory"
    name, reason = verdict(claim(low=2.6), others=(alpha,))
    assert name == "inconsistent with theory" and "α = 0.70 (C2)" in reason and "2.77 tokens a pass" in reason
    assert verdict(claim(low=0.7), others=(alpha,))[0] == "inconsistent with theory"
    assert verdict(claim(), others=(alpha.model_copy(update={"source": "another"}),))[0] == "not measured"
    assert verdict(alpha, others=(claim(id="C3", low=2.6),))[0] == "inconsistent with theory"


def test_theory_knows_the_ceiling() -> None:
    name, reason = verdict(claim(low=6.0))  # five tokens at most for a round that costs more than one pass
    assert name == "inconsistent with theory" and "with every token accepted" in reason


def test_without_a_k_a_tree_is_as_deep_as_its_papers_default() -> None:
    depth = papers()["eagle2"].depth
    assert depth == papers()["eagle2"].passes and papers()["medusa"].depth is None
    row = claim(method="eagle2", draft="", k="", low=9.0)
    found = theory.check(row, [row])
    assert found.consistent is False and found.high < depth + 1
    assert theory.check(row.model_copy(update={"low": 4.0, "high": 4.0}), [row]).consistent is None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"metric": "speedup_at_acceptance_1.00", "target": "any", "draft": "any", "k": "5", "low": 4.0}, "consistent"),
        ({"metric": "speedup_at_acceptance_0.60_to_0.80", "target": "any", "k": "5", "low": 2.0, "high": 3.0}, "consistent"),
        ({"metric": "speedup_at_acceptance_0.60", "target": "any", "k": "5", "low": 4.0}, "inconsistent"),
        ({"metric": "speedup_at_acceptance_1.00", "target": "any", "draft": "any", "k": "k", "low": "k", "high": "k"}, "inconsistent"),
    ],
)  # fmt: skip
def test_calculations(fields: dict[str, object], expected: str) -> None:
    assert verdict(claim(**fields), cell())[0] == f"{expected} with theory"


@pytest.fixture(scope="module")
def shipped(repository: Path) -> list[Claim]:
    problems = Problems(Positions([]))
    claims = read_claims(repository / "configs/reported.csv", problems)
    problems.stop()
    return claims


@pytest.fixture(scope="module")
def judged(shipped: list[Claim]) -> pd.DataFrame:
    """The verdicts on all shipped claims where nothing was measured."""
    return judgements_table(judge(shipped, pd.DataFrame(), CATALOGUE))


def test_every_shipped_claim_has_a_verdict_and_a_reason(judged: pd.DataFrame, repository: Path) -> None:
    with (repository / "configs/reported.csv").open(newline="") as file:
        ids = [row["id"] for row in csv.DictReader(file)]
    assert list(judged["id"]) == ids and len(set(ids)) == len(ids) >= 342
    assert set(judged["verdict"]) <= set(VERDICTS) and judged["reason"].str.len().min() > 10


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("R002", "consistent"), ("R003", "consistent"), ("R001", "consistent"), ("R035", "consistent"), ("R059", "consistent"),
        ("R026", "consistent"), ("R027", "consistent"), ("R076", "consistent"), ("R340", "consistent"),
        ("R028", "inconsistent"), ("R031", "inconsistent"), ("R032", "inconsistent"), ("R047", "inconsistent"),
    ],
)  # fmt: skip
def test_theory_on_the_shipped_claims(judged: pd.DataFrame, row: str, expected: str) -> None:
    found = judged.set_index("id").loc[row]
    assert found["verdict"] == f"{expected} with theory", found["reason"]


def test_the_worked_example(shipped: list[Claim]) -> None:
    """175 -> 290 tokens/s at α 0.72, k 5: 3.07 tokens a pass, 1.73x predicted by the ratio of parameters, 1.66x
    reported.
    """
    found = theory.check(next(claim for claim in shipped if claim.id == "R003"), shipped)
    assert found.consistent and "3.07 tokens a pass" in found.reason and found.high == pytest.approx(1.73, abs=0.01)


def test_what_the_shipped_means_are_taken_over(shipped: list[Claim]) -> None:
    means = {claim.id: parts(claim, shipped) for claim in shipped if claim.aggregate}
    known = {name: found for name, found in means.items() if found}
    assert len(means) == 36 and len(known) == 30 and all(sorted(found) == sorted(SIX) for found in known.values())
    source = {next(claim for claim in shipped if claim.id == name).source for name in means if name not in known}
    assert source == {"SPEED-Bench, Abramovich et al. 2026, arXiv 2604.09557, Table 1"}


def test_shipped_claims_keep_what_was_collected(shipped: list[Claim], repository: Path) -> None:
    facts = repository.parent / "shared/facts/reported.csv"
    if not facts.is_file():
        pytest.skip("needs ../shared/facts/reported.csv, which is not here")
    ours, theirs = (
        list(csv.DictReader(file.read_text().splitlines())) for file in (repository / "configs/reported.csv", facts)
    )
    ours = ours[: len(theirs)]  # rows that were found since follow
    # Sources go by a name that a reader knows, each by one: what was one source there is one here.
    names = {(one["source"], other["source"]) for one, other in zip(ours, theirs, strict=True)}
    assert len(names) == len({name for name, _ in names}) == len({name for _, name in names}) == 11
    for rows in (ours, theirs):
        for row in rows:
            del row["source"]
    for row in ours:  # there a baseline stands in the note
        baseline = row.pop("baseline")
        row["note"] = f"baseline {baseline} ms/token" if baseline else row["note"]
    assert ours == theirs


def test_a_baseline_in_the_note_of_an_older_table_is_read(tmp_path: Path, repository: Path) -> None:
    """As publications have it: the same claims, so the same verdicts."""
    rows = list(csv.DictReader((repository / "configs/reported.csv").read_text().splitlines()))
    for row in rows:
        baseline = row.pop("baseline")
        row["note"] = f"baseline {baseline} ms/token" if baseline else row["note"]
    older, problems = tmp_path / "reported.csv", Problems(Positions([]))
    with older.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    now = read_claims(repository / "configs/reported.csv", problems)
    then = read_claims(older, problems)
    assert [claim.model_dump(exclude={"note"}) for claim in then] == [
        claim.model_dump(exclude={"note"}) for claim in now
    ]
    assert sum(claim.baseline is not None for claim in now) == 3


def test_sources_are_named_for_readers(shipped: list[Claim]) -> None:
    """A paper or a site with its date or version, or in words that it is not known; never the name of a file."""
    for source in {claim.source for claim in shipped}:
        assert re.search(r"20\d\d|unknown", source), source
        assert not re.search(r"\.(txt|md|html|pdf|csv)\b", source), source


def table(folder: Path, *rows: dict[str, str]) -> Path:
    file = folder / "reported.csv"
    with file.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, HEADER)
        writer.writeheader()
        writer.writerows({**dict.fromkeys(HEADER, ""), **row} for row in rows)
    return file


GOOD = {"id": "C1", "source": "s", "target": "any", "method": "ngram", "metric": "speedup", "low": "1.5", "high": "2"}


@pytest.mark.parametrize(
    ("change", "column", "text"),
    [
        ({"low": "fast"}, "low", "fast"),
        ({"low": "3"}, "", "low not above high"),
        ({"low": "-1"}, "", "must be positive"),
        ({"high": ""}, "", "must both be numbers"),
        ({"low": "k", "high": "k"}, "", "only a speedup_at_acceptance"),
        ({"metric": "speeds"}, "metric", "speeds"),
        ({"k": "many"}, "k", "many"),
        ({"temperature": "hot"}, "temperature", "hot"),
        ({"batch": "two"}, "batch", "two"),
        ({"source": ""}, "source", "nothing is given"),
        ({"id": "a b"}, "id", "a b"),
    ],
)
def test_wrong_rows_are_named(tmp_path: Path, change: dict[str, str], column: str, text: str) -> None:
    file = table(tmp_path, {**GOOD, "id": "C0"}, GOOD | change)
    problems = Problems(Positions([]))
    assert [row.id for row in read_claims(file, problems)] == ["C0"]
    output = "\n".join(map(str, problems.found))
    assert f"{file}:3" in output and f": {column}" in output and text in output


def test_duplicates_missing_columns_and_surplus_fields_are_named(tmp_path: Path) -> None:
    problems = Problems(Positions([]))
    read_claims(table(tmp_path, GOOD, GOOD), problems)
    assert "duplicate row 'C1'" in str(problems.found[0]) and "line 2 has the same name" in str(problems.found[0])
    file = tmp_path / "short.csv"
    file.write_text("id,source\nC1,s\n")
    problems = Problems(Positions([]))
    read_claims(file, problems)
    assert {problem.key for problem in problems.found} == {"target", "method", "metric"}
    file.write_text(f"{','.join(HEADER)}\n{',' * len(HEADER)}x\n")
    problems = Problems(Positions([]))
    read_claims(file, problems)
    assert "remove the extra commas" in str(problems.found[0])


def test_planning_names_a_wrong_claim(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path("configs/reported.csv")
    file.write_text(file.read_text().replace("1.66,1.66", "1.66,fast"))
    assert cli.main(["plan", "configs/test.yaml"]) == 2
    assert "configs/reported.csv:4: high" in capsys.readouterr().err
    config = Path("configs/mine.yaml")
    config.write_text(Path("configs/test.yaml").read_text() + "tables: {reported: configs/mine.csv}\n")
    assert cli.main(["plan", str(config)]) == 2
    assert "configs/mine.csv: no such table" in capsys.readouterr().err


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A synthetic study of a Llama pair on an RTX 4090, held against three claims."""
    folder = write_study(
        tmp_path / "s", methods=("draft_model", "ngram"), ks=(2, 4, 6), tasks=("code",), pairs=("llama",)
    )
    own = {
        "target": LLAMA,
        "draft": SMALL,
        "task": "code",
        "metric": "speedup",
        "method": "draft_model",
        "hardware": "RTX 4090",
    }
    claims = table(
        tmp_path,
        GOOD | own | {"k": "4", "low": "1.5", "high": "4"},
        GOOD | own | {"id": "C2", "k": "4", "low": "9", "high": "9"},
        GOOD | own | {"id": "C3", "hardware": "H100", "k": "4"},
    )
    config = json.loads((folder / "study.json").read_text())
    config["tables"] = {"reported": str(claims)}
    config["rows"] = {
        "pairs": {"llama": {"target": LLAMA, "draft": SMALL, "dtype": "bfloat16"}},
        "tasks": {"code": {"task": "code"}},
    }
    (folder / "study.json").write_text(json.dumps(config))
    for file in folder.rglob("environment.json"):
        environment = json.loads(file.read_text()) | {"gpus": [{"name": "NVIDIA GeForce RTX 4090"}]}
        file.write_text(json.dumps(environment))
    return folder


def test_a_command_names_the_columns_of_a_table_with_commas(study: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.csv"
    pairs.write_text(f"pair,target,draft,dtype\nllama,{LLAMA},{SMALL},bfloat16\n")
    config = json.loads((study / "study.json").read_text())
    config["tables"]["pairs"] = str(pairs)
    (study / "study.json").write_text(json.dumps(config))
    assert _catalogue(read_study(study)).pair_columns == ["pair", "target", "draft", "dtype"]


def test_a_study_is_held_against_its_claims(study: Path, tmp_path: Path) -> None:
    judged = reproduction(read_study(study)).set_index("id")
    assert judged["verdict"].to_dict() == {"C1": "reproduced", "C2": "lower", "C3": "not comparable"}
    assert list(reported_points(judged.reset_index())["kind"]) == ["measured", "measured"]
    assert counts(judged) == {"reproduced": 1, "lower": 1, "not comparable": 1}
    assert sentence(judged) == "Of 3 reported figures: 1 reproduced, 1 lower, 1 not comparable."
    write_tables(study, tmp_path / "tables")
    written = pd.read_csv(tmp_path / "tables/reproduction.csv")
    assert list(written.columns) == COLUMNS and len(written) == 3
    shown = (tmp_path / "tables/reproduction.md").read_text()
    assert "| C1 |" in shown and "| C2 |" in shown and "| C3 |" not in shown, (
        "the CSV alone has those without a verdict"
    )
    assert "1 other reported figure, without such a verdict, is listed in reproduction.csv." in shown
    paper = (tmp_path / "tables/reproduction.tex").read_text()
    assert (
        r"source & {reproduced} & {lower} & {\shortstack[c]{not\\comparable}} \\" in paper
        and r"s & 1 & 1 & 1 \\" in paper
    )


def test_what_the_audit_failed_reproduces_nothing(study: Path) -> None:
    found = read_study(study)
    judged = reproduction(found, found.table.assign(failed=False)).set_index("id")["verdict"]
    assert judged["C1"] == "reproduced"
    judged = reproduction(found, found.table.assign(failed=True)).set_index("id")["verdict"]
    assert not {"reproduced", "higher", "lower"} & set(judged), judged.to_dict()


def test_the_report_shows_the_claims(study: Path, report_text: Callable[[Path], str]) -> None:
    page = report_text(study)
    assert "Of 3 reported figures: 1 reproduced, 1 lower, 1 not comparable." in page
    assert "1 other reported figure, without such a verdict, is listed in reproduction.csv." in page
    assert "hardware (H100 reported, RTX 4090 measured)" not in page and 'download="reproduction.csv"' in page
    assert "The best k on llama (native), with its speedup" in page and "To detect a difference of 5%" in page
    config = json.loads((study / "study.json").read_text()) | {"tables": {}}
    (study / "study.json").write_text(json.dumps(config))
    assert "Reported against measured" not in report_text(study)


def test_a_broken_claim_stops_the_table_with_its_place(study: Path) -> None:
    config = json.loads((study / "study.json").read_text())
    Path(config["tables"]["reported"]).write_text("id,source\n")
    with pytest.raises(StudyError, match=r"reported\.csv:1: target: the column is missing"):
        reproduction(read_study(study))


def test_the_best_k_is_named(study: Path, tmp_path: Path) -> None:
    write_tables(study, tmp_path / "tables")
    cells = pd.read_csv(tmp_path / "tables/cells.csv")
    (sentence,) = StudyResults(read_study(study)).best_k_sentences
    for method in ("draft_model", "ngram"):
        speedups = cells[cells["method"] == method].set_index("k")["speedup"]
        assert f"{method} {speedups.idxmax()} ({speedups.max():.2f} times)" in sentence
    assert (cells["prompts_needed"] >= 2).all() and (cells["ms_per_token_low"] < cells["ms_per_token"]).all()
    chain = cells[cells["method"] == "draft_model"]
    assert ((chain["alpha_low"] <= chain["alpha"]) & (chain["alpha"] <= chain["alpha_high"])).all()


def test_advice(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    pairs = tmp_path / "pairs.tsv"
    bad = "mix\tmistralai/Mixtral-8x7B-Instruct-v0.1\tmistralai/Mistral-7B-Instruct-v0.3\tbfloat16"
    pairs.write_text(f"pair\ttarget\tdraft\tdtype\nllama\t{LLAMA}\t{SMALL}\tbfloat16\n{bad}\n")
    arguments = ["advise", "llama", "--pairs", str(pairs)]
    assert cli.main([*arguments, "--device", "RTX 4090"]) == 0
    output = capsys.readouterr().out
    assert "6.5 times smaller" in output and "20.7 GB of 24 GB" in output and "Not measured: predicted" in output
    assert cli.main([*arguments, "--device", "L4", "--study", str(study)]) == 2
    assert "cells.csv: no such table" in capsys.readouterr().err
    write_tables(study, study / "tables")
    assert cli.main([*arguments, "--study", str(study)]) == 0
    output = capsys.readouterr().out
    assert "Measured in" in output and "draft_model" in output and "predicted" not in output
    assert cli.main(["advise", "mix", "--pairs", str(pairs), "--device", "A100 80GB"]) == 0
    output = capsys.readouterr().out
    advised, _, needs_more = output.partition("Others need more")
    assert "does not share the vocabulary" in advised and "too slow" in advised
    assert "draft_model" in advised and "medusa_draft" in needs_more
    assert cli.main(["advise", "lama", "--pairs", str(pairs), "--device", "H300"]) == 2
    error = capsys.readouterr().err
    assert "did you mean 'llama'?" in error and "did you mean 'H200'?" in error
