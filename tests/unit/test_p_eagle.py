"""The P-EAGLE head: its masks see what they may, and a depth weighs what it is worth."""

from __future__ import annotations

import itertools
import json
from math import exp
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaForCausalLM

from llamas import saved_llama
from specrig.decoding.drafters.p_eagle import Tree, merged
from specrig.heads.anchors import ALPHA, d_pace
from specrig.heads.base import TrainingError
from specrig.heads.eagle3 import Eagle3
from specrig.heads.eagle3 import module as eagle3
from specrig.heads.eagle3.training import Eagle3Learner
from specrig.heads.learner import Texts
from specrig.heads.p_eagle import PEagle
from specrig.heads.p_eagle.module import head_config, load, random_tensors, save
from specrig.heads.p_eagle.training import PEagleLearner
from specrig.heads.teacher import Teacher
from specrig.runtime.transformers_model import cached_model
from specrig.runtime.types import DecodingError

V, D = 23, 32
EVERY = [0, 3, 4, 11, 20, 22]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A target."""
    saved_llama(tmp_path, V, layers=3)
    return tmp_path


def test_the_first_token_is_eagle3s_and_the_others_do_not_depend_on_k(folder: Path) -> None:
    target = cached_model(LlamaForCausalLM.from_pretrained(folder))
    tensors, config = random_tensors(head_config(target.config), 3, 0.3), head_config(target.config)
    save(folder / "head", config, tensors)
    eagle3.save(folder / "eagle3", eagle3.head_config(target.config), tensors)
    states = torch.randn(1, 5, 3 * D, generator=torch.Generator().manual_seed(1))
    row, drafts = [5, 9, 2, 11, 7, 3], []
    for k in (1, 3, 6):
        target.start(1, 64)
        head = load(folder / "head", target)
        head.begin([row], head.fuse(states))
        drafts.append(head.draft([row], [False], k)[0])
    for shorter, longer in itertools.pairwise(drafts):
        torch.testing.assert_close(shorter, longer[: len(shorter)], atol=1e-5, rtol=1e-5)
    plain = eagle3.load(folder / "eagle3", target)
    plain.begin([row], plain.fuse(states))
    torch.testing.assert_close(drafts[0], plain.advance([row])[0], atol=1e-5, rtol=1e-5)


def test_passes_of_one_token_are_eagle3s_and_alternatives_do_not_see_each_other(folder: Path) -> None:
    target = cached_model(LlamaForCausalLM.from_pretrained(folder))
    config = head_config(target.config, markov_rank=4)
    save(folder / "head", config, random_tensors(config, 3, 0.3))
    states = torch.randn(1, 5, 3 * D, generator=torch.Generator().manual_seed(1))
    row, firsts = [5, 9, 2, 11, 7, 3], torch.tensor([[4, 8]])

    def begun(load: Any) -> tuple[Any, Tensor, Tensor]:
        target.start(1, 64)
        head = load(folder / "head", target)  # EAGLE-3's too: it leaves out what masks need
        head.begin([row], head.fuse(states))
        return head, *head.advance([row])

    head, _, feature = begun(load)
    both = head.behind(firsts, feature.unsqueeze(1).expand(-1, 2, -1), 3)
    for branch, first in enumerate(firsts[0]):
        head, own, feature = begun(load)
        alone = head.behind(first.view(1, 1), feature.unsqueeze(1), 3)
        torch.testing.assert_close(both[:, branch], alone[:, 0], atol=1e-5, rtol=1e-5)
        plain, expected, feature = begun(eagle3.load)
        torch.testing.assert_close(own, expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(alone[:, 0, 0], plain.step(first.view(1), feature)[0], atol=1e-5, rtol=1e-5)


def test_nodes_of_two_passes_are_one_tree_best_first() -> None:
    first: Tree = [7, 5, 2], [-1, -1, -1], [-0.5, -1.0, -4.0]
    below: list[Tree] = [([1, 3], [-1, 0], [-0.25, -1.0]), ([6], [-1], [0.0])]
    tokens, parents, values = merged(first, below, [0.0] * 5)
    # 5 and 6 are worth the same: the parent comes first.
    assert (tokens, parents, values) == ([7, 1, 5, 6, 3], [-1, 0, -1, 2, 1], [-0.5, -0.75, -1.0, -1.0, -1.5])
    assert merged(first, below, [exp(-1.0)] * 3)[0] == [7, 1, 5], "no more than there may be"
    assert merged(first, below, [exp(-1.0), exp(-0.7), exp(-0.7)])[0] == [7], "the second is not worth it"


def test_steps_on_its_own_output_are_learnt_as_eagle3s(folder: Path) -> None:
    teacher = Teacher(LlamaForCausalLM.from_pretrained(folder), (0,), torch.device("cpu"))
    tokens = torch.randint(V, (2, 17), generator=torch.Generator().manual_seed(2))
    texts = Texts(tokens, torch.ones_like(tokens, dtype=torch.bool))

    def loss(make: Any, settings: Any) -> Tensor:
        learner = make(settings, teacher, teacher, None, 3)
        states = teacher.states(tokens, learner.aux_layers)
        found: Tensor = learner.loss(texts, states, states[..., -D:])
        return found

    added = loss(PEagleLearner, PEagle(k=3, rollout=2)) - loss(PEagleLearner, PEagle(k=3))
    first, both = (loss(Eagle3Learner, Eagle3(rollout=steps, step_decay=0.5)) for steps in (1, 2))
    torch.testing.assert_close(added, 3 * both - 2 * first)  # both = (2 first + second) / 3
    with pytest.raises(ValidationError, match="rollout is for heads of one layer"):
        PEagle(layers=2, rollout=2)


def test_a_published_head_is_read_and_one_without_a_mask_token_refused(folder: Path) -> None:
    target = cached_model(LlamaForCausalLM.from_pretrained(folder))
    config = head_config(target.config)
    tensors = random_tensors(config, 3, 0.3)
    save(folder / "head", config, tensors)
    first = load(folder / "head", target).mask_hidden
    save_file(
        load_file(folder / "head/model.safetensors") | {"mask_hidden": tensors["mask_hidden"].view(1, 1, -1)},
        folder / "head/model.safetensors",
    )
    assert torch.equal(load(folder / "head", target).mask_hidden, first)
    for wrong in (None, V):
        config.ptd_token_id = wrong
        save(folder / "head", config, tensors)
        with pytest.raises(DecodingError, match=f"ptd_token_id is {wrong}, not one of the 23 tokens"):
            load(folder / "head", target)


def test_a_bias_of_the_token_before_stands_in_the_checkpoint_and_follows_the_order_of_its_tokens(folder: Path) -> None:
    target = cached_model(LlamaForCausalLM.from_pretrained(folder))
    config, listed = head_config(target.config, len(EVERY), markov_rank=4), [20, 3, 0, 22, 4, 11]
    tensors = random_tensors(config, 3, 0.3) | {"d2t": torch.tensor(listed) - torch.arange(len(listed))}
    save(folder / "head", config, tensors)
    assert json.loads((folder / "head/config.json").read_text())["markov_rank"] == 4
    bias = load(folder / "head", target).markov
    assert bias is not None
    before = torch.tensor([5, 20])
    by_hand = tensors["markov.embedding.weight"][before] @ tensors["markov.lm_head.weight"].T
    torch.testing.assert_close(bias(before), by_hand[:, [listed.index(token) for token in EVERY]])


@pytest.mark.parametrize("more", [{"markov_rank": 4}, {"layers": 3}])
def test_a_head_goes_on_with_parts_that_it_lacks_and_that_add_nothing_yet(folder: Path, more: dict[str, int]) -> None:
    teacher = Teacher(LlamaForCausalLM.from_pretrained(folder), (0,), torch.device("cpu"))
    tokens = torch.randint(V, (2, 17), generator=torch.Generator().manual_seed(2))
    texts = Texts(tokens, torch.ones_like(tokens, dtype=torch.bool))
    without, learner = (PEagleLearner(PEagle(k=3, **keys), teacher, teacher, None, 3) for keys in ({}, more))
    learner.restore({name: tensor.detach().clone() for name, tensor in without.tensors().items()})
    states = teacher.states(tokens, learner.aux_layers)
    losses = [each.loss(texts, states, states[..., -D:]) for each in (without, learner)]
    torch.testing.assert_close(losses[1], losses[0])
    losses[1].backward()
    # What keeps a part silent learns from the first step on: matrices that begin as zero.
    silent = [layer.down.weight for layer in learner.module.layers[1:]]
    if "markov_rank" in more:
        assert learner.markov is not None
        silent.append(learner.markov.lm_head)
    assert silent and all(each.grad is not None and each.grad.abs().sum() > 0 for each in silent)


def test_a_checkpoint_with_a_part_of_a_layer_is_refused(folder: Path) -> None:
    teacher = Teacher(LlamaForCausalLM.from_pretrained(folder), (0,), torch.device("cpu"))
    learner = PEagleLearner(PEagle(layers=2), teacher, teacher, None, 3)
    tensors = {name: tensor.detach().clone() for name, tensor in learner.tensors().items()}
    del tensors["layers.1.mlp.down_proj.weight"]
    with pytest.raises(TrainingError, match=r"layers.1.mlp.down_proj.weight is missing"):
        learner.restore(tensors)


def naive(right: list[float]) -> list[float]:
    """D-PACE's weights as the paper writes them."""
    reached = [
        torch.tensor([(1 - ALPHA) * q + ALPHA for q in right[: depth + 1]]).prod().item() for depth in range(len(right))
    ]
    return [sum(reached[depth:]) for depth in range(len(right))]


def test_d_pace_weighs_a_position_by_what_it_adds() -> None:
    right = torch.tensor([[0.9, 0.0], [0.2, 1.0], [0.7, 0.5]])
    for row in (0, 1):
        assert d_pace(right)[:, row].tolist() == pytest.approx(naive(right[:, row].tolist()))


def test_drop_out_leaves_d_paces_weights_as_they_are_on_average() -> None:
    """Drafts that end early are made up for by those that do not."""
    torch.manual_seed(0)
    shares, right = torch.tensor([1.0, 0.7, 0.49, 0.343]), torch.tensor([0.9, 0.2, 0.7, 0.5])
    drawn = torch.rand(1, 40_000)
    kept = drawn < shares.unsqueeze(1)  # nested, as conditional drop-out keeps anchors
    weights = d_pace(right.unsqueeze(1).expand(4, 40_000), kept / shares.unsqueeze(1))
    # A depth's sum over those that it is learnt from is the whole text's.
    found = [(weights[depth] * kept[depth]).mean().item() for depth in range(4)]
    assert found == pytest.approx(naive(right.tolist()), rel=0.02)
