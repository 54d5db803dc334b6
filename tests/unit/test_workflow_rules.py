"""What the workflow's rules ask of a study: files, params and resources, without Snakemake."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from synthetic import write_job, write_study

from specrig import cli
from specrig.dag.command_line import forces_measuring, with_names_as_written
from specrig.dag.ending import KEEP_FAILED, ending, exit_code, failed_cells
from specrig.dag.rules import Rules, memory, minutes
from specrig.measurement.failures import count_failures
from specrig.planning.estimate import Demand
from specrig.report.table_files import write_tables
from specrig.study.load import load_study


def rules(*, cores: int = 4, gpus: int = 1, shared: bool = False, **changes: Any) -> Rules:
    """The rules of configs/test.yaml with some keys changed."""
    config = yaml.safe_load(Path("configs/test.yaml").read_text()) | changes
    return Rules(load_study(config), cores=cores, gpus=gpus, shared=shared)


def job(**changes: str) -> Any:
    """The wildcards of a measuring job and of a training."""
    own = {"engine": "native", "pair": "tiny", "process": "together", "again": "", "model": "draft"}
    return SimpleNamespace(**own | changes)


def test_a_job_is_stale_for_what_decides_its_cells_and_for_nothing_else(workplace: Path) -> None:
    plain = rules()
    changed = {
        "seed": rules(seed=5),
        "clock": rules(clock="2027-05-06"),
        "prompts": rules(prompts=3),
        "a longer sweep": rules(methods=[{"method": "draft_model", "k": [2, 3, 4]}, {"method": "ngram", "k": 3}]),
        "an option": rules(methods=[{"method": "draft_model", "k": [2, 4]}, {"method": "ngram", "k": 3, "n": 2}]),
        "repeats": rules(repeats={"least": 3}),
        "audit_samples": rules(audit_samples=2_000),
    }
    settings = {name for name, each in changed.items() if each.job_settings(job()) != plain.job_settings(job())}
    cells = {name for name, each in changed.items() if each.job_cell_names(job()) != plain.job_cell_names(job())}
    assert settings == {"seed", "clock", "prompts", "repeats"} and cells == {"a longer sweep", "an option"}
    longer = set(changed["a longer sweep"].job_cell_names(job())) - set(plain.job_cell_names(job()))
    assert {name.split()[0] for name in longer} == {f"draft_model/{task}-k3-t0-b1" for task in ("code", "translation")}
    rows = Path("configs/pairs.tsv")
    rows.write_text(
        rows.read_text().replace("tests/data/tiny/draft\t\t\tfloat32", "tests/data/tiny/draft\t\t\tbfloat16", 1)
    )
    other = rules()
    assert other.pair_row(job()) != plain.pair_row(job()) and other.job_settings(job()) == plain.job_settings(job())


def test_a_job_is_stale_for_what_it_applies_of_a_tasks_row(workplace: Path) -> None:
    plain = rules()

    def made(**row: str) -> Rules:
        found = rules()
        found.study.rows.tasks["code"] = found.study.rows.tasks["code"].model_copy(update=row)
        return found

    for row in (
        {"chat": ""},
        {"where": "a=b"},
        {"id_field": "#"},
        {"prompt_template": "{a}"},
        {"system": "Be brief."},
    ):
        assert made(**row).job_tasks(job()) != plain.job_tasks(job()), row
    for row in ({"notes": "a"}, {"licence": "MIT"}, {"scorer": "exact_match"}, {"reference_field": "a"}):
        assert made(**row).job_tasks(job()) == plain.job_tasks(job()), row
    served = {"engines": ["llamacpp"], "pairs": ["smollm2_135m_shipped"], "tasks": ["code"], "methods": ["ngram"]}
    loaded = rules(**served, traffic={"concurrency": [1], "prompts": 8})
    point = job(engine="llamacpp", pair="smollm2_135m_shipped", method="ngram")
    before = loaded.traffic_tasks(point)
    loaded.study.rows.tasks["code"] = loaded.study.rows.tasks["code"].model_copy(update={"id_field": "#"})
    assert loaded.traffic_tasks(point) != before
    assert made(scorer="exact_match").task_row(job(task="code")) == plain.task_row(job(task="code"))
    assert made(reference_field="a").task_row(job(task="code")) != plain.task_row(job(task="code"))


def test_files_that_jobs_wait_for(workplace: Path) -> None:
    plain = rules()
    parts = ["tests/data/tiny/target", "tests/data/tiny/draft", "results/test/models/tiny/medusa"]
    assert list(dict.fromkeys(name.rpartition("/")[0] for name in plain.job_models(job()))) == parts
    assert plain.job_prompts(job()) == [f"configs/prompts/{task}.jsonl" for task in ("code", "translation")]
    assert plain.text_sources(job()) == ["tests/data/prompts.jsonl"]
    assert plain.training_inputs(job(model="medusa"))[-1] == "results/test/models/tiny/text.safetensors"
    assert plain.method_options(job()) == ["--method draft_model", "--method ngram", "--method medusa"]
    assert plain.audited() == ["native"]
    rows = plain.study.rows.pairs
    rows["tiny"] = rows["tiny"].model_copy(update={"draft": "weights/smollm2_135m/draft"})
    weights = [Path(name).name for name in plain.model_files("tiny", ["draft"])]
    assert {"config.json", "model.safetensors", "requests.txt"} <= set(weights) and "README.md" not in weights
    own = workplace / "own.jsonl"
    own.write_text('{"prompt": "a question"}\n')
    requested = rules(
        training={**yaml.safe_load(Path("configs/test.yaml").read_text())["training"], "prompts": str(own)}
    )
    assert requested.text_sources(job()) == [str(own)]


def test_a_training_is_stale_for_its_own_keys(workplace: Path) -> None:
    training = yaml.safe_load(Path("configs/test.yaml").read_text())["training"]
    plain, other = rules(), rules(training={**training, "medusa": {"steps": 7}})
    for model, same in (("eagle", True), ("draft", True), ("medusa", False)):
        assert (plain.training_recipe(job(model=model)) == other.training_recipe(job(model=model))) == same


def test_failed_cells_are_measured_again(workplace: Path) -> None:
    first = rules()
    for method in ("draft_model", "ngram"):
        write_job(first.root, first.study.grid.by_method["native", "tiny", method], prompts=1)
    assert first.failed_cells(job()) == []
    folder = first.root / "records/native/tiny/ngram"
    (folder / "index.json").write_text('{"cells": {}, "failed": {"code-k3-t0-b1": "it died"}}')
    count_failures(folder)
    assert rules().failed_cells(job()) == ["ngram/code-k3-t0-b1.failed-1"]


@pytest.mark.parametrize("kind", ["cells", "points"])
def test_what_fails_is_measured_again_until_it_succeeds_and_then_nothing_is_left_to_do(
    kind: str, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snakemake runs a job again whose param is not what it was when the job ran last."""
    measure, loads = job(process="ngram", method="ngram"), kind == "points"
    folder = rules().root / ("traffic" if loads else "records") / "native/tiny/ngram"
    folder.mkdir(parents=True)
    failures: list[dict[str, str]] = [{"code-k3-t0-b1": "it died"}, {"code-k3-t0-b1": "it died"}, {}, {}]

    def measured(*_: object, **__: object) -> None:
        (folder / "index.json").write_text(json.dumps({kind: {}, "failed": failures.pop(0)}))

    monkeypatch.setattr("specrig.measurement.runner.measure", measured)
    monkeypatch.setattr("specrig.measurement.traffic.sweep.measure_traffic", measured)
    monkeypatch.setattr(Rules, "job_methods", lambda *_: ["ngram"])
    params: list[list[str] | None] = [None]
    for _ in range(4):
        params.append(rules().failed_points(measure) if loads else rules().failed_cells(measure))
        options = ["--study", "configs/test.yaml", "--engine", "native", "--pair", "tiny", "--method", "ngram"]
        assert cli.main(["stage", "traffic" if loads else "measure", *options]) == 0
    assert [now != before for before, now in pairwise(params)] == [True, True, True, False]


