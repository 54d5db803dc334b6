"""Training: the lean Llama is Hugging Face's Llama, the optimiser optimises, a pair trains, a killed one leaves no
folder.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import islice, repeat
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from tiny import TINY, prompts_of
from tokenizers.processors import TemplateProcessing
from torch.nn import functional as F  # noqa: N812
from transformers import AutoModelForCausalLM, AutoTokenizer

from specrig.corpus import gather as corpus
from specrig.corpus.example import CorpusError
from specrig.heads import losses
from specrig.heads.base import TrainingError
from specrig.heads.learner import Texts
from specrig.heads.medusa import Medusa
from specrig.heads.teacher import load_teacher
from specrig.training import llama, run
from specrig.training.checkpoint import State
from specrig.training.distil import distillation_loss, train_draft
from specrig.training.fit import fit
from specrig.training.language_model import next_token_loss, train_target
from specrig.training.llama import Llama
from specrig.training.optimizer import Optimizer, orthogonalise
from specrig.training.recipe import Distillation, Growth, Optimisation, Recipe, Shape
from specrig.training.run import model_folder, training, within_memory
from specrig.training.stages import TEXT
from specrig.training.target_text import SHARDS, read_text, write_text
from specrig.training.text_shards import TextShards
from specrig.training.tokenizer import END_OF_TEXT, load_tokenizer, train_tokenizer
from specrig.training.trainer import (
    Heldout,
    PackedText,
    evaluate,
    tokenize,
    train,
)

SHAPE = Shape(layers=2, hidden=32, heads=2, intermediate=48, context=64)
TINY_RECIPE = Recipe.model_validate(TINY)


@pytest.fixture
def pair(tiny_pair: Path) -> Path:
    return tiny_pair


TEN_STEPS = TINY_RECIPE.model_copy(
    update={
        "target": TINY_RECIPE.target.model_copy(update={"layers": 3}),
        "target_training": TINY_RECIPE.target_training.model_copy(
            update={"steps": 10, "evaluations": 1, "growth": (Growth(until=0.5, layers=2),)}
        ),
    }
)
"""A training of the target that grows on its way, to be cut and held against one that ran through."""


@pytest.fixture(scope="module")
def uncut(tiny_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target of `TEN_STEPS`, trained without a break."""
    out = tmp_path_factory.mktemp("uncut")
    train_target(TEN_STEPS, tiny_pair / "corpus", out / "target", progress=False)
    return out / "target"


def random_model(seed: int = 0, shape: Shape = SHAPE, vocabulary: int = 97) -> Llama:
    """A model with every weight away from its initial zero or one."""
    model = Llama(shape, vocabulary).initialise(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed + 1)))
    return model


def test_the_lean_forward_is_hugging_faces(tmp_path: Path) -> None:
    model = random_model()
    llama.save(model, tmp_path, (0,))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokens = torch.randint(0, 97, (3, 40), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        ours, expected = model.logits(model(tokens)), theirs(tokens).logits
    assert expected.std() > 0.1
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)
    saved = torch.cat([tensor.flatten() for tensor in load_file(tmp_path / "model.safetensors").values()])
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert torch.equal(saved.sort().values, weights.sort().values), "none is rounded"
    assert (
        sum(p.numel() for p in theirs.parameters())
        == SHAPE.parameters(97)
        == sum(p.numel() for p in model.parameters())
    )


def test_orthogonalise_brings_singular_values_near_one() -> None:
    matrices = torch.randn(3, 40, 64, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(matrices).float())
    assert torch.linalg.svdvals(matrices / matrices.norm(dim=(1, 2), keepdim=True)).min() < 0.1
    assert values.min() > 0.5 and values.max() < 1.4
    torch.testing.assert_close(
        orthogonalise(matrices.mT).mT.float(), orthogonalise(matrices).float(), atol=0.05, rtol=0.05
    )


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_the_optimiser_learns_and_its_rate_warms_up_and_falls_to_zero(optimizer: str) -> None:
    settings = Optimisation.model_validate(
        {"steps": 40, "batch": 4, "sequence": 16, "optimizer": optimizer, "lr": 0.01, "warmup": 0.1, "decay": 0.5}
    )
    model = Llama(SHAPE, 97).initialise(0)
    state, loss_of, rates, values = Optimizer(model, settings), next_token_loss(model), [], []
    batch = torch.arange(17).repeat(4, 1) + torch.arange(4)[:, None] * 20
    for _ in range(40):
        loss = loss_of(batch)
        loss.backward()
        rates.append(state.rate())
        state.step()
        values.append(loss.item())
    assert values[0] > 4 and values[-1] < 0.5
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[19] == 1.0 and rates[-1] == pytest.approx(0.05)


