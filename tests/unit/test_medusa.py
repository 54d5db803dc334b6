"""Medusa: trees by hand, which head answers for which token, the checkpoint that vLLM reads, training, typical
acceptance.
"""

from __future__ import annotations

import copy
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PhiConfig

from llamas import random_llama
from specrig.decoding.drafters import registry
from specrig.decoding.drafters.medusa import Medusa
from specrig.decoding.loop import generate
from specrig.decoding.sampling import Sampler
from specrig.decoding.static_tree import Layout, regular_tree, sparse_tree
from specrig.decoding.types import Context, Drafter, Generation
from specrig.heads.base import TrainingError
from specrig.heads.learner import Texts
from specrig.heads.medusa import JointTraining
from specrig.heads.medusa import Medusa as MedusaRecipe
from specrig.heads.medusa import module as checkpoint
from specrig.heads.medusa.joint import Joint
from specrig.heads.medusa.training import MedusaLearner
from specrig.heads.teacher import Teacher, outer
from specrig.runtime.model import CachedModel
from specrig.runtime.transformers_model import cached_model
from specrig.runtime.types import DecodingError
from specrig.training.fit import fit, train_jointly
from specrig.training.optimizer import Optimizer
from specrig.training.recipe import Optimisation, Recipe
from specrig.training.run import Run
from specrig.training.stages import TEXT

PERIOD = 29
SETTINGS = MedusaRecipe(
    heads=3,
    own_lm_heads=False,
    steps=20,
    batch=4,
    joint=JointTraining(steps=4),
)


def cycles(rows: int, width: int) -> torch.Tensor:
    """Token 3x + 1 follows token x, modulo PERIOD, from different starts (one token stays where it is)."""
    texts = [torch.randint(PERIOD, (rows,), generator=torch.Generator().manual_seed(rows))]
    for _ in range(width - 1):
        texts.append((3 * texts[-1] + 1) % PERIOD)
    return torch.stack(texts, 1)


class TrainedPair:
    """Resources with trained heads: the draft is the target once more."""

    def __init__(self, folder: Path) -> None:
        self.target, self._draft = (cached_model(AutoModelForCausalLM.from_pretrained(folder)) for _ in range(2))
        self.heads = folder / "heads"

    def model(self, name: str) -> CachedModel:
        return self._draft

    def head(self, name: str) -> Path:
        return self.heads

    def drafter(self, method: str, **options: Any) -> Drafter:
        return registry()[method](registry()[method].Options.model_validate(options), self)


def everything(texts: torch.Tensor) -> Texts:
    """Texts of which every token counts as written."""
    return Texts(texts, torch.ones_like(texts, dtype=torch.bool))


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainedPair, list[list[float]]]:
    """A tiny model that knows `cycles`, with four trained heads and their measured accuracies."""
    folder = tmp_path_factory.mktemp("counter")
    model = random_llama(PERIOD, layers=1, hidden=64, intermediate=96, context=128)
    settings = MedusaRecipe(heads=4, own_lm_heads=True)
    schedule = Optimisation(steps=70, batch=8, lr=0.01)
    optimizer = Optimizer(model, schedule, outer(model))
    for step in range(schedule.steps):
        texts = cycles(8 + step, 33)
        model(texts, labels=texts).loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    teacher = Teacher(AutoModelForCausalLM.from_pretrained(folder), (PERIOD,), torch.device("cpu"))
    heads = MedusaLearner(settings, teacher, teacher, None, 3)
    optimizer = Optimizer(heads, schedule)
    for step in range(schedule.steps):
        texts = cycles(8 + step, 33)
        hidden = teacher.states(texts)
        heads.loss(everything(texts), hidden, hidden).backward()
        optimizer.step()
    texts = cycles(7, 33)
    heads.measured(everything(texts), teacher.states(texts))
    accuracies = [heads.first, *heads.ranks]
    heads.save(folder / "heads")
    return TrainedPair(folder), accuracies


def acceptance_length(generation: Generation) -> float:
    rounds = [entry for entry in generation.rounds if not entry.cut]
    return sum(entry.emitted for entry in rounds) / len(rounds)


