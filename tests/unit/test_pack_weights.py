"""Weights to give away: half the size, the same head, with a card of facts that the training's files hold."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from llamas import random_llama
from specrig.engines.head_copies import understood
from specrig.heads.base import TrainingError
from specrig.heads.checkpoint import read
from specrig.models.gate import check_vocabulary
from specrig.provenance.environment import TRAINED_FOR
from specrig.runtime.eight_bits import packed
from specrig.runtime.whole import is_rounded, load_whole
from specrig.study.learning_curve import FILE, LearningPoint, read_learning_curve, write_learning_curve
from specrig.study.load import load_study
from specrig.study.problems import Positions, Problems
from specrig.tasks.trained_on import trained_on

REPOSITORY = Path(__file__).parents[2]
STUDY = REPOSITORY / "configs/test.yaml"
pack_weights = runpy.run_path(str(REPOSITORY / "scripts/pack_weights.py"))["pack_weights"]


def test_a_card_says_what_the_weights_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = load_study(STUDY)
    monkeypatch.setattr(type(study), "root", tmp_path / "results")
    models = study.root / "models/tiny"
    with pytest.raises(TrainingError, match=r"specrig stage train .* --pair tiny --model medusa"):
        pack_weights(study, "tiny", "medusa", tmp_path / "weights", "Apache-2.0")
    (models / "medusa").mkdir(parents=True)
    tensors = {"lm_heads.0.weight": torch.randn(6, 4), "token_map": torch.arange(6)}
    save_file(tensors, models / "medusa/model.safetensors")
    save_file(
        {
            "train.tokens": torch.ones(2, 5, dtype=torch.long),
            "train.written": torch.tensor([[0, 0, 1, 1, 0], [0, 1, 1, 1, 1]]).bool(),
            "train.requests": torch.tensor([7, 2**64 - 1], dtype=torch.uint64),
        },
        models / "text.safetensors",
    )
    for name, content in (
        ("config.json", {"hidden_size": 4}),
        (TRAINED_FOR, {"target": "a target", "identity": "ab12", "initial_checkpoint": "cd34"}),
    ):
        (models / "medusa" / name).write_text(json.dumps(content))
    # The clock of a training that was cut goes on.
    curve = [
        {"step": 1, "tokens": 10, "seconds": 3600.0, "loss": 2.0},
        {"step": 2, "tokens": 2000, "seconds": 5400.0, "loss": 1.0},
        {"step": 2, "seconds": 5400.0, "acceptance": [0.5, 0.25], "tau_sim": 1.6},
    ]
    (models / "medusa/training.jsonl").write_text("".join(json.dumps(line) + "\n" for line in curve))
    (study.root / "tables").mkdir()
    header = "pair,method,k,task,temperature,batch_size,prompts,acceptance_length,speedup,speedup_low,speedup_high"
    rows = [f"{pair},medusa,4,code,0,1,8,2.5,1.456,1.3,1.6" for pair in ("tiny", "other")]
    (study.root / "tables/cells.csv").write_text("\n".join([header, *rows, ""]))
    folder = pack_weights(study, "tiny", "medusa", tmp_path / "weights", "Apache-2.0")
    found = load_file(folder / "model.safetensors")
    assert found["lm_heads.0.weight"].dtype == torch.bfloat16 and torch.equal(found["token_map"], tensors["token_map"])
    assert sorted(file.name for file in folder.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "requests.txt",
        TRAINED_FOR,
    ]
    assert trained_on(folder) == {"0000000000000007", "ffffffffffffffff"}
    card = (folder / "README.md").read_text()
    for fact in ("Medusa head", "ab12", "2 texts of 9 tokens, of which the target wrote 6", "2 steps, 2,000 tokens "
    "seen, 1.5 hours, from a head with the SHA-256 cd34",
                 "0.50, 0.25", "license: apache-2.0", "medusa="):  # fmt: skip
        assert fact in card, fact
    assert str(tmp_path / "results") not in card
    assert card.count("| medusa |") == 1 and "| 2.50 | 1.46 [1.30, 1.60] |" in card
    assert "0.0 MB in bfloat16" in card
    points = [
        LearningPoint(
            texts=9, tokens=80, texts_seen=16, method="medusa", k=4, acceptance_length=1.5, prompts=2, task="code"
        )
    ]
    write_learning_curve(folder, points)
    monkeypatch.setattr(type(study.training), "initial", lambda *_: [folder])
    pack_weights(study, "tiny", "medusa", tmp_path / "weights", "Apache-2.0")
    assert read_learning_curve(folder, Problems(Positions([]))) == points, "also into the folder that it began from"
    assert trained_on(folder) == {"0000000000000007", "ffffffffffffffff"}
    (folder / FILE).unlink()
    small = pack_weights(study, "tiny", "medusa", tmp_path / "small", "Apache-2.0", eight_bits=True)
    assert "in 8 bits" in (small / "README.md").read_text() and is_rounded(small) and not is_rounded(folder)


def test_matrices_of_8_bits_are_read_as_they_were_and_other_engines_get_them_whole(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    tensors = {
        "lm_head.weight": torch.randn(12, 8, generator=generator) * torch.logspace(-3, 3, 12).unsqueeze(1),
        "mask_hidden": torch.tensor([[100.0, 0.01]]),
        "norm.weight": torch.tensor([1.0, 0.5]),
        "d2t": torch.arange(12),
    }
    save_file(packed(tensors, eight_bits=True), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    assert load_file(tmp_path / "model.safetensors")["lm_head.weight"].dtype == torch.int8
    found = read(tmp_path)
    assert found.keys() == tensors.keys() and torch.equal(found["d2t"], tensors["d2t"])
    step = tensors["lm_head.weight"].abs().amax(1, keepdim=True) / 127
    assert ((found["lm_head.weight"] - tensors["lm_head.weight"]).abs() <= 0.501 * step).all()
    # A row of its own would round what is small beside what is large.
    torch.testing.assert_close(found["mask_hidden"].float(), tensors["mask_hidden"], rtol=0.01, atol=0)
    copied = understood("vllm", "eagle3", tmp_path)
    whole = load_file(copied / "model.safetensors")  # without what masks need, which EAGLE-3 has not
    assert whole.keys() == tensors.keys() - {"mask_hidden"} and torch.equal(
        whole["lm_head.weight"], found["lm_head.weight"]
    )
    save_file({"norm.weight": tensors["norm.weight"]}, tmp_path / "model.safetensors")
    assert understood("vllm", "eagle3", tmp_path) == tmp_path, "nothing is copied that every engine knows"


def test_a_draft_of_8_bits_loads_like_any_other_and_has_its_targets_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = load_study(STUDY)
    monkeypatch.setattr(type(study), "root", tmp_path / "results")
    draft = study.root / "models/tiny/draft"
    draft.mkdir(parents=True)
    model = random_llama(40, layers=1)
    model.config.specrig = {"drafted": [3, 9]}
    model.save_pretrained(draft)
    (draft / "tokenizer.json").write_text("{}")
    (draft / TRAINED_FOR).write_text(json.dumps({"target": "a target", "identity": "ab12"}))
    (draft / "training.jsonl").write_text(json.dumps({"step": 1, "tokens": 10, "seconds": 1.0, "loss": 2.0}) + "\n")
    names = {"train.tokens": torch.int64, "train.written": torch.bool}
    text = {name: torch.ones(2, 5, dtype=dtype) for name, dtype in names.items()}
    save_file(text | {"train.requests": torch.tensor([7], dtype=torch.uint64)}, draft.parent / "text.safetensors")
    folder = pack_weights(study, "tiny", "draft", tmp_path / "weights", "Apache-2.0", eight_bits=True)
    assert not list(folder.glob("tokenizer*")) and "in 8 bits" in (folder / "README.md").read_text()
    check_vocabulary("no/target", str(folder))
    assert (folder / "model.safetensors").stat().st_size < 0.4 * (draft / "model.safetensors").stat().st_size
    tokens = torch.tensor([[3, 17, 4, 9]])
    expected = load_whole(str(draft))(tokens).logits
    for found in (load_whole(str(folder)), load_whole(str(understood("vllm", "draft_model", folder)))):
        assert (found(tokens).logits - expected).abs().max() < 0.02 * expected.abs().max()
        assert found.config.specrig == {"drafted": [3, 9], "tokenizer": "target"}