def test_tracking_is_tried_again_where_mlflow_was_out_of_reach(workplace: Path) -> None:
    plain = rules()
    assert plain.retry_tracking() == ""
    plain.root.mkdir(parents=True)
    (plain.root / "tracked.txt").touch()
    (plain.root / "tracking-failed.txt").write_text("MLflow tracking failed.\nmore")
    assert "MLflow tracking failed. The next run tries again." in plain.retry_tracking()
    assert not (plain.root / "tracked.txt").exists()


def test_resources(workplace: Path) -> None:
    cpu = rules(device="cpu")
    assert (cpu.gpu, cpu.job_cores, cpu.measuring_gpus(job())) == (0, 4, 0)
    assert cpu.training_threads(job()) == 2
    cuda = rules(device="cuda", gpus=2, shared=True)
    assert (cuda.gpu, cuda.job_cores, cuda.measuring_gpus(job()), cuda.gpus(8)) == (1, 2, 1, 2)
    assert rules(device="cuda", gpus=0).gpus(8) == 8, "a cluster deals them out itself"
    assert cpu.auditing(job()).minutes == cpu.measuring(job()).minutes, "one job is the longest"
    two = rules(pairs=["tiny", "llama31_8b"], methods=["ngram"], device="cuda", gpus=0)
    two.study.rows.pairs["llama31_8b"] = two.study.rows.pairs["llama31_8b"].model_copy(update={"tensor_parallel": 4})
    small, large = (job(pair=pair, task="code") for pair in ("tiny", "llama31_8b"))
    assert two.answering(small) == two.measuring(small) and two.answering(large) == two.measuring(large)
    assert [two.answering_gpus(each) for each in (small, large)] == [1, 4]
    demand = lambda _: Demand(1_000, 30)  # noqa: E731
    assert [memory(demand)(job(), attempt) for attempt in (1, 2, 3)] == [1_000, 1_250, 1_500]
    assert [minutes(demand)(job(), attempt) for attempt in (1, 2)] == [30, 60]