def on_the_cycle(generation: Generation) -> float:
    """Share of tokens that follow the one before as in `cycles`."""
    return sum(after == (3 * before + 1) % PERIOD for before, after in pairwise(generation.tokens)) / len(
        generation.tokens
    )


def test_a_sparse_tree_by_hand() -> None:
    """Promises: (0) .6, (0,0) .36, (1) .3, (0,0,0) .18, (1,0) .18, (0,1) .06, (2) .05, (1,0,0) .09 …"""
    accuracy = [[0.6, 0.3, 0.05], [0.6, 0.1], [0.5, 0.2]]
    assert sparse_tree(accuracy, 3, 3) == [(0,), (1,), (0, 0)]
    assert sparse_tree(accuracy, 6, 3) == [(0,), (1,), (0, 0), (1, 0), (0, 0, 0), (1, 0, 0)]
    assert sparse_tree(accuracy, 4, 1) == [(0,), (1,), (2,)]  # k bounds the depth; three choices are all there are
    for path in (chosen := sparse_tree(accuracy, 12, 3)):
        assert len(path) == 1 or chosen.index(path[:-1]) < chosen.index(path)


def test_regular_trees_are_those_of_the_tree_method() -> None:
    paths = regular_tree([2, 2, 1], 4)
    layout = Layout.of(paths, vocabulary=10)
    assert layout.parents == [-1, -1, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert regular_tree([2, 1], 2) == [(0,), (1,), (0, 0), (1, 0)]


def context(temperature: float) -> Context:
    return Context([[5]], [False], Sampler(temperature, [0]), [4])


def test_a_layout_takes_each_nodes_token_from_its_own_head() -> None:
    logits = torch.zeros(1, 2, 6)
    logits[0, 0, [4, 2, 1]] = torch.tensor([3.0, 2.0, 1.0])
    logits[0, 1, [5, 0, 3]] = torch.tensor([3.0, 2.0, 1.0])
    draft = Layout.of([(0,), (2,), (0, 1), (2, 0)], vocabulary=6).fill(logits, context(0))
    assert draft.tokens.tolist() == [[4, 1, 0, 5]]
    assert draft.parents == [[-1, -1, 0, 1]]
    chain = Layout.of([(0,), (0, 0)], vocabulary=6).fill(logits, context(0))
    assert (chain.tokens.tolist(), chain.parents) == ([[4, 5]], None)
    assert Layout.of(regular_tree([4], 1), vocabulary=3).parents == [-1, -1, -1]


def test_a_drawn_layout_takes_the_draws_in_order_and_says_where_they_come_from() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0], [3.0, 2.0, 1.0, 0.0]]).unsqueeze(0)
    layout = Layout.of([(0,), (2,), (0, 1), (2, 0), (2, 1)], vocabulary=4)
    draft = layout.fill(logits, context(1))
    drawn, probs = context(1).sampler.candidates(logits, 3, [2])
    first, second = drawn[0].tolist()
    assert draft.tokens.tolist() == [[first[0], first[1], second[0], second[0], second[1]]]
    assert draft.probs is not None and probs is not None
    torch.testing.assert_close(draft.probs[0], probs[0][[0, 1, 1]])  # of the root, of (0,), of (2,)
    assert layout.fill(logits, context(1), ranked=True).tokens.tolist() == [[3, 1, 1, 0, 1]]
    chain = Layout.of([(0,), (0, 0)], vocabulary=4).fill(logits, context(1))
    assert chain.parents is None and chain.probs is not None and chain.probs.shape == (1, 2, 4)


def test_heads_learn_what_comes_behind_the_next_token(counter: tuple[TrainedPair, list[list[float]]]) -> None:
    """An offset by one anywhere (training, prefill, observe) would leave acceptance near nothing."""
    trained_pair, accuracies = counter
    assert all(shares[0] > 0.99 for shares in accuracies)
    prompt = cycles(1, 9)[0].tolist()
    expected = prompt.copy()
    for _ in range(24):  # up to the length of the texts that it learnt from
        expected.append((3 * expected[-1] + 1) % PERIOD)
    for options in ({"tree": (1,)}, {"nodes": 4}, {"tree": (2, 1)}):
        (found,) = generate(
            trained_pair.target,
            trained_pair.drafter("medusa", **options),
            [prompt],
            k=4,
            max_new_tokens=24,
            temperature=0,
        )
        assert prompt + found.tokens == expected
        assert acceptance_length(found) == 5.0
    (found,) = generate(
        trained_pair.target, trained_pair.drafter("medusa_draft"), [prompt], k=5, max_new_tokens=24, temperature=0
    )
    assert prompt + found.tokens == expected
    assert acceptance_length(found) == 6.0
    # One draft pass a round, and one of the heads, timed apart by their widths.
    assert sum(calls for calls, _ in found.draft_passes.values()) == 2 * len(found.rounds)