def test_a_model_that_grew_has_the_order_of_one_that_did_not() -> None:
    """So the norm of all gradients is the same sum where a training goes on. The new layer lies between the old ones."""
    model, settings = Llama(SHAPE, 97).initialise(0), Optimisation(steps=4)
    grown = Optimizer(model, settings)
    model.grow(3)
    grown.adopt(model)
    fresh = Optimizer(model, settings)
    assert [*map(id, grown.parameters)] == [*map(id, fresh.parameters)] == [*map(id, model.parameters())]
    orders = [
        [[id(parameter) for parameter, *_ in members] for members in each.matrices.values()] for each in (grown, fresh)
    ]
    assert orders[0] == orders[1]


def test_packing_keeps_every_token_in_order_and_reshuffles() -> None:
    texts = [[i] * 7 + [0] for i in range(1, 41)]
    batches = list(islice(PackedText(texts, 2, 15, seed=3), 20))
    first = torch.cat(batches[:10]).flatten()
    assert all(batch.shape == (2, 16) for batch in batches)
    assert sorted(first.tolist()) == sorted(token for text in texts for token in text)
    assert torch.equal(first[7::8], torch.zeros(40, dtype=torch.int64))
    assert not torch.equal(first, torch.cat(batches[10:]).flatten())
    again = next(iter(PackedText(texts, 2, 15, seed=3)))
    assert torch.equal(again, batches[0]) and not torch.equal(again, next(iter(PackedText(texts, 2, 15, seed=4))))
    with pytest.raises(TrainingError, match="less than one sequence"):
        PackedText([[1, 2]], 2, 15, seed=0)


def test_heldout_loss_is_the_mean_over_real_tokens() -> None:
    model = random_model()
    texts = [[1, 2, 3, 4, 5, 6, 7], [8, 9, 10]]
    found = evaluate(model, {"code": Heldout(texts, bytes=20)})
    with torch.no_grad():
        total = sum(
            F.cross_entropy(model.logits(model(torch.tensor([t[:-1]])))[0], torch.tensor(t[1:]), reduction="sum").item()
            for t in texts
        )
    assert found.nats["code"] == pytest.approx(total / 8, rel=0.02)  # bf16
    assert found.bits_per_byte["code"] == pytest.approx(found.nats["code"] * 8 / 0.693147 / 20, rel=1e-4)


def test_distillation_loss_is_zero_only_for_the_teacher_itself(tmp_path: Path) -> None:
    model, student = random_model(0), random_model(7)
    llama.save(model, tmp_path, (0,))
    teacher = load_teacher(tmp_path, torch.device("cpu"))
    tokens = torch.randint(0, 97, (2, 17), generator=torch.Generator().manual_seed(0))
    batch = Texts(tokens, torch.ones_like(tokens, dtype=torch.bool)), teacher.states(tokens[:, :-1])
    divergence, plain = Distillation(kl_weight=1.0), Distillation(kl_weight=0.0)
    same, other = (
        distillation_loss(model, teacher, divergence)(batch),
        distillation_loss(student, teacher, divergence)(batch),
    )
    assert -1e-6 < same.item() < 1e-3 < 0.01 < other.item()
    torch.testing.assert_close(
        distillation_loss(student, teacher, plain)(batch), next_token_loss(student)(tokens), atol=1e-3, rtol=1e-3
    )
    # Of what the target did not write nothing is learnt.
    half = Texts(tokens, batch[0].written & (torch.arange(17) < 9))
    first = Texts(tokens[:, :9], half.written[:, :9])
    torch.testing.assert_close(
        distillation_loss(student, teacher, divergence)((half, batch[1])),
        distillation_loss(student, teacher, divergence)((first, batch[1][:, :8])),
        atol=1e-2,
        rtol=1e-2,
    )


