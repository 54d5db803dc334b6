"""What rows of pairs.tsv say is trained: for any target, shared by pairs of one target, refused where it cannot be."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM

from specrig.heads import initialise
from specrig.models.pair import ModelError, PairFiles
from specrig.planning.estimate import training
from specrig.planning.pins import unpinned
from specrig.provenance.environment import TRAINED_FOR, capture
from specrig.provenance.trained_for import check_trained_for, note, noted, target_identity
from specrig.study.load import load_study
from specrig.study.problems import StudyError
from specrig.study.rows import Pair
from specrig.study.study import Study
from specrig.training.stages import CHECKPOINT

HEADER = "pair\ttarget\tdraft\tdtype\theads\tquantization\tweights\tsimulated_acceptance\n"
MANY = [{"method": "draft_model", "k": 2}, {"method": "medusa"}, {"method": "eagle"}, {"method": "medusa_draft"}]


def model_folder(name: str, vocabulary: int = 4, template: str = "", layers: int = 2) -> Path:
    """A model as planning sees it: its config, its tokenizer, and the header of its weights."""
    folder = Path("models") / name
    shape = LlamaConfig(
        hidden_size=16, intermediate_size=32, vocab_size=vocabulary, num_hidden_layers=layers, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(shape).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {str(n): n for n in range(vocabulary)}}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template} if template else {}))
    return folder


def study_of(rows: str, methods: list[dict[str, Any]] = MANY, **settings: Any) -> Study:
    Path("configs/pairs.tsv").write_text(HEADER + rows)
    named = [line.split("\t")[0] for line in rows.splitlines()]
    content = {
        "study": "mine",
        "pairs": named,
        "tasks": ["spec_bench_mt_bench"],
        "prompts": 2,
        "methods": methods,
    } | settings
    content["training"] = {"prompts": "tests/data/prompts.jsonl"} | settings.get("training", {})
    Path("configs/mine.yaml").write_text(yaml.safe_dump(content))
    return load_study(Path("configs/mine.yaml"))


def test_a_foreign_target_teaches_what_methods_need_and_nothing_else(workplace: Path) -> None:
    study = study_of("own\towner/model\ttrained\t\ttrained\n")
    assert study.grid.trained == [("own", "draft"), ("own", "draft_medusa"), ("own", "eagle"), ("own", "medusa")]
    files = study.paths.pair_files("own", study.root)
    assert files.target == "owner/model", "it comes from the hub as it does for measuring"
    assert files.draft == str(study.root / "models/own/draft")
    assert files.heads["eagle"] == study.root / "models/own/eagle"
    assert study_of("own\towner/model\ttrained\t\ttrained\n", [{"method": "ngram"}]).grid.trained == []
    heads = study_of("own\towner/model\t\t\ttrained\n", [{"method": "eagle3"}])
    assert heads.grid.trained == [("own", "eagle3")]


def test_trained_heads_stand_beside_published_ones(workplace: Path) -> None:
    methods = [{"method": "medusa"}, {"method": "eagle"}, {"method": "eagle3"}]
    for heads in ("medusa=trained eagle=trained eagle3=owner/head@v1", "trained eagle3=owner/head@v1"):
        study = study_of(f"own\towner/model\t\t\t{heads}\n", methods)
        assert study.grid.trained == [("own", "eagle"), ("own", "medusa")]
        files = study.paths.pair_files("own", study.root)
        assert str(files.heads["eagle3"]) == "owner/head" and files.head_revisions == {"eagle3": "v1"}
        # What is trained here is no repository to pin.
        assert [(pin.column, pin.source) for pin in unpinned(study)] == [("target_revision", "owner/model")]


def test_pairs_of_one_target_share_what_is_trained(workplace: Path) -> None:
    rows = "half\towner/model\ttrained\tbfloat16\ttrained\nfull\towner/model\ttrained:half\tfloat32\ttrained:half\n"
    study = study_of(rows)
    assert {pair for pair, _ in study.grid.trained} == {"half"}
    assert study.paths.pair_files("full", study.root).sources == study.paths.pair_files("half", study.root).sources
    # The pair that it is trained for comes along, and learns what the other needs.
    alone = study_of(rows, [{"method": "eagle"}], pairs=["full"])
    assert list(alone.rows.pairs) == ["full", "half"] and alone.grid.trained == [("half", "eagle")]
    assert {cell.pair for cell in alone.grid.cells} == {"full"}


def test_a_draft_is_trained_for_the_head_that_is_made_from_it(workplace: Path) -> None:
    study = study_of("own\towner/model\ttrained\t\ttrained\n", [{"method": "pard"}])
    assert study.grid.trained == [("own", "draft"), ("own", "pard")]
    with_draft = study_of("own\towner/model\towner/draft\t\ttrained\n", [{"method": "pard"}])
    assert with_draft.grid.trained == [("own", "pard")]
    published = study_of("own\towner/model\t\t\tpard=owner/pard\n", [{"method": "pard"}])
    assert published.grid.trained == [] and published.grid.parts("own") == ["pard"]
    with pytest.raises(StudyError, match="pair 'own' has no draft, which pard needs"):
        study_of("own\towner/model\t\t\ttrained\n", [{"method": "pard"}])


def test_medusa_2_of_a_foreign_target(workplace: Path) -> None:
    study = study_of("own\towner/model\t\t\ttrained\ntwo\tmedusa2:own\t\t\t\n", [{"method": "medusa"}], pairs=["two"])
    assert study.grid.trained == [("two", "target"), ("two", "medusa"), ("own", "medusa")]
    assert study.paths.pair_files("two", study.root).target == str(study.root / "models/two/target")


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("own\towner/model\t\t\tmedusa=trained eagel=trained\n", ["own', heads: there is no training for a head "
        "'eagel'", "did you mean 'eagle'?"]),
        ("own\towner/model\t\t\teagle=trained\n", ["pair 'own' has no medusa, which medusa needs"]),
        ("own\towner/model\ttrained:gone\t\ttrained\n", ["own', draft: 'gone' is not a row whose draft is trained"]),
        ("own\towner/model\ttrained\t\ttrained\nb\towner/other\ttrained:own\t\ttrained\n", ["b', draft: 'own' has "
        "another target (owner/model)"]),
        ("own\towner/model\t\t\t\ntwo\tmedusa2:own\ttrained\t\t\n", ["two', target: 'own' is not a row whose Medusa "
        "heads are trained"]),
        ("own\towner/model\ttrained\t\ttrained\tawq\n", ["a target that its engine quantizes as awq cannot teach", "trained:<that row>"]),
        ("own\ttrained\ttrained\t\t\n", ["own', target: a target is not trained from nothing", "name the target"]),
        ("own\tmeta-llama/Llama-3.1-8B\ttrained\t\ttrained\t\trandom\t0.7\n", ["a trained model cannot have random weights: leave weights empty"]),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_is_named_by_row(workplace: Path, rows: str, expected: list[str]) -> None:
    with pytest.raises(StudyError) as caught:
        study_of(rows)
    for text in expected:
        assert text in str(caught.value)


def test_a_training_goes_on_from_a_head_of_its_target_alone(workplace: Path) -> None:
    head = Path("heads/eagle")
    model_folder("mine", vocabulary=1000)

    def study(methods: list[dict[str, Any]]) -> Study:
        training = {"eagle": {"initial_checkpoint": str(head)}}
        return study_of("own\tmodels/mine\ttrained\t\ttrained\n", methods, training=training)

    with pytest.raises(StudyError) as missing:
        study([{"method": "eagle"}])
    assert "training.eagle.initial_checkpoint: heads/eagle holds no config.json" in str(missing.value)
    assert study([{"method": "medusa"}]).grid.trained == [("own", "medusa")], "what is not trained needs no checkpoint"
    head.mkdir(parents=True)
    for file in CHECKPOINT:
        (head / file).write_text("{}")
    assert study([{"method": "eagle"}]).training.initial("eagle") == [head]
    note(head, "models/mine", initial=[head])
    about = json.loads((head / TRAINED_FOR).read_text())
    assert about["initial_checkpoint"] == hashlib.sha256(b"{}").hexdigest()
    assert study([{"method": "eagle"}]).training.initial("medusa") == []
    (head / TRAINED_FOR).write_text(json.dumps(about | {"identity": "0" * 64}))
    with pytest.raises(StudyError, match=r"initial_checkpoint: .* was trained for another target"):
        study([{"method": "eagle"}])


def test_texts_are_held_against_the_context_of_what_is_trained(workplace: Path) -> None:
    """A given target has its own."""
    model_folder("mine", vocabulary=1000)
    row, training = "own\tmodels/mine\ttrained\t\ttrained\n", {"text": {"sequence": 600}}
    with pytest.raises(StudyError, match=r"training\.text\.sequence: 600 is longer than training\.draft\.context 512"):
        study_of(row, [{"method": "draft_model"}], training=training)
    assert study_of(row, [{"method": "medusa"}], training=training).grid.trained == [("own", "medusa")]


def test_a_method_whose_head_nothing_trains(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from specrig.study import table_checks

    monkeypatch.setattr(
        table_checks, "STAGES", {name: stage for name, stage in table_checks.STAGES.items() if name != "eagle3"}
    )
    with pytest.raises(StudyError, match="there is no training for a head 'eagle3'"):
        study_of("own\towner/model\t\t\ttrained\n", [{"method": "eagle3"}])


def test_a_plan_says_what_training_for_a_target_takes(workplace: Path) -> None:
    model_folder("mine", vocabulary=1000)
    small = training(study_of("own\tmodels/mine\ttrained\t\ttrained\n"))
    assert (
        small.startswith("draft of own, draft_medusa of own, eagle of own, medusa of own (") and "MB of disk" in small
    )
    flop = float(small.split("(")[1].split(" PFLOP")[0])
    model_folder("deep", vocabulary=1000, layers=300)
    larger = training(study_of("own\tmodels/deep\ttrained\t\ttrained\n"))
    assert float(larger.split("(")[1].split(" PFLOP")[0]) > 1.1 * flop, "the target that teaches counts"
    assert "without own, whose target's size is not known" in training(
        study_of("own\towner/model\ttrained\t\ttrained\n")
    )


def test_a_chat_task_wants_a_template_before_anything_is_trained(workplace: Path) -> None:
    model_folder("plain")
    model_folder("chatty", template="{{ messages }}")
    (model_folder("new") / "chat_template.jinja").write_text("{{ messages }}")
    for rows, bare in (
        ("own\tmodels/plain\ttrained\t\t\n", True),
        ("own\tmodels/chatty\ttrained\t\t\n", False), ("own\tmodels/new\ttrained\t\t\n", False), ("own\towner/model\ttrained\t\t\n", False),
    ):  # fmt: skip
        for settings in ({"tasks": ["spec_bench_mt_bench_chat"]}, {"training": {"chat": True}}):
            if bare:
                with pytest.raises(StudyError, match=r"the target of pair 'own' has no chat template, which .* needs"):
                    study_of(rows, [{"method": "draft_model"}], max_new_tokens=16, **settings)
            else:
                assert study_of(rows, [{"method": "draft_model"}], max_new_tokens=16, **settings).grid.cells
    assert study_of("own\tmodels/plain\ttrained\t\t\n", [{"method": "draft_model"}], max_new_tokens=16).grid.cells
    model_folder("refusing", template="{{ raise_exception('no users') }}")
    with pytest.raises(
        StudyError, match=r"training\.chat.*pair 'own': the chat template of models/refusing refuses .*no users"
    ):
        study_of("own\tmodels/refusing\ttrained\t\t\n", [{"method": "draft_model"}], max_new_tokens=16)


def test_a_head_of_another_target_is_refused(workplace: Path) -> None:
    one, other = model_folder("one"), model_folder("other", vocabulary=5)
    head = Path("models/head")
    shape = AutoConfig.from_pretrained(one)
    initialise("eagle", head, shape, shape, seed=1)
    note(head, str(one))
    assert noted(str(head)) == {"target": "one", "identity": target_identity(str(one))}
    check_trained_for(PairFiles("p", str(one), heads={"eagle": head}))
    with pytest.raises(
        ModelError, match=r"the eagle in models/head was trained for another target \(one, .* than models/other"
    ):
        check_trained_for(PairFiles("p", str(other), heads={"eagle": head}))
    # While planning, and what was trained for a pair is in its records.
    assert study_of("own\tmodels/one\t\t\teagle=models/head\n", [{"method": "eagle"}], max_new_tokens=16).grid.cells
    with pytest.raises(StudyError, match=r"row 'own': .*models/head was trained for another target"):
        study_of("own\tmodels/other\t\t\teagle=models/head\n", [{"method": "eagle"}], max_new_tokens=16)
    found = capture(PairFiles("p", str(one), heads={"eagle": head}), device="cpu", threads=1)["models"]["eagle"]
    assert found["trained_for"]["identity"] == target_identity(str(one))


def test_a_target_is_the_same_wherever_and_however_it_lies(workplace: Path) -> None:
    one = model_folder("one")
    moved = Path(shutil.copytree(one, "models/moved"))
    assert target_identity(str(one)) == target_identity(str(moved))
    (moved / "config.json").write_text("{}")
    assert target_identity(str(one)) != target_identity(str(moved))
    Path("x.gguf").write_bytes(b"weights")
    for name in ("x-bfloat16", "x-float32"):
        Path(name).mkdir()
        (Path(name) / "model.safetensors").write_bytes(os.urandom(8))
        (Path(name) / "source.json").write_text(json.dumps({"sha256": target_identity("x.gguf")}))
    assert target_identity("x-bfloat16") == target_identity("x-float32") == target_identity("x.gguf")


def test_where_parts_of_a_row_come_from() -> None:
    row = Pair(pair="p", target="a/b", draft="trained:q", heads="medusa=trained eagle=c/d trained:q")
    assert [row.trained_in(part) for part in ("target", "draft", "medusa", "eagle", "eagle3")] == [
        None,
        "q",
        "p",
        None,
        "q",
    ]
    assert row.depends_on == ["q"]
    joint = Pair(pair="p", target="medusa2:q", heads="eagle=c/d")
    assert [joint.trained_in(part) for part in ("target", "draft", "medusa", "eagle")] == ["p", None, "p", None]