def test_k_beyond_the_heads_drafts_as_deep_as_they_reach(counter: tuple[TrainedPair, list[list[float]]]) -> None:
    (found,) = generate(counter[0].target, counter[0].drafter("medusa"), [[5]], k=8, max_new_tokens=30, temperature=0)
    assert {entry.depth for entry in found.rounds} == {4}


def test_typical_acceptance_reaches_the_verifier_and_is_marked_lossy(
    counter: tuple[TrainedPair, list[list[float]]],
) -> None:
    exact, typical = Medusa.Options(), Medusa.Options(acceptance="typical")
    assert Medusa.lossless(exact) and Medusa.acceptance(exact) == "exact"
    assert not Medusa.lossless(typical) and Medusa.acceptance(typical) == "typical"
    trained_pair = counter[0]
    assert (
        trained_pair.drafter("medusa").criterion() is None and trained_pair.drafter("draft_model").criterion() is None
    )
    # A threshold next to nothing accepts whatever is offered: every round is as deep as the tree.
    options = {"tree": (1,), "acceptance": "typical", "posterior_threshold": 1e-30}
    drafter = trained_pair.drafter("medusa", **options)
    (found,) = generate(trained_pair.target, drafter, [[5]], k=4, max_new_tokens=40, temperature=50.0, seeds=[1])
    assert acceptance_length(found) == 5.0
    # What it is offered are the heads' first choices, not draws: three of a round's five steps are from one head to the
    # next.
    assert on_the_cycle(found) > 0.5
    (found,) = generate(
        trained_pair.target, trained_pair.drafter("medusa"), [[5]], k=4, max_new_tokens=40, temperature=50.0, seeds=[1]
    )
    assert on_the_cycle(found) < 0.25


def test_a_bias_of_the_token_before_stands_in_the_checkpoint(
    counter: tuple[TrainedPair, list[list[float]]], tmp_path: Path
) -> None:
    config = checkpoint.heads_config(hidden=64, vocabulary=PERIOD, heads=2, drafted=20, markov_rank=4)
    checkpoint.save(tmp_path, config, checkpoint.random_tensors(config, seed=0))
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["markov_rank"] == 4
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors["markov.embedding.weight"].shape == (PERIOD, 4) and tensors["markov.lm_head.weight"].shape == (20, 4)
    heads = checkpoint.load(tmp_path, counter[0].target)
    hidden, before = torch.randn(1, 64), torch.tensor([[3, 5]])
    logits = heads(hidden, 2)
    by_hand = logits[0, 1] + tensors["markov.lm_head.weight"] @ tensors["markov.embedding.weight"][5]
    torch.testing.assert_close(heads.biased(logits, 1, before)[0, 1], by_hand)


@pytest.mark.parametrize("limited", [False, True])
def test_projections_lead_to_the_models_own_lm_head(
    counter: tuple[TrainedPair, list[list[float]]], tmp_path: Path, limited: bool
) -> None:
    """Also to that of a draft which drafts few tokens itself, not one of them the same."""
    target, drafted = copy.copy(counter[0].target), torch.tensor([3, 5, 28])
    whole = copy.copy(target.head)
    if limited:
        target.limit_vocabulary(torch.tensor([0, 9]))
    config = checkpoint.heads_config(hidden=64, vocabulary=PERIOD, heads=2, drafted=3, projections=True)
    tensors = checkpoint.random_tensors(config, seed=0) | {"token_map": drafted}
    checkpoint.save(tmp_path, config, tensors)
    assert not any("lm_head" in name for name in load_file(tmp_path / "model.safetensors"))
    hidden = torch.randn(1, 64)
    block = torch.nn.functional.linear(hidden, tensors["blocks.1.layers.0.weight"], tensors["blocks.1.layers.0.bias"])
    state = (hidden + torch.nn.functional.silu(block)) @ tensors["projections.1.weight"].T
    by_hand = whole(state)[:, drafted]
    torch.testing.assert_close(checkpoint.load(tmp_path, target)(hidden, 2)[:, 1], by_hand)
    refusal = MedusaRecipe.unloadable("vllm", json.loads((tmp_path / "config.json").read_text()))
    assert refusal is not None and "projections: false" in refusal