def test_a_run_says_where_a_pair_gets_fewer_gpus_than_its_row_names(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for gpus, said in ((8, True), (16, False), (0, False)):
        found = rules(pairs=["llama31_8b"], methods=["ngram"], device="cuda", gpus=gpus, study=f"own{gpus}")
        pairs = found.study.rows.pairs
        pairs["llama31_8b"] = pairs["llama31_8b"].model_copy(update={"tensor_parallel": 16})
        found.begin(bar=True)
        assert ("split over 16 GPUs" in capsys.readouterr().err) == said


def test_every_path_in_a_shell_command_is_quoted(repository: Path) -> None:
    """A study's results folder may have a space in its name."""
    for file in sorted((repository / "workflow/rules").glob("*.smk")):
        commands = re.findall(r"^    shell:\n((?:        .*\n)+)", file.read_text(), flags=re.M)
        assert commands or file.name == "common.smk"
        names = {name for command in commands for name in re.findall(r"{(.*?)}", command)}
        chosen = {"params.chosen", "threads"}
        assert all(name.endswith(":q") or name in chosen or name.startswith("wildcards.") for name in names), file


def test_a_run_whose_cells_failed_names_them_last_and_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_study(tmp_path / "made_up")
    assert exit_code(failed_cells(folder)) == 0
    index = next((folder / "records").glob("*/*/*/index.json"))
    content = json.loads(index.read_text())
    index.write_text(json.dumps(content | {"failed": {"code-k9-t0-b1": "out of\n  memory"}}))
    *_, title, cell = ending(folder, Path("report.html"), failed_cells(folder)).splitlines()
    assert title == "Not measured (1), the next run tries again:"
    assert cell == f"  {'/'.join(index.parent.parts[-3:])}/code-k9-t0-b1: out of memory"
    assert exit_code(failed_cells(folder)) == 1
    monkeypatch.setenv(KEEP_FAILED, "1")
    assert exit_code(failed_cells(folder)) == 0


def test_the_command_line_is_read_as_it_was_written() -> None:
    words = ["snakemake", "-R", "measure", "--config", "study=2024_01", "pairs=[70, x]", "prompts=4", "-n"]
    found = with_names_as_written({"study": 202401, "prompts": 4}, words)
    assert found == {"study": "2024_01", "pairs": ["70", "x"], "prompts": 4}
    assert with_names_as_written({}, ["--config=tasks=1e5", "study=x"]) == {"tasks": "1e5", "study": "x"}
    assert forces_measuring(words) and forces_measuring(["-F"]) and forces_measuring(["--forcerun=measure"])
    assert not forces_measuring(["measure", "--forcerun", "tables", "--config", "study=measure"])


def test_a_run_ends_with_the_answer_where_it_made_tables(tmp_path: Path) -> None:
    assert ending(tmp_path, Path("report.html"), failed_cells(tmp_path)) == f"Report: report.html\nResults: {tmp_path}"
    folder = write_study(tmp_path / "made_up")
    write_tables(folder, folder / "tables")
    answer, overlapping, report, _ = ending(folder, Path("report.html"), failed_cells(folder)).splitlines()
    assert answer.startswith("Fastest lossless method on ") and " times the speed of plain decoding (mean " in answer
    assert overlapping.startswith("Not certainly slower, since the intervals overlap: ")
    assert report == "Report: report.html" and "nan" not in answer
