"""Every stage of training on the device that it is told: the whole chain on a CPU, and on a GPU where there is one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from llamas import RECIPE as TAUGHT
from llamas import TINY
from specrig.training import stages, states
from specrig.training.fit import train_jointly
from specrig.training.recipe import Recipe
from specrig.training.target_text import read_text, write_text

HEAD = {"steps": 4, "batch": 4}
RECIPE = Recipe.model_validate(
    {
        **TAUGHT,
        "draft_training": HEAD,
        "text": {"sequences": 12, "heldout_sequences": 8, "sequence": 96, "batch": 5},
        "medusa": HEAD | {"joint": {"steps": 3}},
        "eagle": HEAD,
        "eagle3": HEAD,
        "dflash": HEAD,
        "dspark": HEAD,
        "mtp": HEAD,
        "p_eagle": HEAD,
        "hydra": HEAD,
        "pard": HEAD,
        "layer_skip": {"texts": 2, "tokens": 16, "candidates": 1, "most": 0.3},
    }
)
GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_every_stage_trains_where_it_is_told(tmp_path: Path, device: str) -> None:
    models = tmp_path / "pair"
    target = TINY / "target"
    write_text(RECIPE, models, target, device)
    for name in ("draft", *sorted({*stages.STAGES} - {"draft"})):
        stages.train(name, RECIPE, models, target, False, device)
    train_jointly(RECIPE, models, tmp_path / "joint", target, False, device)
    for folder in (*(models / name for name in stages.STAGES), tmp_path / "joint/target", tmp_path / "joint/medusa"):
        lines = [json.loads(line) for line in (folder / "training.jsonl").read_text().splitlines()]
        losses = [line["loss"] for line in lines if "loss" in line]
        assert [line["step"] for line in lines if "loss" in line] == list(range(1, len(losses) + 1)), folder
        if folder.name in ("rest", "layer_skip"):
            assert not losses, "nothing is learnt"
        else:
            assert len({*losses}) > 1, (folder, losses)  # its weights change; that a head learns is for its contract
        assert all(tensor.isfinite().all() for tensor in load_file(folder / "model.safetensors").values())
    assert read_text(models).train.tokens.shape == (12, 97)
    for folder in (models / "draft", tmp_path / "joint/target"):
        assert AutoModelForCausalLM.from_pretrained(folder).get_input_embeddings().weight.device.type == "cpu"


def test_states_computed_at_each_read_teach_like_those_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GPU computes them. A target that learns with its heads is taught by what it was, however they are read."""
    models, losses = tmp_path / "pair", dict[bool, list[list[float]]]()
    write_text(RECIPE, models, TINY / "target")
    for kept in (True, False):
        monkeypatch.setattr(states, "stores", lambda _, kept=kept: kept)
        for name in ("draft", "medusa", "eagle3"):
            stages.train(name, RECIPE, models, TINY / "target", False, "cpu")
        train_jointly(RECIPE, models, tmp_path / "joint", TINY / "target", False, "cpu")
        curves = [*(models / name for name in ("draft", "medusa", "eagle3")), tmp_path / "joint/medusa"]
        lines = [(folder / "training.jsonl").read_text().splitlines() for folder in curves]
        losses[kept] = [[found["loss"] for found in map(json.loads, each) if "loss" in found] for each in lines]
    for stored, live in zip(losses[True], losses[False], strict=True):
        assert live == pytest.approx(stored, rel=0.01)  # bfloat16


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_starts_from_the_same_weights_and_batches(tmp_path: Path) -> None:
    first = {}
    write_text(RECIPE, tmp_path, TINY / "target")
    for device in ("cpu", "cuda"):
        stages.train("draft", RECIPE, tmp_path, TINY / "target", False, device)
        first[device] = json.loads((tmp_path / "draft/training.jsonl").read_text().splitlines()[0])["loss"]
    assert first["cuda"] == pytest.approx(first["cpu"], rel=0.01)  # bfloat16
