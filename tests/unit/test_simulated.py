"""Random weights with a declared acceptance: real passes, drawn outcomes, kept apart from what is measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml
from transformers import AutoConfig, AutoModelForCausalLM

from runs import own_study
from specrig.analysis.cost_model import expected_tokens
from specrig.audit.run import audit_records
from specrig.audit.toy_pair import build
from specrig.cell import Cell
from specrig.decoding.drafters import registry
from specrig.engines.native import Native
from specrig.engines.vllm import Vllm
from specrig.engines.vllm.speculation import speculation_of
from specrig.measurement.records import read_records, study_records
from specrig.measurement.runner import measure
from specrig.models.facts import models
from specrig.models.pair import PairFiles
from specrig.models.random_weights import random_model
from specrig.report.study_data import read_study
from specrig.report.table_files import write_tables
from specrig.runtime.llama_model import LlamaModel
from specrig.study.load import load_study
from specrig.study.problems import StudyError

TARGET = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 300, "max_position_embeddings": 1024, "tie_word_embeddings": True,
}  # fmt: skip
DRAFT = {**TARGET, "num_hidden_layers": 1}


@pytest.fixture
def shapes(tmp_path: Path) -> dict[str, str]:
    """Two folders with a config.json and nothing else."""
    for name, config in (("target", TARGET), ("draft", DRAFT)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    return {name: str(tmp_path / name) for name in ("target", "draft")}


def generated(
    shapes: dict[str, str], alpha: float, method: str, k: int, temperature: float, tokens: int, rows: int = 1
) -> Any:
    pair = PairFiles("shape", shapes["target"], shapes["draft"], random_weights=True, simulated_acceptance=alpha)
    options = registry()[method].Options().model_dump()
    cell = Cell(engine="native", pair="shape", method=method, k=k, task="-", temperature=temperature, options=options)
    with Native(pair, threads=1) as engine:
        prompts = [engine.encode("Once upon a time" + "!" * row) for row in range(rows)]
        return engine.generate(cell, prompts, max_new_tokens=tokens, seeds=range(rows))


@pytest.mark.parametrize(("alpha", "k", "temperature"), [(0.6, 3, 1.0), (0.9, 5, 0.0)])
def test_tokens_a_pass_follow_the_declared_acceptance(
    shapes: dict[str, str], alpha: float, k: int, temperature: float
) -> None:
    (found,) = generated(shapes, alpha, "draft_model", k, temperature, 900)
    emitted = [entry.emitted for entry in found.rounds if not entry.cut]
    expected = expected_tokens(alpha, k)
    # The variance of a truncated geometric count is below that of k alike ones; five standard errors leave no chance
    # failure.
    error = (sum((count - expected) ** 2 for count in emitted) / len(emitted) / len(emitted)) ** 0.5
    assert len(emitted) > 150
    assert abs(sum(emitted) / len(emitted) - expected) < 5 * error
    assert found.overlap / found.reached == pytest.approx(alpha)
    assert found.stop == "length"
    assert len(found.tokens) == 900
    # Nothing is skipped: every round is a pass of the target, every drafted token a pass of the draft (it may catch up
    # with one more).
    assert sum(calls for calls, _ in found.target_passes.values()) == len(found.rounds)
    assert sum(calls for calls, _ in found.draft_passes.values()) >= k * (len(found.rounds) - 1)


@pytest.mark.parametrize(("alpha", "length"), [(0.0, 1), (1.0, 5)])
def test_the_ends_of_the_scale(shapes: dict[str, str], alpha: float, length: int) -> None:
    (found,) = generated(shapes, alpha, "draft_model", 4, 0.0, 61)
    assert {entry.emitted for entry in found.rounds if not entry.cut} == {length}


def test_rows_and_runs_repeat(shapes: dict[str, str]) -> None:
    one = [
        [entry.accepted for entry in row.rounds] for row in generated(shapes, 0.5, "draft_model", 4, 0.0, 80, rows=3)
    ]
    two = [
        [entry.accepted for entry in row.rounds] for row in generated(shapes, 0.5, "draft_model", 4, 0.0, 80, rows=3)
    ]
    (alone,) = generated(shapes, 0.5, "draft_model", 4, 0.0, 80)
    assert one == two
    assert one[0] != one[1], "each row has its own stream"
    assert one[0] == [entry.accepted for entry in alone.rounds], "which does not depend on its neighbours"


def test_a_trees_levels_are_accepted_along_the_first_branch(shapes: dict[str, str]) -> None:
    (found,) = generated(shapes, 1.0, "tree", 4, 1.0, 60)
    assert all(entry.accepted == entry.depth for entry in found.rounds[:-1])


@pytest.mark.parametrize(
    "name", [name for name, known in models().items() if "MaskedLM" not in known.config["architectures"][0]]
)
def test_shipped_shapes_count_their_parameters_as_transformers_does(name: str) -> None:
    known = models()[name]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**known.config))
    assert known.shape.parameters == sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize(
    "config",
    [
        {**TARGET, "tie_word_embeddings": False},
        {**TARGET, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
        {**TARGET, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 16},
        {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 300, "n_positions": 128},
        {"model_type": "gpt_neox", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
         "vocab_size": 300, "max_position_embeddings": 128},
    ],
    ids=["untied", "qwen2", "qwen3", "gpt2", "gpt_neox"],
)  # fmt: skip
def test_random_models_run_in_their_dtype_and_are_not_degenerate(config: dict[str, Any]) -> None:
    model = random_model(config, devices=["cpu"], dtype=torch.bfloat16)
    assert isinstance(model, LlamaModel) == (config["model_type"] not in ("gpt2", "gpt_neox"))
    model.start(1, 32)
    logits, hidden = model.forward(torch.tensor([[1, 2, 3]]))
    assert logits.dtype == hidden.dtype == torch.bfloat16
    assert logits.isfinite().all()
    assert logits.float().std() > 0


@pytest.fixture
def study(workplace: Path, shapes: dict[str, str]) -> Path:
    """A study of one pair of random weights, on prompts of its own."""
    header = "pair\ttarget\tdraft\tweights\tsimulated_acceptance\n"
    table = header + f"shape\t{shapes['target']}\t{shapes['draft']}\trandom\t0.7\n"
    prompts, methods = (
        ["tell me " * count for count in (1, 2, 3)],
        [{"method": "draft_model", "k": 4}, "autoregressive"],
    )
    return own_study("shape", table, prompts, methods=methods, max_new_tokens=40)


def test_records_say_that_the_acceptance_is_simulated(study: Path) -> None:
    loaded = load_study(study)
    measure(loaded, "native", "shape", ["draft_model"])
    records = list(read_records(loaded.root / "records/native/shape/draft_model/own-k4-t0-b1.jsonl"))
    assert [record.simulated_acceptance for record in records] == [0.7] * 3
    assert not any(record.lossless for record in records)
    assert all(len(record.run.tokens) == len(record.baseline.tokens) == 40 for record in records)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("random\t0.7", "random\t", "set simulated_acceptance from 0 to 1"),
        ("random\t0.7", "random\t1.5", "less than or equal to 1"),
        ("random\t0.7", "\t1.5", "less than or equal to 1"),
    ],
)
def test_declarations_that_make_no_sense_are_refused(study: Path, old: str, new: str, says: str) -> None:
    table = Path("configs/pairs.tsv")
    table.write_text(table.read_text().replace(old, new))
    with pytest.raises(StudyError, match=says):
        load_study(study)


def test_a_shape_that_is_not_shipped_is_named(study: Path, shapes: dict[str, str]) -> None:
    table = Path("configs/pairs.tsv")
    table.write_text(table.read_text().replace(shapes["target"], "Qwen/Qwen3-9B"))
    with pytest.raises(StudyError, match=r"no shape of Qwen/Qwen3-9B is shipped(.|\n)*did you mean 'Qwen/Qwen3-8B'"):
        load_study(study)


def test_simulated_cells_have_a_table_of_their_own_and_enter_no_other(study: Path) -> None:
    loaded = load_study(study)
    for method in ("draft_model", "autoregressive"):
        measure(loaded, "native", "shape", [method])
    (loaded.root / "study.json").write_text(loaded.model_dump_json())
    write_tables(loaded.root, loaded.root / "tables")
    data = read_study(loaded.root)
    assert data.records == []
    assert pd.read_csv(loaded.root / "tables/cells.csv").empty
    table = pd.read_csv(loaded.root / "tables/simulated.csv")
    assert table["acceptance"].tolist() == ["simulated acceptance"] * 2
    assert table["declared_alpha"].tolist() == [0.7] * 2
    drafted = table[table["method"] == "draft_model"].iloc[0]
    assert drafted["expected_length"] == pytest.approx(expected_tokens(0.7, 4))
    # Speed follows from what was emitted: tokens/s is tokens a pass over seconds a pass, here as everywhere.
    records = list(read_records(loaded.root / "records/native/shape/draft_model/own-k4-t0-b1.jsonl"))
    tokens, seconds = (
        sum(len(record.run.tokens) - 1 for record in records),
        sum(record.run.decode_s for record in records),
    )
    assert drafted["tokens_per_s"] == pytest.approx(tokens / seconds)
    for kind in ("md", "tex"):
        assert "SIMULATED ACCEPTANCE" in (loaded.root / f"tables/simulated.{kind}").read_text()
    assert audited(loaded) == [], "there is nothing to be true to"


def audited(loaded: Any) -> list[str]:
    out = loaded.root / "audit" / "records.csv"
    audit_records(loaded, study_records(loaded.root / "records"), loaded.root, out)
    return out.read_text().splitlines()[1:]


def test_a_batch_takes_as_many_prompts_as_it_holds(study: Path) -> None:
    config = yaml.safe_load(study.read_text()) | {
        "prompts": 1,
        "batch_sizes": [1, 3],
        "methods": [{"method": "draft_model", "k": 2}],
    }
    study.write_text(yaml.safe_dump(config))
    loaded = load_study(study)
    measure(loaded, "native", "shape", ["draft_model"])
    folder = loaded.root / "records/native/shape/draft_model"
    one, three = (list(read_records(folder / f"own-k2-t0-b{size}.jsonl")) for size in (1, 3))
    assert [record.prompt_id for record in one] == ["0"]
    assert [(record.prompt_id, record.group) for record in three] == [("0", 0), ("1", 0), ("2", 0)]
    # Another batch size measures itself: what batches of one decide is their own prompts.
    before = (folder / "own-k2-t0-b1.jsonl").read_bytes()
    study.write_text(yaml.safe_dump(config | {"batch_sizes": [1, 2]}))
    loaded = load_study(study)
    measure(loaded, "native", "shape", ["draft_model"])
    assert (folder / "own-k2-t0-b1.jsonl").read_bytes() == before
    assert len(list(read_records(folder / "own-k2-t0-b2.jsonl"))) == 2


def test_reported_speedups_stand_beside_simulated_ones_without_a_verdict(study: Path, shapes: dict[str, str]) -> None:
    target, draft = shapes["target"], shapes["draft"]
    header = "id,source,target,draft,method,k,task,temperature,hardware,precision,batch,metric,low,high,note"
    rows = [
        f"A1,paper,{target},{draft},draft_model,4,,0.7,RTX 4090,AWQ,1,speedup,1.66,1.66,",
        f"A2,paper,{target},{draft},draft_model,5,,,,,,speedup,1.8,1.8,another k",
        f"A3,paper,{target},{draft},draft_model,4,,,,,,tokens_per_s,290,290,no ratio",
        f"A4,paper,{target},,eagle2,4,,,,,,speedup,1.94,1.94,another method",
        f"A5,paper,other,{draft},draft_model,4,,,,,,speedup,3,3,another target",
    ]
    Path("configs/reported.csv").write_text("\n".join([header, *rows]) + "\n")
    loaded = load_study(study)
    measure(loaded, "native", "shape", ["draft_model"])
    (loaded.root / "study.json").write_text(loaded.model_dump_json())
    write_tables(loaded.root, loaded.root / "tables")
    row = pd.read_csv(loaded.root / "tables/simulated.csv").iloc[0]
    assert row["reported_speedup"] == "1.66 (A1)"
    assert row["reported_conditions"].startswith("A1: temperature (0.7 reported, 0 measured); hardware (")
    assert "AWQ" in row["reported_conditions"]
    judged = pd.read_csv(loaded.root / "tables/reproduction.csv").set_index("id")
    assert judged["measured"].isna().all(), "what is simulated judges nothing"
    assert "without a verdict" in (loaded.root / "tables/simulated.md").read_text()


def test_a_pair_with_its_weights_can_declare_an_acceptance(workplace: Path) -> None:
    pair = build(Path("toy_pair"))
    Path("prompts.jsonl").write_text('{"id": "a", "prompt": "tell me"}\n')
    header = "pair\ttarget\tdraft\tsimulated_acceptance\n"
    Path("configs/pairs.tsv").write_text(header + f"toy\t{pair.target}\t{pair.draft}\t0.7\n")
    Path("configs/tasks.tsv").write_text("task\tsource\nown\tprompts.jsonl\n")
    config = {
        "study": "toy", "engines": ["native", "transformers"], "pairs": ["toy"], "tasks": ["own"], "prompts": 1, "max_new_tokens": 40,
        "threads": 1, "device": "cpu", "methods": [{"method": "draft_model", "k": 4}],
    }  # fmt: skip
    Path("configs/toy.yaml").write_text(yaml.safe_dump(config))
    study = load_study(Path("configs/toy.yaml"))
    assert [refused.reason for refused in study.grid.refusals] == [
        "pair 'toy' declares its acceptance, which transformers cannot simulate"
    ]
    measure(study, "native", "toy", ["draft_model"])
    (record,) = read_records(study.root / "records/native/toy/draft_model/own-k4-t0-b1.jsonl")
    assert record.simulated_acceptance == 0.7 and not record.lossless
    assert record.prompt_tokens == len(Native(pair, threads=1).encode("tell me")), "by its own tokenizer"


def simulating(alpha: float) -> tuple[PairFiles, Cell]:
    pair = replace(build(Path("toy_pair")), simulated_acceptance=alpha)
    options = registry()["draft_model"].Options().model_dump()
    return pair, Cell(engine="vllm", pair="toy", method="draft_model", k=3, task="-", temperature=0.0, options=options)


def test_vllm_gets_the_chance_that_all_tokens_up_to_a_position_are_accepted(workplace: Path) -> None:
    pair, cell = simulating(0.5)
    config = speculation_of(cell, pair, "greedy")["speculative_config"]
    assert config["rejection_sample_method"] == "synthetic"
    assert config["synthetic_acceptance_rates"] == [0.5, 0.25, 0.125]
    assert "rejection_sample_method" not in str(
        speculation_of(cell, replace(pair, simulated_acceptance=None), "greedy")
    )


@pytest.mark.vllm
@pytest.mark.skipif(Vllm.missing() is not None, reason="vLLM is not installed")
def test_vllms_synthetic_rejection_accepts_as_declared(workplace: Path) -> None:
    pair, cell = simulating(0.7)
    pair = replace(pair, engine_options={"vllm": dict(Vllm.audit_options)})
    with Vllm(pair, threads=1) as engine:
        (found,) = engine.generate(cell, [engine.encode("tell me")], max_new_tokens=400, seeds=[0])
    emitted = [entry.emitted for entry in found.rounds if not entry.cut]
    assert sum(emitted) / len(emitted) == pytest.approx(expected_tokens(0.7, 3), abs=0.35)