def test_projections_and_own_lm_heads_exclude_each_other() -> None:
    with pytest.raises(ValidationError, match="leave out `own_lm_heads` or `projections`"):
        MedusaRecipe(projections=True, own_lm_heads=True)


@pytest.mark.parametrize("shared", [False, True])
def test_the_checkpoint_is_what_vllm_reads(
    counter: tuple[TrainedPair, list[list[float]]], tmp_path: Path, shared: bool
) -> None:
    measured = {"accuracy": [[0.5, 0.25], [0.25, 0.125]], "first": [1.0, 0.0]}
    config = checkpoint.heads_config(hidden=64, vocabulary=PERIOD, heads=2, shared=shared, measured=measured)
    checkpoint.save(tmp_path, config, checkpoint.random_tensors(config, seed=0))
    written = json.loads((tmp_path / "config.json").read_text())
    expected = {"model_type": "medusa", "architectures": ["MedusaModel"], "hidden_size": 64, "vocab_size": PERIOD}
    expected |= {"truncated_vocab_size": PERIOD, "num_heads": 2, "num_hidden_layers": 1, "medusa_fc_bias": True}
    expected |= {"original_lm_head": shared, "specrig": measured}
    assert expected.items() <= written.items()
    blocks = {
        f"blocks.{i}.layers.0.{name}": shape for i in range(2) for name, shape in (("weight", [64, 64]), ("bias", [64]))
    }
    outputs = ["lm_head.weight"] if shared else ["lm_heads.0.weight", "lm_heads.1.weight"]
    tensors = load_file(tmp_path / "model.safetensors")
    assert {name: list(tensor.shape) for name, tensor in tensors.items()} == blocks | {
        name: [PERIOD, 64] for name in outputs
    }
    heads = checkpoint.load(tmp_path, counter[0].target)
    assert (heads.accuracy, heads.first) == (measured["accuracy"], measured["first"])
    hidden = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    for head in range(2):
        inner = hidden @ tensors[f"blocks.{head}.layers.0.weight"].T + tensors[f"blocks.{head}.layers.0.bias"]
        by_hand = (hidden + inner * inner.sigmoid()) @ tensors[outputs[0 if shared else head]].T
        torch.testing.assert_close(heads(hidden, 2)[:, head], by_hand, atol=1e-4, rtol=1e-4)
    assert heads(hidden, 1).shape == (3, 1, PERIOD)
    assert {width: calls for width, (calls, _) in heads.pass_totals().items()} == {2: 2, 1: 1}


def test_folders_that_hold_no_fitting_heads_are_refused(
    counter: tuple[TrainedPair, list[list[float]]], tmp_path: Path
) -> None:
    target = counter[0].target
    with pytest.raises(DecodingError, match="no Medusa heads there"):
        checkpoint.load(tmp_path / "nowhere", target)
    for sizes, says in (
        ({"hidden": 32}, "hidden size of 32, the model's is 64"),
        ({"hidden": 64}, "blocks.0.layers.0.bias is"),
    ):
        config = checkpoint.heads_config(vocabulary=PERIOD, heads=1, **sizes)
        tensors = checkpoint.random_tensors(config, seed=0)
        tensors["blocks.0.layers.0.bias"] = torch.zeros(7)
        checkpoint.save(tmp_path, config, tensors)
        with pytest.raises(DecodingError, match=says):
            checkpoint.load(tmp_path, target)


@pytest.fixture
def pair(taught: tuple[Recipe, Path]) -> tuple[Recipe, Path]:
    return taught[0].model_copy(update={"medusa": SETTINGS}), taught[1]


