"""Engines side by side, on synthetic records: who is compared with whom, what is flagged, which reason is given, how it
is shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic import cell_records, write_job, write_study

from specrig.analysis import engines
from specrig.analysis.engines import COLUMNS, compare
from specrig.analysis.statistics import ratio_difference_interval
from specrig.cell import Cell
from specrig.measurement.records import Counts, Record, Rounds
from specrig.report.engine_table import ALONE, comparison, engines_grid, sentence
from specrig.report.study_data import read_study
from specrig.report.table_files import write_tables

CELL = Cell(engine="native", pair="p", method="draft_model", k=4, task="code", temperature=0.0)


def records(alpha: float = 0.7, *, prompts: int = 12, seed: int = 0) -> list[Record]:
    return cell_records(CELL, alpha=alpha, prompts=prompts, seed=seed)


def elsewhere(members: list[Record], engine: str = "other", **cell: object) -> list[Record]:
    """The same records as another engine would have them."""
    known = CELL.model_copy(update={"engine": engine, **cell})
    return [record.model_copy(update={"cell": known}) for record in members]


def as_totals(record: Record) -> Record:
    """The record as an engine tells it that counts but does not tell round by round: the cut round is in."""
    rounds = record.run.rounds
    totals = Counts(rounds=len(rounds.emitted), drafted=sum(rounds.drafted), accepted=sum(rounds.accepted))
    return record.model_copy(update={"run": record.run.model_copy(update={"rounds": Rounds(), "counts": totals})})


def row(members: list[Record], reference: list[Record], **known: str) -> pd.Series:
    differences = {("other", method): text for method, text in known.items()}
    frame = compare([*reference, *members], ["native", "other"], differences)
    assert list(frame["engine"]) == ["native", "other"] and set(frame["reference"]) == {"native"}
    assert not frame.iloc[0]["disagrees"] and frame.iloc[0]["reason"] == ""
    return frame.iloc[1]


def test_one_engine_compares_with_nobody() -> None:
    assert compare(records()).empty and list(compare([]).columns) == COLUMNS
    other_k = elsewhere(records(), k=3)
    assert compare([*records(), *other_k]).empty, "another k is another cell"


def test_the_same_records_agree_exactly() -> None:
    found = row(elsewhere(records()), records())
    assert (found["difference"], found["difference_low"], found["difference_high"]) == (0, 0, 0)
    assert not found["disagrees"] and found["reason"] == "" and found["same_output"] == 1
    assert found["common_prompts"] == 12


def test_noise_is_no_disagreement_and_a_real_difference_is() -> None:
    """Both engines have the same acceptance but their own luck; then one that accepts much more."""
    seeds = range(8)
    flagged = [row(elsewhere(records(seed=100 + seed)), records(seed=seed))["disagrees"] for seed in seeds]
    assert sum(flagged) <= 2
    found = row(elsewhere(records(0.85)), records(0.6))
    assert found["disagrees"] and found["difference_low"] > 0 and found["relative_difference"] > 0.15


def test_speed_is_held_against_the_first_engine_prompt_by_prompt() -> None:
    ours = records()
    slow = [
        record.model_copy(
            update={"run": record.run.model_copy(update={"decode_s": record.run.decode_s * (2 + number % 2)})}
        )
        for number, record in enumerate(elsewhere(ours))
    ]
    found = row(slow, ours)
    assert found["relative_speed"] == pytest.approx(6**-0.5)
    assert 1 / 3 < found["relative_speed_low"] < 6**-0.5 < found["relative_speed_high"] < 1 / 2
    assert np.isnan(row([record.model_copy(update={"prompt_id": "x"}) for record in slow], ours)["relative_speed"])


def test_only_common_prompts_are_compared() -> None:
    theirs = elsewhere(records()[4:])
    found = row(theirs, records())
    assert found["common_prompts"] == 8 and found["difference"] == 0
    gone = [record.model_copy(update={"prompt_id": "x" + record.prompt_id}) for record in theirs]
    found = row(gone, records())
    assert found["reason"] == engines.NO_PROMPTS and not found["disagrees"] and np.isnan(found["tokens_per_s"])
    assert row(theirs[:2], records())["reason"] == engines.FEW_PROMPTS


def test_prompts_that_became_other_token_ids() -> None:
    theirs = [record.model_copy(update={"prompt_tokens": 21}) for record in elsewhere(records(0.9))]
    found = row(theirs, records(0.5))
    assert found["reason"] == engines.OTHER_IDS and not found["disagrees"]


def test_totals_agree_once_counted_alike_and_the_definition_is_the_reason() -> None:
    """The same rounds, told as totals: only the cut round differs."""
    ours = cell_records(CELL, alpha=0.9, prompts=12, length=12)
    found = row([as_totals(record) for record in elsewhere(ours)], ours)
    assert found["difference"] == 0 and found["disagrees"] and found["reason"] == engines.DEFINITION


def test_an_engine_that_counts_nothing() -> None:
    bare = [
        record.model_copy(update={"run": record.run.model_copy(update={"rounds": Rounds()})})
        for record in elsewhere(records())
    ]
    found = row(bare, records())
    assert found["reason"] == engines.NOT_OFFERED and not found["disagrees"] and np.isnan(found["acceptance_length"])
    assert np.isfinite(found["speedup"])


def test_a_k_that_was_not_honoured() -> None:
    theirs = cell_records(CELL.model_copy(update={"k": 2}), alpha=0.7, prompts=12)
    found = row(elsewhere(theirs), records())
    assert found["disagrees"] and found["reason"].startswith("drafts of another length: 1.")


def test_rounding_is_the_reason_where_equal_outputs_agree() -> None:
    """Half the prompts have equal outputs and rounds; on the others the text, and with it acceptance, is another."""
    ours, luckier = records(0.5, prompts=20), elsewhere(records(0.95, prompts=20, seed=5))
    theirs = [*elsewhere(ours)[:10], *luckier[10:]]
    found = row(theirs, ours)
    assert found["disagrees"] and found["same_output"] == 0.5
    assert engines.OTHER_TEXT.format(10, 20) in found["reason"]
    same_text = [
        record.model_copy(update={"run": record.run.model_copy(update={"tokens": own.run.tokens})})
        for record, own in zip(luckier, ours, strict=True)
    ]
    assert row(same_text, ours)["reason"] == engines.UNEXPLAINED


def test_what_an_engine_is_known_for_is_said() -> None:
    found = row(elsewhere(records(0.9)), records(0.5), draft_model="it drafts greedily")
    assert found["reason"].endswith("it drafts greedily")
    hot = [
        record.model_copy(update={"cell": record.cell.model_copy(update={"temperature": 1.0})})
        for record in records(0.5)
    ]
    found = row(elsewhere(records(0.9), temperature=1.0), hot)
    assert found["disagrees"] and engines.SAMPLING in found["reason"]


def test_the_paired_interval_by_hand() -> None:
    """Units that differ widely but alike in both: the difference is sure, though each ratio is not."""
    first, second = ([3.0, 30.0, 300.0], [1.0, 10.0, 100.0]), ([2.0, 20.0, 200.0], [1.0, 10.0, 100.0])
    assert ratio_difference_interval(first, second) == pytest.approx((1.0, 1.0))
    for units in ([3.0], [1.0]), ([3.0, 30.0], [1.0, 10.0]):
        assert np.isnan(ratio_difference_interval(units, units)).all(), "fewer than three units give no interval"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two engines by the same seeds of the simulation; the second's ngram is off, and it was never tried on hardware."""
    folder = write_study(
        tmp_path_factory.mktemp("engines") / "both", engines=("native", "sglang"), methods=("draft_model", "ngram"), ks=(2, 4),
        tasks=("code", "translation"), prompts=12,
    )  # fmt: skip
    job = folder / "records" / "sglang" / "tiny" / "ngram"
    off = [
        Cell(engine="sglang", pair="tiny", method="ngram", k=4, task=task, temperature=0.0)
        for task in ("code", "translation")
    ]
    index = json.loads((job / "index.json").read_text())
    for cell in off:
        lucky = cell_records(cell, alpha=0.98, prompts=12, length=48, seed=3)
        (job / f"{cell.slug}.jsonl").write_text("".join(record.model_dump_json() + "\n" for record in lucky))
    (job / "index.json").write_text(json.dumps(index))
    for path in (folder / "records" / "sglang").rglob("environment.json"):
        environment = json.loads(path.read_text())
        environment["engine"] = {
            "name": "sglang",
            "untested": "never <run>",
            "differences": {"ngram": "one trie over all prompts"},
        }
        path.write_text(json.dumps(environment))
    return folder


