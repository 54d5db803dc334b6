"""What rest and layer_skip draft with, made from a target and the text that it wrote."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from specrig.decoding.drafters import registry
from specrig.decoding.loop import generate
from specrig.heads.base import TrainingError
from specrig.heads.layer_skip import LayerSkip
from specrig.heads.layer_skip import module as layer_skip
from specrig.heads.layer_skip.training import Search, excerpts, predicted
from specrig.heads.learner import Texts
from specrig.heads.rest import module as rest
from specrig.heads.rest.module import datastore
from specrig.heads.rest.training import DEPTH, answers, expected, written
from specrig.runtime.model import CachedModel
from specrig.runtime.transformers_model import cached_model
from specrig.training.fit import fit
from specrig.training.recipe import Recipe
from specrig.training.stages import TEXT
from specrig.training.target_text import read_text


@pytest.fixture
def pair(taught: tuple[Recipe, Path]) -> tuple[Recipe, Path]:
    settings = {
        "layer_skip": LayerSkip(texts=4, tokens=32, most=0.7, candidates=2),
    }
    return taught[0].model_copy(update=settings), taught[1]


def made(name: str, recipe: Recipe, folder: Path, out: Path) -> Path:
    """`out` with the pair's text, and what is made of it."""
    out.mkdir()
    (out / TEXT).symlink_to(folder / TEXT)
    fit(name, recipe, out, folder / "target", progress=False)
    return out


def curve(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "training.jsonl").read_text().splitlines()]


def loaded(folder: Path) -> CachedModel:
    return cached_model(AutoModelForCausalLM.from_pretrained(folder / "target"))


def decoded(method: str, target: CachedModel, out: Path, prompts: list[list[int]], k: int) -> list[Any]:
    resources: Any = SimpleNamespace(target=target, head=lambda name: out / name)
    drafter = registry()[method](registry()[method].Options(), resources)
    return generate(target, drafter, prompts, k=k, max_new_tokens=24, temperature=0)


def test_a_datastore_holds_what_the_target_wrote_and_says_what_to_expect(
    pair: tuple[Recipe, Path], tmp_path: Path
) -> None:
    recipe, folder = pair
    out = made("rest", recipe, folder, tmp_path / "pair")
    target, text = loaded(folder), read_text(out)
    store = rest.load(out / "rest", target)
    whole = written(text.train)
    assert len(store.tokens) == sum(len(one) + 1 for one in whole)
    for one in whole:
        assert store.find(one[:12]).first < store.find(one[:12]).last
    # What it expects is what decoding then gives, to the round.
    prompts = [one[:-20] for one in written(text.heldout) if len(one) > 22][:4]
    found = decoded("rest", target, out, prompts, DEPTH)
    texts = [prompt + one.tokens for prompt, one in zip(prompts, found, strict=True)]
    length = sum(len(one.tokens) - 1 for one in found) / sum(len(one.rounds) for one in found)
    assert expected(store, zip(texts, map(len, prompts), strict=True)) == pytest.approx(length)
    (row,) = curve(out / "rest")
    assert row["tokens"] == len(store.tokens) and row["tau_sim"] >= 1


def test_what_fills_a_row_up_is_no_text() -> None:
    tokens = torch.tensor([[7, 7, 1, 2, 0, 0], [7, 1, 2, 3, 4, 5], [7, 7, 7, 7, 7, 7]])
    own = torch.tensor([[0, 0, 1, 1, 1, 0], [0, 1, 1, 1, 1, 1], [0] * 6]).bool()
    assert written(Texts(tokens, own)) == [[7, 7, 1, 2, 0], [7, 1, 2, 3, 4, 5]]
    assert list(answers(Texts(tokens, own))) == [([7, 7, 1, 2, 0], 2), ([7, 1, 2, 3, 4, 5], 1)]


def test_what_a_user_says_between_two_answers_is_no_answer() -> None:
    texts = Texts(torch.tensor([[7, 1, 2, 8, 9, 3, 0]]), torch.tensor([[0, 1, 1, 0, 0, 1, 1]]).bool())
    assert written(texts) == [[7, 1, 2, 8, 9, 3, 0]]
    assert list(answers(texts)) == [([7, 1, 2], 1), ([7, 1, 2, 8, 9, 3, 0], 5)]
    # One round after the first token of each answer; in the datastore nothing leads to it.
    assert expected(datastore([[4, 4]], 10), answers(texts)) == 1.0


def test_the_set_that_is_found_is_the_best_on_its_way(pair: tuple[Recipe, Path], tmp_path: Path) -> None:
    recipe, folder = pair
    one = made("layer_skip", recipe, folder, tmp_path / "one") / "layer_skip"
    target = loaded(folder)
    skipped = layer_skip.load(one, target)
    rows = curve(one)
    assert [len(row["skipped"]) for row in rows] == [1, 2, 3], "0.7 of four layers"
    best = max(rows, key=lambda row: row["predicted_speedup"])
    assert best["skipped"] == skipped
    table = load_file(one / "model.safetensors")["agreement"]
    assert table.shape == (3, 4) and (table >= 0).sum(1).tolist() == [4, 2, 2], "all, then two candidates"


def test_excerpts_hold_what_the_target_wrote() -> None:
    tokens = torch.arange(5 * 12).view(5, 12)
    own = torch.zeros(5, 12, dtype=torch.bool)
    own[0, 2:], own[2, 7:11], own[4, 11:] = True, True, True
    found = excerpts(Texts(tokens, own), 2, 4)
    assert found.tokens.tolist() == [[0, 1, 2, 3], [29, 30, 31, 32]]
    assert found.written.tolist() == [[False, False, True, True], [False, False, True, True]]
    assert excerpts(Texts(tokens, own), 9, 4).tokens[2].tolist() == [56, 57, 58, 59]
    assert excerpts(Texts(tokens, own), 1, 99).tokens.tolist() == [list(range(12))]
    with pytest.raises(TrainingError, match="wrote nothing"):
        excerpts(Texts(tokens, torch.zeros_like(own)), 2, 4)


def test_layers_that_do_nothing_are_left_out_first() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=6, num_attention_heads=2, num_key_value_heads=2,
        initializer_range=0.3,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    idle = {1, 2, 4}
    with torch.no_grad():
        for layer in idle:
            model.model.layers[layer].self_attn.o_proj.weight.zero_()
            model.model.layers[layer].mlp.down_proj.weight.zero_()
    texts = Texts(torch.randint(40, (3, 20)), torch.ones(3, 20, dtype=torch.bool))
    steps = Search(cached_model(model), texts).run(4, candidates=3)
    assert {next(iter(step)) for step in steps[:3]} == idle
    assert [next(iter(step.values())) for step in steps[:3]] == [1.0] * 3 and next(iter(steps[3].values())) < 1
    assert [len(step) for step in steps] == [6, 3, 3, 3]


def test_a_prediction_by_hand() -> None:
    assert predicted(1.0, 0.25, 4) == pytest.approx(5 / 2)
    assert predicted(0.5, 0.5, 2) == pytest.approx(1.75 / 2)
