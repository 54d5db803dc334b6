"""What a plan says before anything is downloaded: sizes, memory, hours, what is gated and what can never work."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from model_folders import stand_in
from synthetic import write_study

from specrig import cli
from specrig.models import facts
from specrig.models.gguf import is_gguf
from specrig.planning.estimate import hours, pair_sizes, training
from specrig.planning.measured import cells_measured
from specrig.planning.plan import plan_of
from specrig.study.load import load_study
from specrig.study.problems import Positions, Problems, StudyError
from specrig.study.rows import Pair, Task, read_rows
from specrig.training.budget import training_flop
from specrig.training.recipe import Recipe
from specrig.training.stages import STAGES


def test_the_papers_grid_is_planned_in_seconds_without_torch(repository: Path) -> None:
    code = (
        "import sys; from specrig import cli\n"
        "code = cli.main(['plan', 'configs/paper.yaml'])\n"
        "print([name for name in ('torch', 'transformers', 'pandas', 'datasets') if name in sys.modules])\n"
        "sys.exit(code)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run([sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Processor time, so that a busy machine does not fail it.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 10
    assert result.stdout.splitlines()[-1] == "[]"
    text = " ".join(result.stdout.split())
    for message in ("cells in ", "GB (codellama_70b) of GPU memory", "hours of measuring", "Gated", "A100"):
        assert message in text, message
    (methods,) = re.findall(r"^native / mixtral\n(.*?)\n\n", result.stdout, flags=re.M | re.S)
    assert "draft_model" in methods and "ngram" in methods, "its draft's vocabulary is another one"
    assert "bert (BertForMaskedLM) is an encoder" in text


def test_nothing_left_to_run_is_an_error(workplace: Path) -> None:
    config = yaml.safe_load(Path("configs/test.yaml").read_text()) | {"pairs": ["bert"], "methods": ["ngram"]}
    Path("configs/own.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(StudyError, match=r"no engine can run any cell: .*is an encoder"):
        load_study(Path("configs/own.yaml"))


def test_sizes_of_a_known_pair(workplace: Path) -> None:
    config = yaml.safe_load(Path("configs/test.yaml").read_text()) | {
        "pairs": ["llama31_8b", "tiny"],
        "methods": [{"method": "draft_model", "k": [2, 4]}, {"method": "ngram", "k": 3}],
        "device": "cuda",
    }
    Path("configs/own.yaml").write_text(yaml.safe_dump(config))
    study = load_study(Path("configs/own.yaml"))
    llama, tiny = pair_sizes(study)
    assert llama.weight_bytes == 2 * (8_030_261_248 + 1_235_814_400)
    # 32 layers, 8 heads of 128, keys and values of 2 bytes.
    assert llama.target.cache_bytes(1, "bfloat16") == 2 * 32 * 8 * 128 * 2
    assert tiny.target.parameters == 279_104
    spent, assumption = hours(study, [llama, tiny])
    # 6 cells and 2 baselines, one a task, of 2 prompts × 2 repeats × 16 tokens and 16 of warm-up, 15 GB a pass at 1.2 TB/s (of the
    # input's table only rows are read); one loading of 18.5 GB.
    by_hand = 8 * (2 * 2 * 16 + 16) * 2 * (8_030_261_248 - 128_256 * 4096) / 1.2e12 + llama.weight_bytes / 1e9
    assert spent * 3600 == pytest.approx(by_hand, rel=0.05)
    assert "2,000 GB/s (an A100 80 GB)" in assumption


def test_a_mixture_reads_its_active_experts() -> None:
    shape = facts.models()["mistralai/Mixtral-8x7B-Instruct-v0.1"].shape
    assert shape.parameters == 46_702_792_704
    assert shape.active_parameters == pytest.approx(12.9e9, rel=0.01)


def test_every_shipped_row_reads(repository: Path) -> None:
    problems = Problems(Positions([]))
    pairs = read_rows(repository / "configs/pairs.tsv", Pair, problems)
    tasks = read_rows(repository / "configs/tasks.tsv", Task, problems)
    assert not problems.found
    assert {
        "humaneval", "mbpp", "wmt14_de_en", "wmt16_en_de", "cnn_dailymail", "xsum", "writing_prompts",
    } <= tasks.keys()  # fmt: skip
    assert all(task.licence for task in tasks.values())
    assert all(task.sha256 for task in tasks.values() if task.kind == "url")
    hub = [
        model
        for pair in pairs.values()
        for model in (pair.target, pair.draft)
        if model and "/" in model and not is_gguf(model) and not (repository / model / "config.json").is_file()
    ]
    assert not [model for model in hub if facts.known(model) is None], "the size of every pair is known"


@pytest.mark.parametrize(
    ("target", "draft", "reason"),
    [
        ("Qwen/Qwen2.5-32B-Instruct", "Qwen/Qwen2.5-1.5B-Instruct", None),
        ("Qwen/Qwen2.5-32B-Instruct", None, None),
        ("unknown/model", "other/model", None),
        ("codellama/CodeLlama-70b-hf", "codellama/CodeLlama-7b-Python-hf", None),
        ("Qwen/Qwen3-8B", "meta-llama/Llama-3.2-1B-Instruct", None),
        ("unknown/model", "distilbert/distilbert-base-uncased", "is an encoder"),
    ],
)
def test_facts_refuse_only_what_they_know(target: str, draft: str | None, reason: str | None) -> None:
    found = facts.impossible(target, draft)
    assert (found is None) if reason is None else reason in (found or "")


def test_facts_say_which_vocabularies_differ() -> None:
    difference = facts.other_vocabulary("Qwen/Qwen3-8B", "meta-llama/Llama-3.2-1B-Instruct")
    assert "128256 tokens (llama-3) against 151936 (qwen-3)" in str(difference)
    assert facts.other_vocabulary("codellama/CodeLlama-70b-hf", "codellama/CodeLlama-7b-Python-hf") is None
    assert facts.other_vocabulary("unknown/model", "Qwen/Qwen3-8B") is None


def test_the_cache_of_a_batch_is_that_of_its_rows(workplace: Path) -> None:
    config = yaml.safe_load(Path("configs/gpu_shapes.yaml").read_text())
    sizes = {}
    for name, methods in (("one", [{"method": "ngram"}]), ("many", [{"method": "ngram", "batch_sizes": [64]}])):
        Path("configs/own.yaml").write_text(yaml.safe_dump(config | {"methods": methods}))
        sizes[name] = pair_sizes(load_study(Path("configs/own.yaml")))[0]
    one, many = sizes["one"], sizes["many"]
    assert one.target and one.draft
    row = one.target.cache_bytes(one.tokens, one.dtype) + one.draft.cache_bytes(one.tokens, one.dtype)
    assert (many.memory_bytes or 0) - (one.memory_bytes or 0) == 63 * row


def test_a_gpu_study_plans_without_refusals(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "configs/gpu_shapes.yaml"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "Refused" not in output and "GPU memory" in output
    study = load_study(Path("configs/gpu_shapes.yaml"))
    batches = {cell.batch_size for cell in study.grid.cells}
    assert max(batches) == 32 and 1 in batches


SMALL = facts.shape_of(
    {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 128,
        "vocab_size": 4096, "max_position_embeddings": 512, "tie_word_embeddings": True,
    }
)  # fmt: skip


def test_training_costs_what_its_models_and_tokens_cost() -> None:
    recipe, target = Recipe.model_validate({"prompts": "mine.jsonl"}), SMALL
    assert target is not None
    assert training_flop(recipe, [], target) == pytest.approx(training_flop(recipe, ["rest"], target))
    # What is learnt from the target's text pays for it, and for its states, once.
    text = (2 * target.parameters + 2 * 4 * 256 * 64) * recipe.text.sequences * 256
    both, one = training_flop(recipe, ["draft", "eagle"], target), training_flop(recipe, ["draft"], target)
    assert both - one == pytest.approx(training_flop(recipe, ["eagle"], target) - 2 * text) and both > one
    assert all(training_flop(recipe, [name], target) > 0 for name in {*STAGES, "joint"}), "every stage has its cost"
    # A head's cost follows its own settings, and no other head's.
    longer = recipe.model_copy(update={"eagle3": recipe.eagle3.model_copy(update={"steps": 2 * recipe.eagle3.steps})})
    assert training_flop(longer, ["eagle3"], target) > training_flop(recipe, ["eagle3"], target)
    assert training_flop(longer, ["eagle"], target) == training_flop(recipe, ["eagle"], target)


def test_plan_says_what_training_costs(workplace: Path) -> None:
    study = load_study(Path("configs/test.yaml"))
    found = re.fullmatch(
        r"(.*) \((.*) PFLOP: (.*) on two cores, start-ups aside; up to .* of memory, .* of disk\)", training(study)
    )
    assert found and found[1] == "medusa of tiny"
    target = pair_sizes(study)[0].target
    assert target and float(found[2]) * 1e15 == pytest.approx(
        training_flop(study.training, ["medusa"], target), rel=0.1
    )
    assert training(load_study(Path("configs/gpu_shapes.yaml"))) == "nothing"


def test_plan_labels_simulated_pairs(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = yaml.safe_load(Path("configs/test.yaml").read_text()) | {
        "pairs": ["llama31_8b_shape"],
        "tasks": ["context_512"],
        "methods": ["ngram"],
    }
    Path("configs/own.yaml").write_text(yaml.safe_dump(config))
    assert cli.main(["plan", "configs/own.yaml"]) == 0
    output = capsys.readouterr().out
    assert "Simulated acceptance llama31_8b_shape" in output
    assert "Gated" not in output, "nothing is downloaded"


SIZED_OTHERWISE = {
    "mamba": {"model_type": "mamba", "architectures": ["MambaForCausalLM"], "hidden_size": 32, "state_size": 16, "vocab_size": 60},
    "hybrid": {
        "model_type": "lfm2", "architectures": ["Lfm2ForCausalLM"], "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 60,
        "num_attention_heads": 4, "max_position_embeddings": 64, "layer_types": ["conv", "full_attention"],
    },
    "olmo": {
        "model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"], "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 60,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64,
    },
}  # fmt: skip


def study_of(folders: dict[str, dict[str, object]], **keys: object) -> Path:
    """A study of folders with these config.json."""
    for name, config in folders.items():
        stand_in(Path(name), **config)
    rows = "".join(f"{name}\t./{name}\n" for name in folders)
    Path("configs/pairs.tsv").write_text("pair\ttarget\n" + rows)
    config = yaml.safe_load(Path("configs/test.yaml").read_text())
    config |= {"pairs": list(folders), "methods": [{"method": "ngram", "k": 2}], "engines": ["native"]} | keys
    Path("configs/own.yaml").write_text(yaml.safe_dump(config))
    return Path("configs/own.yaml")


def test_what_the_config_says_cannot_be_rolled_back_is_refused_in_the_plan(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study_of(
        SIZED_OTHERWISE,
        engines=["native", "transformers"],
        methods=[{"method": "ngram", "k": 2}, "naive_batching"],
        tasks=["context_512"],
    )
    assert cli.main(["plan", "configs/own.yaml"]) == 0
    out = capsys.readouterr().out
    output, groups = " ".join(out.split()), dict(re.findall(r"^(\w+ / \w+)\n(.*?)\n\n", out, flags=re.M | re.S))
    assert (
        "native/mamba: ngram, naive_batching" in output
        and "(state_size in its config), which cannot be rolled back" in output
    )
    assert "native/hybrid: ngram, naive_batching" in output and "layers of type conv" in output
    assert "transformers/hybrid: ngram, " in output, "assisted generation rolls back too"
    assert "naive_batching" in groups["transformers / mamba"], "plain generation does not"
    assert "ngram" in groups["native / olmo"] and "not known" in output, "runs, but its size is not known"


def test_a_study_of_nothing_but_state_has_nothing_to_run(workplace: Path) -> None:
    with pytest.raises(StudyError, match=r"no engine can run any cell: \./mamba: it keeps more than keys and values"):
        load_study(study_of({"mamba": SIZED_OTHERWISE["mamba"]}))


@pytest.mark.parametrize("config", [{}, {"model_type": "qwen2_moe", "vocab_size": 5}, *SIZED_OTHERWISE.values()])
def test_sizes_are_known_or_not_but_never_an_error(config: dict[str, object]) -> None:
    assert facts.shape_of(config) is None


@pytest.mark.parametrize(
    ("changes", "measured"),
    [
        ({}, 12),
        ({"methods": [{"method": "draft_model", "k": [2, 4]}, {"method": "ngram", "k": 2, "n": 2}]}, 4),
        ({"methods": [{"method": "draft_model", "k": [2, 4, 8]}, {"method": "ngram", "k": [2, 4, 6]}]}, 10),
        ({"repeats": {"least": 3}}, 0),
        ({"prompts": 5}, 0),
        ({"max_new_tokens": 49}, 0),
    ],
)
def test_plan_counts_the_cells_that_are_measured(
    changes: dict[str, object], measured: int, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_study(workplace / "results/own", methods=("draft_model", "ngram"), tasks=("code", "translation"))
    config = json.loads(Path("results/own/study.json").read_text()) | changes
    Path("configs/own.yaml").write_text(json.dumps(config))
    plan = plan_of(load_study(Path("configs/own.yaml")))
    cells = plan["cells"]
    assert plan["measured"] == measured
    assert cli.main(["plan", "configs/own.yaml"]) == 0
    expected = f"measured already: {measured} of {cells} cells; {cells - measured or 'none'} will run"
    assert expected in capsys.readouterr().out


def test_plan_counts_no_cell_whose_task_has_another_row(workplace: Path) -> None:
    write_study(workplace / "results/own", methods=("ngram",), tasks=("code", "translation"))
    Path("configs/own.yaml").write_text(Path("results/own/study.json").read_text())
    study = load_study(Path("configs/own.yaml"))
    plain = study.rows.tasks["code"]
    for row, measured in (
        ({"notes": "other"}, 6),
        ({"scorer": "rouge_l"}, 6),
        ({"chat": ""}, 3),
        ({"where": "a=b"}, 3),
    ):
        study.rows.tasks["code"] = plain.model_copy(update=row)
        assert cells_measured(study) == measured, row


def test_plan_counts_no_cell_whose_records_are_gone_or_failed(workplace: Path) -> None:
    write_study(workplace / "results/own", methods=("ngram",), tasks=("code",))
    folder = Path("results/own/records/native/tiny/ngram")
    Path("configs/own.yaml").write_text(Path("results/own/study.json").read_text())
    study = load_study(Path("configs/own.yaml"))
    assert cells_measured(study) == 3
    index = json.loads((folder / "index.json").read_text())
    gone, failed, _ = index["cells"]
    (folder / index["cells"][gone]["records"]).unlink()
    assert cells_measured(study) == 2
    (folder / "index.json").write_text(json.dumps(index | {"failed": {failed: "killed"}}))
    assert cells_measured(study) == 1
    (folder / "index.json").write_text("{")
    assert cells_measured(study) == 0


@pytest.mark.parametrize("kind", ["gemma2", "gemma3_text", "phi3"])
def test_sizes_are_those_that_transformers_builds(kind: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        kind, vocab_size=60, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=64, pad_token_id=0,
    )  # fmt: skip
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shape = facts.shape_of(config.to_dict())
    assert shape is not None and shape.parameters == model.num_parameters()