def test_the_tables_name_disagreements_and_reasons(study: Path, tmp_path: Path) -> None:
    write_tables(study, tmp_path)
    frame = pd.read_csv(tmp_path / "engines.csv")
    assert len(frame) == 2 * 2 * 2 * 2 and set(frame["engine"]) == {"native", "sglang"}
    odd = frame[frame["disagrees"]]
    assert {("ngram", 4, "code"), ("ngram", 4, "translation")} <= set(
        odd[["method", "k", "task"]].itertuples(index=False, name=None)
    )
    assert odd[odd["k"] == 4]["reason"].str.contains("one trie over all prompts").all()
    markdown, latex = ((tmp_path / f"engines.{kind}").read_text() for kind in ("md", "tex"))
    assert "Untested on hardware: sglang (never <run>)." in markdown and "one trie over all prompts" in markdown
    assert latex.count("{") == latex.count("}") and r"\textbf{" in latex


def test_the_report_has_a_section_only_for_several_engines(
    study: Path, tmp_path: Path, report_text: Callable[[Path], str]
) -> None:
    page = report_text(study)
    assert 'id="engines"' in page and 'download="engines.csv"' in page
    assert "Untested on hardware: the engine sglang (never &lt;run&gt;)" in page
    assert sentence(comparison(read_study(study))) in page
    alone = write_study(tmp_path / "alone", methods=("draft_model",), ks=(2,), tasks=("code",))
    page = report_text(alone)
    assert 'id="engines"' not in page and "Untested" not in page


def test_one_engine_still_leaves_files(tmp_path: Path) -> None:
    alone = write_study(tmp_path / "alone", methods=("draft_model",), ks=(2,), tasks=("code",))
    write_tables(alone, tmp_path / "tables")
    assert pd.read_csv(tmp_path / "tables" / "engines.csv").empty
    assert (tmp_path / "tables" / "engines.md").read_text().endswith(f"--: |\n\n{ALONE}\n"), (
        "a header, no rows, and why"
    )


def test_a_cell_that_only_one_engine_ran_is_left_out(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "s", methods=("draft_model",), ks=(2,), tasks=("code",))
    write_job(folder, [CELL.model_copy(update={"engine": "vllm", "pair": "tiny", "k": 3})])
    (folder / "study.json").write_text(
        json.dumps({**json.loads((folder / "study.json").read_text()), "engines": ["native", "vllm"]})
    )
    data = read_study(folder)
    assert comparison(data).empty and engines_grid(comparison(data), data).rows == []
