"""Heads begin as the linear map that best predicts the target's next states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from llamas import random_llama
from specrig import heads
from specrig.heads.learner import Texts
from specrig.heads.teacher import Teacher
from specrig.training.recipe import Recipe

V, D = 23, 32


class Live:
    """States of some texts."""

    def __init__(self, teacher: Teacher, tokens: Tensor, aux_layers: tuple[int, ...]) -> None:
        self.all = teacher.states(tokens, aux_layers)

    def __getitem__(self, rows: Tensor) -> Tensor:
        return self.all[rows]


@pytest.fixture
def teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Teacher:
    monkeypatch.setattr("specrig.heads.regression.RIDGE", 1e-4)
    model = random_llama(V, layers=3)
    for (
        layer
    ) in model.model.layers:  # its states are those of the embedding, which a linear prediction can be right about
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    model.save_pretrained(tmp_path)
    return Teacher(LlamaForCausalLM.from_pretrained(tmp_path), (V,), torch.device("cpu"))


def made(name: str, teacher: Teacher) -> tuple[Any, Texts, Live]:
    """A head, texts of which all but the first three tokens are written, and their states."""
    learner: Any = heads.learner_class(name)(Recipe().head(name), teacher, teacher, None, 1)
    tokens = (torch.arange(40).unsqueeze(1) + 3 * torch.arange(33)) % V  # a token says the next one
    texts = Texts(tokens, torch.arange(33).expand(40, -1) >= 3)
    return learner, texts, Live(teacher, tokens, learner.aux_layers)


def explained(found: Tensor, goal: Tensor) -> float:
    """The share of the goal's variance."""
    return 1 - float((found.detach() - goal).pow(2).mean() / (goal - goal.mean(0)).pow(2).mean())


@pytest.mark.parametrize("name", ["eagle", "eagle3", "p_eagle", "mtp"])
def test_a_layer_begins_as_a_linear_prediction_of_the_next_state(name: str, teacher: Teacher) -> None:
    learner, texts, states = made(name, teacher)
    learner.prepare(texts, states)
    # Entry t reads state t and token t + 1; the first one that drafts a written token is entry 1.
    read = learner.inputs(texts.tokens[:, 2:-1], states.all[:, 1:-2]).flatten(0, 1)
    goal = states.all[:, 2:-1, -D:].flatten(0, 1) / learner.goal_scale()
    assert explained(learner.fc(read), goal) > 0.99
    again, _, _ = made(name, teacher)
    again.prepare(texts, states)
    assert torch.equal(again.fc.weight, learner.fc.weight), "a training that was cut begins from the same weights"
    few, _, _ = made(name, teacher)
    before = few.fc.weight.clone()
    few.prepare(Texts(texts.tokens[:1], texts.written[:1]), states)
    assert torch.equal(few.fc.weight, before), "a few entries say nothing about so many columns"


@pytest.mark.parametrize("name", ["medusa", "hydra"])
def test_heads_of_one_depth_each_begin_likewise(name: str, teacher: Teacher) -> None:
    learner, texts, states = made(name, teacher)
    learner.prepare(texts, states)
    for head in range(2):
        # From position 2, whose next token is written, to the last one that has token t + 2 + head.
        at = torch.cartesian_prod(torch.arange(40), torch.arange(2, 33 - head - 2))
        goal = states.all[at[:, 0], at[:, 1] + head + 1]
        assert explained(learner.logits(head, states.all, texts.tokens, at), teacher.logits(goal)) > 0.99