def test_joint_training_yields_a_target_and_its_heads(pair: tuple[Recipe, Path], tmp_path: Path) -> None:
    recipe, folder = pair
    base = tmp_path / "base"
    base.mkdir()
    for name in ("target", TEXT):
        (base / name).symlink_to(folder / name)
    with pytest.raises(TrainingError, match="no trained medusa there"):
        train_jointly(recipe, base, tmp_path / "joint", base / "target", progress=False)
    fit("medusa", recipe, base, base / "target", progress=False)
    measured = json.loads((base / "medusa" / "config.json").read_text())["specrig"]
    assert len(measured["accuracy"]) == 3 and all(len(shares) == 10 for shares in measured["accuracy"])
    assert all(0 <= sum(shares) <= 1.0001 for shares in measured["accuracy"])
    assert measured["first"][0] > 0.95, "the model wrote the text: its next token is its first choice (bfloat16 aside)"
    train_jointly(recipe, base, tmp_path / "joint", base / "target", progress=False)
    assert sorted(path.name for path in (tmp_path / "joint").iterdir()) == [".states", "medusa", "target"]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "joint" / "target")
    before = AutoModelForCausalLM.from_pretrained(folder / "target")
    assert not all(torch.equal(new, old) for new, old in zip(model.parameters(), before.parameters(), strict=True))
    heads = load_file(tmp_path / "joint" / "medusa" / "model.safetensors")
    assert torch.equal(heads["lm_head.weight"], model.get_output_embeddings().weight)
    alone = load_file(base / "medusa" / "model.safetensors")
    moved = (heads["blocks.0.layers.0.weight"] - alone["blocks.0.layers.0.weight"]).norm()
    assert 0 < moved < alone["blocks.0.layers.0.weight"].norm()  # they began as the heads that were trained alone
    for name in ("target", "medusa"):
        rows = [json.loads(line) for line in (tmp_path / "joint" / name / "training.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows if "loss" in row] == list(range(1, SETTINGS.joint.steps + 1))


class Killed(BaseException):
    pass


def test_a_joint_training_that_was_cut_keeps_both_curves(
    pair: tuple[Recipe, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, folder = pair
    base, joint = tmp_path / "base", tmp_path / "joint"
    base.mkdir()
    for name in ("target", TEXT):
        (base / name).symlink_to(folder / name)
    fit("medusa", recipe, base, base / "target", progress=False)

    def save_and_die(going: Run, step: int) -> None:
        if step == SETTINGS.joint.steps - 1:
            for curve in going.curves:
                curve.flush()
            going.state.save(step)
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Run, "keep", save_and_die)
        train_jointly(recipe, base, joint, base / "target", progress=False)
    train_jointly(recipe, base, joint, base / "target", progress=False)
    for name in ("target", "medusa"):
        rows = [json.loads(line) for line in (joint / name / "training.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows if "loss" in row] == list(range(1, SETTINGS.joint.steps + 1)), name
    assert not (joint / "medusa/target.jsonl").exists()


def test_joint_training_keeps_the_vocabulary_of_the_heads(pair: tuple[Recipe, Path], tmp_path: Path) -> None:
    """It is the checkpoint's, not the one that the text would give now."""
    recipe, folder = pair
    base = tmp_path / "base"
    base.mkdir()
    for name in ("target", TEXT):
        (base / name).symlink_to(folder / name)
    first, then = (
        recipe.model_copy(update={"medusa": SETTINGS.model_copy(update={"draft_vocabulary": drafted})})
        for drafted in (40, 30)
    )
    fit("medusa", first, base, base / "target", progress=False)
    train_jointly(then, base, tmp_path / "joint", base / "target", progress=False)
    alone, joint = (load_file(each / "medusa/model.safetensors")["token_map"] for each in (base, tmp_path / "joint"))
    assert len(alone) == 40 and torch.equal(joint, alone)


def test_the_model_before_joint_training_keeps_its_whole_lm_head() -> None:
    """Phi's has a bias, which learns too."""
    config = PhiConfig(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2)
    model = Teacher(AutoModelForCausalLM.from_config(config), (0,), torch.device("cpu"))
    before = Joint(SETTINGS, model, model, None, seed=0).before
    with torch.no_grad():
        model.model.get_output_embeddings().bias.add_(1)
    assert before.bias is not None and not before.bias.any()
