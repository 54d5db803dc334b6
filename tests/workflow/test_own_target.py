"""A walk as a new user: a target of one's own, and by rows alone a draft, and heads for that draft, are trained and measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from llamas import PROMPTS, TINY
from runs import run
from specrig import cli
from specrig.measurement.records import study_records
from specrig.provenance.trained_for import target_identity

TARGET = TINY / "target"
STUDY = {
    "study": "own", "pairs": ["mine"], "tasks": ["creative_writing"], "prompts": 2, "max_new_tokens": 16, "device": "cpu", "threads": 1,
    "audit_samples": 1000,
    "methods": [
        {"method": "draft_model", "k": 2}, {"method": "medusa_draft", "k": 2},
    ],
    "training": {
        "prompts": str(PROMPTS),
        "draft": {"layers": 1, "hidden": 32, "heads": 1, "intermediate": 96},
        "text": {"sequences": 16, "heldout_sequences": 8, "sequence": 96},
        "draft_training": {"steps": 8, "batch": 4},
        "medusa": {"steps": 4, "batch": 4},
    },
}  # fmt: skip

pytestmark = pytest.mark.workflow


def write(target: str, **changes: object) -> str:
    Path("configs/pairs.tsv").write_text(f"pair\ttarget\tdraft\theads\nmine\t{target}\ttrained\ttrained\n")
    Path("configs/own.yaml").write_text(yaml.safe_dump(STUDY | changes))
    return "configs/own.yaml"


def test_a_model_of_ones_own_gets_a_draft_and_its_heads_by_rows_alone(workplace: Path) -> None:
    config = write(str(TARGET))
    result = run(Path(), "results/own/measured/native/mine/together", config=config)
    assert result.returncode == 0, result.stdout
    models = Path("results/own/models/mine")
    assert not (models / "target").exists(), "the target is the user's"
    for model in ("draft", "draft_medusa"):
        about = json.loads((models / model / "trained_for.json").read_text())
        assert about["identity"] == target_identity(str(TARGET))
    found = list(study_records(Path("results/own/records")))
    assert sorted(each.cell.method for each in found) == 2 * ["draft_model"] + 2 * ["medusa_draft"]
    for each in found:
        rounds = each.run.rounds
        assert 0 < len(each.run.tokens) <= 16 and 0 <= sum(rounds.accepted) <= sum(rounds.drafted)
    environment = json.loads(Path("results/own/records/native/mine/medusa_draft/environment.json").read_text())
    assert environment["models"]["draft_medusa"]["trained_for"]["identity"] == target_identity(str(TARGET))


@pytest.mark.parametrize("kind", ["gpt2", "qwen2"])
def test_other_architectures_are_planned(workplace: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.models.gpt2 import GPT2Config

    sizes = {
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "vocab_size": 300,
        "max_position_embeddings": 256,
    }
    if kind == "gpt2":
        shape = GPT2Config(
            n_layer=2, n_embd=32, n_head=2, vocab_size=300, n_positions=256, bos_token_id=None, eos_token_id=None
        )
    else:
        shape = AutoConfig.for_model(kind, **sizes, num_key_value_heads=1, intermediate_size=64)
    folder = Path(f"models/{kind}")
    AutoModelForCausalLM.from_config(shape).save_pretrained(folder)
    tokenizer(folder)
    assert cli.main(["plan", write(str(folder), tasks=["spec_bench_mt_bench"])]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "trains: draft of mine, draft_medusa of mine" in output


def tokenizer(folder: Path) -> None:
    """One of bytes, as planning and training read it."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE({piece: n for n, piece in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token="!").save_pretrained(folder)