def test_a_loss_that_is_not_finite_stops_training(tmp_path: Path) -> None:
    model = random_model()

    def batches() -> Iterator[int]:
        yield from range(10)

    with pytest.raises(TrainingError, match="at step 1; lower"), training(tmp_path / "target", 5, False, "key") as run:
        train(
            model,
            Optimisation(steps=5),
            batches(),
            lambda batch: model.embedding.sum() * float("nan"),
            lambda: ({}, ""),
            run,
        )
    assert not list(tmp_path.iterdir())


def test_an_interrupted_training_leaves_no_folder_and_the_old_model(tmp_path: Path) -> None:
    out = tmp_path / "models" / "target"
    with pytest.raises(KeyboardInterrupt), model_folder(out) as folder:
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt
    assert [path.name for path in out.parent.iterdir()] == [".target.unfinished"]
    with model_folder(out) as folder:
        assert list(folder.iterdir()) == []
        (folder / "config.json").write_text("old")
    with pytest.raises(KeyboardInterrupt), model_folder(out) as folder:
        (folder / "config.json").write_text("new")
        raise KeyboardInterrupt
    assert (out / "config.json").read_text() == "old"


class Killed(BaseException):
    pass


def test_a_training_that_fails_keeps_its_checkpoint_and_its_clock(
    pair: Path, uncut: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full at step 8 costs the steps since the last checkpoint, not the training."""

    def save_then_fail(state: State, step: int) -> None:
        if step == 6:
            state.save(step)
        if step == 8:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(State, "keep", save_then_fail)
        train_target(TEN_STEPS, pair / "corpus", tmp_path / "target", progress=False)
    taken: list[int] = []
    monkeypatch.setattr(State, "keep", lambda state, step: taken.append(step))
    train_target(TEN_STEPS, pair / "corpus", tmp_path / "target", progress=False)
    assert taken == [7, 8, 9, 10]
    whole, again = (load_file(folder / "model.safetensors") for folder in (uncut, tmp_path / "target"))
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    rows = [json.loads(line) for line in (tmp_path / "target/training.jsonl").read_text().splitlines()]
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds) and [row["step"] for row in rows if "loss" in row] == list(range(1, 11))


def test_stages_of_growth_that_no_step_tells_apart_are_refused() -> None:
    settings = {"steps": 6, "growth": [{"until": 0.6, "layers": 1}, {"until": 0.75, "layers": 2}]}
    with pytest.raises(ValidationError, match="target_training: 6 steps are too few for `growth`: raise steps"):
        Recipe.model_validate(TINY | {"target": TINY["target"] | {"layers": 3}, "target_training": settings})


def test_requests_that_are_all_too_long_are_said_before_anything_is_written(pair: Path, tmp_path: Path) -> None:
    recipe = TINY_RECIPE.model_copy(update={"text": TINY_RECIPE.text.model_copy(update={"sequence": 8})})
    shutil.copytree(pair / "models/target", tmp_path / "target")
    with pytest.raises(TrainingError, match=r"no train request is left. .* at most 4 tokens \(half of training\.text"):
        write_text(recipe, pair / "corpus", tmp_path, tmp_path / "target")
    assert not (tmp_path / TEXT).exists()


def test_texts_that_the_target_cannot_read_are_said_before_anything_is_written(pair: Path, tmp_path: Path) -> None:
    recipe = TINY_RECIPE.model_copy(update={"text": TINY_RECIPE.text.model_copy(update={"sequence": 513})})
    with pytest.raises(TrainingError, match=r"has 512 positions, training\.text\.sequence is 513; lower it"):
        write_text(recipe, pair / "corpus", tmp_path, pair / "models/target")
    assert not list(tmp_path.iterdir())


def test_nothing_to_learn_from_is_said_at_once(pair: Path, tmp_path: Path) -> None:
    tensors = load_file(pair / "models" / TEXT)
    none = {name: tensors[name][:0].contiguous() for name in tensors if name.startswith("train.")}
    save_file(tensors | none, tmp_path / TEXT)
    recipe = TINY_RECIPE.model_copy(update={"medusa": Medusa(corpus_sequences=0)})
    with pytest.raises(TrainingError, match=r"nothing to learn from: raise training\.text\.sequences"):
        fit("medusa", recipe, pair / "corpus", tmp_path, pair / "models/target", progress=False)


def test_a_head_without_corpus_or_memory_says_so(pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CorpusError, match=r"train\.jsonl: no such corpus file; build it with `specrig stage corpus`"):
        fit("medusa", TINY_RECIPE, tmp_path, pair / "models", pair / "models/target", progress=False)

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("specrig.training.fit.load_teacher", full)
    with pytest.raises(TrainingError, match="medusa: the GPU's memory is full"):
        fit("medusa", TINY_RECIPE, pair / "corpus", pair / "models", pair / "models/target", progress=False)


@pytest.mark.parametrize("cut", [1, 5, 9])
def test_a_training_that_was_cut_goes_on_to_the_same_weights(
    pair: Path, uncut: Path, tmp_path: Path, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut before, at and after the growth of the model, with Muon's and AdamW's state. So the same recipe gives the
    same weights.
    """

    def save_and_die(state: State, step: int) -> None:
        if step == cut:
            state.save(step)
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(State, "keep", save_and_die)
        train_target(TEN_STEPS, pair / "corpus", tmp_path / "target", progress=False)
    again = tmp_path / "target"
    assert not again.exists()
    taken: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(State, "keep", lambda state, step: taken.append(step))
        train_target(TEN_STEPS, pair / "corpus", tmp_path / "target", progress=False)
    assert taken == list(range(cut + 1, 11))
    states = [load_file(folder / "model.safetensors") for folder in (uncut, again)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    curves = [(folder / "training.jsonl").read_text().splitlines() for folder in (uncut, again)]
    assert [json.loads(line).get("loss") for line in curves[0]] == [json.loads(line).get("loss") for line in curves[1]]
    assert sorted(path.name for path in again.iterdir()) == sorted(path.name for path in uncut.iterdir())


def test_losses_read_now_and_then_make_the_same_curve_and_a_checkpoint_misses_no_step(
    pair: Path, uncut: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: the loss is read every few steps, before an evaluation and before a checkpoint."""
    monkeypatch.setitem(run._READ_EVERY, "cpu", 4)
    whole = State.save

    def save_and_die(state: State, step: int) -> None:
        whole(state, step)
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(State, "due", lambda state: True)
        patch.setattr(State, "save", save_and_die)
        train_target(TEN_STEPS, pair / "corpus", tmp_path / "target", progress=False)
    train_target(TEN_STEPS, pair / "corpus", tmp_path / "target", progress=False)
    each, seldom = (
        [json.loads(line) for line in (folder / "training.jsonl").read_text().splitlines()]
        for folder in (uncut, tmp_path / "target")
    )
    drop = ("seconds",)
    assert [{k: v for k, v in row.items() if k not in drop} for row in each] == [
        {k: v for k, v in row.items() if k not in drop} for row in seldom
    ]
    assert [row["step"] for row in seldom if "loss" in row] == list(range(1, 11))


@pytest.mark.parametrize("cut", [2, 4])
def test_a_checkpoint_does_not_lose_what_is_measured_at_its_step(
    tmp_path: Path, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save_and_die(state: State, step: int) -> None:
        if step == cut:
            state.save(step)
            raise Killed

    def attempt() -> None:
        model, tokens = random_model(), torch.arange(9).repeat(1, 1)
        with training(tmp_path / "target", 4, False, "key") as going:
            settings = Optimisation(steps=4, batch=1, sequence=8, evaluations=2)
            train(model, settings, repeat(tokens), next_token_loss(model), lambda: ({"heldout": 1}, ""), going)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(State, "keep", save_and_die)
        attempt()
    attempt()
    rows = [json.loads(line) for line in (tmp_path / "target/training.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "heldout" in row] == [2, 4]


def test_a_second_kill_loses_no_line_of_the_curve(tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 2)
    for _ in range(2):
        with pytest.raises(Killed), training(tmp_path / "m", 9, False, "k") as going:
            going.begin({"model": (module, Optimizer(module, Optimisation(steps=9)))})
            if not going.done:
                going.take_step(1, [module(torch.ones(1, 2)).sum()], tokens=1, lr=0.1)
                going.state.save(1)
            (line,) = (going.folder / "training.jsonl").read_text().splitlines()
            raise Killed
    assert json.loads(line)["step"] == 1
    (going.folder / "training.jsonl").unlink()
    with training(tmp_path / "m", 9, False, "k") as going:
        assert going.done == 1, "weights without their curve go on too"


def test_finished_weights_outlast_a_kill_while_their_states_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = torch.nn.Linear(2, 2)

    def die(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed), training(tmp_path / "m", 9, False, "k") as going:
        going.begin({"model": (module, Optimizer(module, Optimisation(steps=9, optimizer="adamw")))})
        going.take_step(9, [module(torch.ones(1, 2)).sum()], tokens=1, lr=0.1)
        going.state.save(9)
        patch.setattr(shutil, "rmtree", die)
    with training(tmp_path / "m", 9, False, "k") as going:
        assert going.done == 9


def test_a_loss_read_late_still_stops_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(run._READ_EVERY, "cpu", 4)
    module = torch.nn.Linear(2, 2)
    with (
        pytest.raises(TrainingError, match="the loss is nan at step 2; lower"),
        training(tmp_path / "m", 9, False, "k") as going,
    ):
        going.begin({"model": (module, Optimizer(module, Optimisation(steps=9)))})
        for step in range(1, 10):
            factor = 1.0 if step == 1 else float("nan")
            going.take_step(step, [module(torch.ones(1, 2)).sum() * factor], tokens=step, lr=0.1)
            assert step < 5, "read after four steps at the latest"
    assert not list(tmp_path.iterdir())


def test_a_batch_in_parts_takes_the_step_of_the_whole_batch(pair: Path, tmp_path: Path) -> None:
    weights = []
    for name, parts in (("whole", 1), ("parts", 2)):
        one = TINY_RECIPE.target_training.model_copy(
            update={"steps": 2, "evaluations": 1, "accumulate": parts, "warmup": 0.0, "optimizer": "adamw", "lr": 1e-3}
        )
        recipe = TINY_RECIPE.model_copy(update={"target_training": one})
        train_target(recipe, pair / "corpus", tmp_path / name / "target", progress=False)
        rows = [json.loads(line) for line in (tmp_path / name / "target/training.jsonl").read_text().splitlines()]
        embedding = load_file(tmp_path / name / "target/model.safetensors")["model.embed_tokens.weight"]
        weights.append((rows[0]["loss"], [row["tokens"] for row in rows if "loss" in row], embedding))
    (loss, tokens, whole), (loss_in_parts, tokens_in_parts, parts_) = weights
    assert loss == pytest.approx(loss_in_parts, rel=1e-4) and tokens == tokens_in_parts
    start = Llama(TINY_RECIPE.target, len(whole)).initialise(TINY_RECIPE.seed)
    moved = (whole - start.embedding).abs().sum()
    assert (whole - parts_).abs().sum() < 0.05 * moved, "but for the rounding of sums"
    with pytest.raises(ValidationError, match="batch 8 is no multiple of accumulate 3"):
        Optimisation(steps=1, batch=8, accumulate=3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named(pair: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"PyTorch sees no GPU here; set `device: cpu`"):
        train_target(TINY_RECIPE, pair / "corpus", tmp_path / "target", progress=False, device="cuda")
    assert not list(tmp_path.iterdir())


def test_a_full_gpu_says_what_to_lower() -> None:
    message = r"eagle: the GPU's memory is full \(CUDA out of memory\); lower its batch"
    with pytest.raises(TrainingError, match=message), within_memory("eagle"):
        raise torch.OutOfMemoryError("CUDA out of memory\nand more")


def test_writing_side_by_side_changes_no_greedy_text(
    pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specrig.training.text_shards.fastest", lambda *_: "float32")  # else two timings choose
    (tmp_path / "target").symlink_to(pair / "models" / "target")
    found = []
    for batch in (1, 3):
        text = TINY_RECIPE.text.model_copy(update={"temperatures": (0.0,), "batch": batch, "sequence": 64})
        write_text(TINY_RECIPE.model_copy(update={"text": text}), pair / "corpus", tmp_path, tmp_path / "target")
        found.append(read_text(tmp_path).train.tokens)
    assert found[0].shape == found[1].shape and len(found[0]) > 2
    assert (found[0] == found[1]).float().mean() > 0.9  # sums of another shape may break ties differently


def test_another_training_does_not_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 2)
    optimizer = Optimizer(module, Optimisation(steps=3))
    with pytest.raises(Killed), training(tmp_path / "draft", 3, False, "one") as run:
        run.begin({"model": (module, optimizer)})
        module(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        run.state.save(1)
        raise Killed
    with pytest.raises(Killed), training(tmp_path / "draft", 3, False, "one") as run:
        assert run.done == 1
        raise Killed
    with training(tmp_path / "draft", 3, False, "two") as run:
        assert run.done == 0 and [path.name for path in run.folder.iterdir()] == ["training.jsonl"]


def test_the_tokenizer_round_trips_any_text() -> None:
    tokenizer = train_tokenizer(["def f(x):\n    return x + 123\n", "Frankreich, Italien und Čad"] * 20, 400)
    for text in ("def g(y):\n        return y\n\n\n", "每小时3公里", "a\x00b\tc  \n d", "😀 Türkçe ğ 1234"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.token_to_id(END_OF_TEXT) == 0
    digits = tokenizer.encode("1234567").tokens
    assert digits == list("1234567")


def test_what_a_tokenizer_adds_stands_before_the_prompt_alone() -> None:
    tokenizer = train_tokenizer(["def f(x):\n    return x + 123\n"] * 20, 400)
    row = {"prompt": "def f(x):\n", "completion": "    return x"}
    (plain,) = tokenize([row], tokenizer, 0)
    first = tokenizer.token_to_id("f")
    tokenizer.post_processor = TemplateProcessing(single="f $A", special_tokens=[("f", first)])
    assert tokenize([row], tokenizer, 0) == [[first, *plain]]


def test_the_pair_loads_with_transformers_and_shares_its_tokenizer(pair: Path) -> None:
    models = pair / "models"
    for name, shape in (("target", TINY_RECIPE.target), ("draft", TINY_RECIPE.draft)):
        tokenizer = AutoTokenizer.from_pretrained(models / name)
        model = AutoModelForCausalLM.from_pretrained(models / name)
        assert model.dtype == torch.float32 and model.config.tie_word_embeddings
        assert model.config.vocab_size == len(tokenizer) == model.get_output_embeddings().weight.shape[0]
        assert tokenizer.eos_token == tokenizer.pad_token == END_OF_TEXT
        assert model.generation_config.eos_token_id == tokenizer.eos_token_id == model.config.eos_token_id
        assert sum(p.numel() for p in model.parameters()) == shape.parameters(len(tokenizer))
        out = model.generate(**tokenizer("def f(x):\n", return_tensors="pt"), max_new_tokens=5, do_sample=False)
        assert 1 <= out.shape[1] - len(tokenizer("def f(x):\n").input_ids) <= 5
    assert (models / "target" / "tokenizer.json").read_bytes() == (models / "draft" / "tokenizer.json").read_bytes()
    assert sorted(path.name for path in models.iterdir() if not path.name.startswith(".")) == [
        "draft",
        "target",
        SHARDS,
        TEXT,
    ]


def test_the_loss_curve_falls_and_holds_the_heldout_losses(pair: Path) -> None:
    rows = [json.loads(line) for line in (pair / "models/target/training.jsonl").read_text().splitlines()]
    steps, evaluations = [r for r in rows if "loss" in r], [r for r in rows if "heldout" in r]
    settings = TINY_RECIPE.target_training
    assert [row["step"] for row in steps] == list(range(1, settings.steps + 1))
    assert steps[-1]["tokens"] == settings.steps * settings.batch * settings.sequence
    assert [row["step"] for row in evaluations] == [settings.steps // 2, settings.steps]
    first, last = (sum(row["heldout"].values()) for row in evaluations)
    assert last < first
    assert all(0 < value < 10 for value in evaluations[-1]["bits_per_byte"].values())


def test_a_draft_without_a_target_or_its_text_is_refused(pair: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="no trained target there"):
        train_draft(TINY_RECIPE, pair / "corpus", tmp_path, tmp_path / "target", progress=False)
    (tmp_path / "target").symlink_to(pair / "models" / "target")
    with pytest.raises(TrainingError, match="write it first with `specrig stage write-text`"):
        train_draft(TINY_RECIPE, pair / "corpus", tmp_path, tmp_path / "target", progress=False)


def test_what_the_target_writes(pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, settings = read_text(pair / "models"), TINY_RECIPE.text
    assert (
        text.train.tokens.shape == (settings.sequences, settings.sequence + 1)
        and text.train.tokens.dtype == torch.int64
    )
    tokenizer = load_tokenizer(pair / "models" / "target")
    prompts = prompts_of("heldout", TINY_RECIPE, pair / "corpus", pair / "models/target")
    assert 4 <= len(prompts) <= settings.heldout_sequences
    heldout, written_by_it = text.heldout.tokens, text.heldout.written
    assert heldout.shape == written_by_it.shape == (len(prompts), settings.sequence + 1)
    eos = tokenizer.token_to_id(END_OF_TEXT)
    for row, prompt in enumerate(prompts):
        assert heldout[row, : len(prompt)].tolist() == prompt and not written_by_it[row, : len(prompt)].any()
        written = heldout[row][written_by_it[row]].tolist()
        assert written_by_it[row, len(prompt)] and eos not in written[:-1]
        assert len(written) == settings.sequence + 1 - len(prompt) or written[-1] == eos
    (tmp_path / "target").symlink_to(pair / "models" / "target")
    # Which precision is faster is timed, and on a busy machine not always the same one.
    (manifest,) = (pair / "models").rglob("manifest.json")
    used = json.loads(manifest.read_text())["precision"]
    monkeypatch.setattr("specrig.training.text_shards.fastest", lambda *_: used)
    write_text(TINY_RECIPE, pair / "corpus", tmp_path, tmp_path / "target")
    assert torch.equal(read_text(tmp_path).train.tokens, text.train.tokens)


@pytest.mark.parametrize("damage", ["empty", "cut", "a tensor missing", "another type"])
def test_a_damaged_text_of_the_target_is_named(pair: Path, tmp_path: Path, damage: str) -> None:
    whole, file = pair / "models" / TEXT, tmp_path / TEXT
    content, tensors = whole.read_bytes(), load_file(whole)
    if damage in ("empty", "cut"):
        file.write_bytes(content[: len(content) // 2 if damage == "cut" else 0])
    else:
        tensors["train.tokens"] = tensors["train.tokens"].float()
        save_file(
            {name: tensors[name] for name in tensors if (name, damage) != ("train.tokens", "a tensor missing")}, file
        )
    with pytest.raises(
        TrainingError, match=r"text\.safetensors: not a target's text.*write it again with `specrig stage write-text`"
    ):
        read_text(tmp_path)


@pytest.mark.parametrize("damage", [b'{"kind": "co', b"[]\n", b"\xff\xfe\n", b"[" * 100_000])
def test_a_damaged_shard_of_the_targets_text_is_written_again(
    pair: Path, tmp_path: Path, damage: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = TextShards(tmp_path, TINY_RECIPE, pair / "corpus", pair / "models/target", "cpu")
    shutil.copytree(next((pair / "models" / SHARDS).iterdir()), shards.folder)
    file = shards.folder / "heldout-00000.jsonl"
    whole = file.read_bytes()
    file.write_bytes(damage + whole)
    texts = shards.texts("heldout", 2)
    assert file.read_bytes() == whole and len(texts) == 2
    said = f"{file} is damaged and will be made again: line 1: not a text"
    assert said in capsys.readouterr().err and file.with_name(f"{file.name}.damaged").is_file()


def test_the_default_recipe_is_the_embedded_pair_and_refuses_nonsense() -> None:
    recipe = Recipe()
    assert 10e6 < recipe.target.parameters(recipe.vocabulary) < 12.5e6
    assert 0.5e6 < recipe.draft.parameters(recipe.vocabulary) < 1.5e6
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe
    for wrong, says in (
        ({"vocabulery": 4096}, "Extra inputs"),
        ({"target": {"layers": 2, "hidden": 100, "heads": 3, "intermediate": 64}}, "heads 3 times an even head size"),
        ({"target_training": {"steps": 5, "sequence": 1024}}, "longer than target.context"),
        ({"draft": {"layers": 1, "hidden": 32, "heads": 1, "intermediate": 64, "context": 256}}, "not be shorter"),
    ):
        with pytest.raises(ValidationError, match=says):
            Recipe.model_validate(wrong)


def test_encoding_uses_the_saved_tokenizer(pair: Path) -> None:
    tokenizer = load_tokenizer(pair / "models" / "target")
    text = corpus.read(pair / "corpus" / "train.jsonl")[0]["text"]
    assert tokenizer.encode(text).ids == AutoTokenizer.from_pretrained(pair / "models" / "target")(text).input_ids


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses in chunks of 200 rows of 50 logits, the last one shorter."""
    monkeypatch.setitem(losses._ENTRIES, "cpu", 200 * 50)


@pytest.mark.usefixtures("chunks")
def test_the_acceptance_loss_has_the_value_and_gradient_of_the_plain_one() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(300, 50, generator=generator).requires_grad_()
    goal = torch.randn(300, 50, generator=generator)
    p, t = logits.softmax(-1), goal.softmax(-1)
    rate = torch.minimum(p, t).sum(-1)
    weight = (-3 * rate.detach()).exp()
    plain = (weight * (t * (t.log() - p.log())).sum(-1) + (1 - weight) * (1 - rate)).mean()
    lean = losses.distribution_loss(logits, goal, "lk")
    torch.testing.assert_close(lean, plain)
    torch.testing.assert_close(
        torch.autograd.grad(lean, logits), torch.autograd.grad(plain, logits), atol=1e-7, rtol=1e-4
    )


def test_a_token_without_a_label_has_no_cross_entropy() -> None:
    logits, goal = torch.randn(2, 20, 9, generator=torch.Generator().manual_seed(0)).unbind()
    labels = torch.arange(20) % 9
    some = torch.where(torch.arange(20) < 5, labels, -1)
    found = losses.distillation(logits, goal, some, 0.3)
    whole, divergence = losses.distillation(logits, goal, labels, 0.3), losses.distribution_loss(logits, goal, "kl")
    rest = F.cross_entropy(logits[5:], labels[5:]) * 15 / 20
    torch.testing.assert_close(found, whole - 0.7 * rest)
    assert divergence > 0


def test_a_loss_of_no_tokens_is_zero_and_not_nan() -> None:
    none = torch.zeros(0, 9, requires_grad=True)
    for loss in (
        losses.distillation(none, none, torch.zeros(0).long(), 0.5),
        losses.distribution_loss(none, none, "kl"),
    ):
        assert loss.item() == 0
        loss.backward()
    some = torch.randn(3, 9)
    assert losses.distribution_loss(some, -some, "kl", torch.zeros(3)).item() == 0


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("kl_weight", [None, 0.0, 0.7, 1.0])
def test_lean_losses_have_the_values_and_gradients_of_the_plain_ones(kl_weight: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(650, 50, generator=generator)).requires_grad_()
    goal, labels = torch.randn(650, 50, generator=generator), torch.randint(0, 50, (650,), generator=generator)
    if kl_weight is None:
        plain, lean = F.cross_entropy(logits, labels), losses.cross_entropy(logits, labels)
    else:
        log_probabilities, taught = logits.log_softmax(-1), goal.log_softmax(-1)
        divergence = F.kl_div(log_probabilities, taught, reduction="batchmean", log_target=True)
        plain = kl_weight * divergence + (1 - kl_weight) * F.nll_loss(log_probabilities, labels)
        lean = losses.distillation(logits, goal, labels, kl_weight)
    torch.testing.assert_close(lean, plain)
    (expected,) = torch.autograd.grad(2 * plain, logits)
    (found,) = torch.autograd.grad(2 * lean, logits)
    torch.testing.assert_close(found, expected)
