"""Two studies compared cell by cell: what changed is found, with an interval, and equal outputs are counted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import synthetic
from synthetic import write_study

from specrig.cli import main
from specrig.measurement.records import SCHEMA_VERSION
from specrig.report.study_data import read_study
from specrig.sharing.compare import ComparisonError, compare, compare_cells
from specrig.sharing.manifest import Manifest

METHODS, TASKS = ("draft_model", "ngram", "medusa"), ("code", "translation")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of 12 cells. Read-only: `twin` makes copies."""
    return write_study(tmp_path_factory.mktemp("a") / "demo", methods=METHODS, ks=(2, 4), tasks=TASKS, prompts=8)


@pytest.fixture
def twin(base: Path, tmp_path: Path) -> Path:
    """A copy of `base`, to be changed."""
    return Path(shutil.copytree(base, tmp_path / "twin"))


def change_records(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    for path in folder.glob("records/**/*.jsonl"):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for record in records:
            change(record)
        path.write_text("".join(json.dumps(record) + "\n" for record in records))


def slow_ngram(record: dict[str, Any]) -> None:
    if record["cell"]["method"] == "ngram":
        record["run"]["decode_s"] *= 1.5


def test_a_study_is_the_same_as_its_copy(base: Path, twin: Path) -> None:
    cells = compare(base, twin).cells
    assert len(cells) == 12 and set(cells["ratio"]) == {1.0}
    assert (
        (cells["equal_outputs"] == 8).all() and (cells["common_outputs"] == 8).all() and (cells["prompts"] == 8).all()
    )


def test_a_slower_method_is_found_with_its_ratio(base: Path, twin: Path) -> None:
    change_records(twin, slow_ngram)
    cells = compare(base, twin).cells
    slower = cells[(cells["ratio_low"] > 1) | (cells["ratio_high"] < 1)]
    assert set(slower["method"]) == {"ngram"} and len(slower) == 4
    assert np.allclose(slower["ratio"], 1 / 1.5) and np.allclose(
        cells["ratio"], cells["speedup_b"] / cells["speedup_a"]
    )


def test_prompts_that_only_one_study_has_are_compared_as_samples(base: Path, twin: Path) -> None:
    change_records(twin, lambda record: record.update(prompt_id=f"other-{record['prompt_id']}"))
    cells, paired = compare(base, twin).cells, compare(base, base).cells
    assert not cells["paired"].any() and not cells["common_outputs"].any() and np.allclose(cells["ratio"], 1)
    assert (cells["ratio_high"] - cells["ratio_low"] > paired["ratio_high"] - paired["ratio_low"]).all()


def test_changed_outputs_are_counted(base: Path, twin: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        if record["prompt_id"].endswith("-0"):
            record["run"]["tokens"][3] += 1

    change_records(twin, change)
    cells = compare_cells(read_study(base), read_study(twin))
    assert (cells["equal_outputs"] == 7).all() and (cells["common_outputs"] == 8).all()


def test_one_table_is_printed_and_written(
    base: Path, twin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change_records(twin, slow_ngram)
    assert main(["compare", str(base), str(twin)]) == 0
    printed = capsys.readouterr().out
    assert "12 drafting cells were measured in both studies" in printed and "8 of 8" in printed
    page, table = tmp_path / "changes.html", tmp_path / "changes.csv"
    assert main(["compare", str(base), str(twin), "--html", str(page), "--csv", str(table), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)["cells"]
    assert len(values) == len(pd.read_csv(table)) == 12
    assert page.read_text().count("<strong>") == 4, "the intervals that exclude 1"
    for row in values:
        assert f"{row['ratio']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]" in printed


def worse_drafts(folder: Path, shift: float, **changes: Any) -> Path:
    """The study of `base` with a draft model whose tokens are accepted more rarely."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(synthetic.SHIFTS, "draft_model", shift)
        return write_study(
            folder / "demo", **{"methods": METHODS, "ks": (2, 4), "tasks": TASKS, "prompts": 8, **changes}
        )


def test_a_method_whose_acceptance_fell_beyond_the_tolerance_fails_with_its_cells(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worse = worse_drafts(tmp_path, -0.15)
    assert main(["compare", str(base), str(worse)]) == 0, "without a tolerance nothing is tested"
    assert "fell by more" not in capsys.readouterr().out
    assert main(["compare", str(base), str(worse), "--tolerance", "0.02", "--json"]) == 1
    values = json.loads(capsys.readouterr().out)
    lower = [row for row in values["cells"] if row["method"] == "draft_model"]
    assert values["lower_acceptance"] == [row["cell"] for row in lower] and len(lower) == 4
    for row in lower:
        lengths = row["acceptance_length_b"] / row["acceptance_length_a"]
        assert row["acceptance_ratio"] == pytest.approx(lengths) and row["setting_acceptance_ratio_high"] < 0.98
    assert {row["acceptance_ratio"] for row in values["cells"] if row["method"] != "draft_model"} == {1.0}
    assert main(["compare", str(base), str(worse), "--tolerance", "0.02"]) == 1
    printed = capsys.readouterr().out
    assert "in 2 of 6 methods" in printed and "native/tiny/draft_model/*-k2-t0-b1: B / A 0." in printed
    assert all(f"  {row['cell']}: τ" in printed for row in lower)
    assert main(["compare", str(base), str(worse), "--tolerance", "0.5"]) == 0
    assert main(["compare", str(worse), str(base), "--tolerance", "0"]) == 0, "what rose is no fault"


def test_a_fall_within_the_interval_passes(base: Path, tmp_path: Path) -> None:
    worse = worse_drafts(tmp_path, -0.02)
    change_records(worse, lambda record: record.update(prompt_id=f"other-{record['prompt_id']}"))
    cells = compare(base, worse).cells
    lower = cells[cells["setting_acceptance_ratio"] < 1]
    assert set(lower["method"]) == {"draft_model"} and (lower["setting_acceptance_ratio_high"] > 1).all()
    assert main(["compare", str(base), str(worse), "--tolerance", "0"]) == 0


def test_acceptance_of_too_few_prompts_is_not_tested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = worse_drafts(tmp_path, 0, prompts=2)
    assert main(["compare", str(few), str(few), "--tolerance", "0.02"]) == 2
    assert "no method has an interval of its acceptance" in capsys.readouterr().err


def test_what_cannot_be_compared_is_refused(base: Path, tmp_path: Path) -> None:
    other = write_study(tmp_path / "demo", methods=("ngram",), pairs=("another",), ks=(2,))
    with pytest.raises(ComparisonError, match="have no drafting cell in common"):
        compare(base, other)
    with pytest.raises(ComparisonError, match="is no study: name a results folder"):
        compare(base, tmp_path)
    shutil.rmtree(other / "records")
    with pytest.raises(ComparisonError, match="holds no records"):
        compare(base, other)
    old = Manifest(
        study="old",
        hardware="cpu",
        measured="",
        measured_with=[],
        specrig="0.9",
        record_schema=1,
        left_out=[],
        pairs=[],
    )
    (other / "manifest.json").write_text(old.model_dump_json())
    with pytest.raises(
        ComparisonError, match=rf"schema is 1, this SpecRig reads {SCHEMA_VERSION}; .*git checkout v0\.9"
    ):
        compare(base, other)
