"""Training: the optimiser optimises, a draft learns, a training that was cut goes on and leaves no folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch.nn import functional as F  # noqa: N812
from transformers import AutoModelForCausalLM, AutoTokenizer

from llamas import random_llama, saved_llama
from specrig.heads import losses
from specrig.heads.base import TrainingError
from specrig.heads.learner import Texts
from specrig.heads.teacher import load_teacher, outer
from specrig.training import run
from specrig.training.draft import DraftLearner, train_draft, untrained
from specrig.training.fit import fit
from specrig.training.optimizer import Optimizer, orthogonalise
from specrig.training.recipe import Optimisation, Recipe, Shape
from specrig.training.run import Run, model_folder, training, within_memory
from specrig.training.stages import TEXT
from specrig.training.target_text import read_text, write_text

Taught = tuple[Recipe, Path]


@pytest.fixture(scope="module")
def draft(taught: Taught, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft that was trained without a break, in the folder of its pair."""
    recipe, pair = taught
    folder = with_text(tmp_path_factory.mktemp("pair"), pair)
    train_draft(recipe, folder, pair / "target", progress=False)
    return folder / "draft"


def with_text(folder: Path, pair: Path) -> Path:
    (folder / TEXT).symlink_to(pair / TEXT)
    return folder


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "training.jsonl").read_text().splitlines()]


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
        {"steps": 40, "batch": 4, "optimizer": optimizer, "lr": 0.01, "warmup": 0.1, "decay": 0.5}
    )
    model = untrained(Shape(layers=2, hidden=32, heads=2, intermediate=48, context=64), 97, (0,), 0)
    state, rates, values = Optimizer(model, settings, outer(model)), [], []
    batch = torch.arange(17).repeat(4, 1) + torch.arange(4)[:, None] * 20
    for _ in range(40):
        loss = model(batch, labels=batch).loss
        loss.backward()
        rates.append(state.rate())
        state.step()
        values.append(loss.item())
    assert values[0] > 4 and values[-1] < 0.5
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[19] == 1.0 and rates[-1] == pytest.approx(0.05)


def test_a_new_model_reads_its_end_token_as_any_other() -> None:
    """Torch would begin the embedding of a token that counts as padding at zero, and keep it from learning."""
    embedding = untrained(
        Shape(layers=1, hidden=32, heads=2, intermediate=48, context=64), 97, (5,), 0
    ).model.embed_tokens
    embedding(torch.tensor([5])).sum().backward()
    assert embedding.weight[5].any() and embedding.weight.grad[5].all()


def test_an_optimiser_goes_on_from_its_state() -> None:
    """With Muon's momentum, AdamW's moments and the place in the schedule."""
    settings, weights = Optimisation(steps=6), []
    batch = torch.arange(12).repeat(2, 1)
    for cut in (False, True):
        model = random_llama(20)
        optimizer = Optimizer(model, settings, outer(model))
        for step in range(6):
            if cut and step == 3:
                state = optimizer.state_dict()
                optimizer = Optimizer(model, settings, outer(model))
                optimizer.load_state_dict(state)
            model(batch, labels=batch).loss.backward()
            optimizer.step()
        weights.append(torch.cat([parameter.flatten() for parameter in model.parameters()]))
    torch.testing.assert_close(weights[0], weights[1])


def test_distillation_loss_is_zero_only_for_the_teacher_itself(tmp_path: Path) -> None:
    saved_llama(tmp_path, 97)
    teacher = load_teacher(tmp_path, torch.device("cpu"))
    shape = {"layers": 2, "hidden": 32, "heads": 2, "intermediate": 48, "context": 64}

    def learner(kl_weight: float, *, same: bool = False) -> DraftLearner:
        recipe = Recipe.model_validate({"draft": shape, "distillation": {"kl_weight": kl_weight}})
        made = DraftLearner(recipe, teacher, None)
        if same:
            made.draft.load_state_dict(teacher.model.state_dict())
        return made

    tokens = torch.randint(0, 97, (2, 17), generator=torch.Generator().manual_seed(0))
    batch, states = Texts(tokens, torch.ones_like(tokens, dtype=torch.bool)), teacher.states(tokens)
    divergence = learner(1.0)
    assert -1e-6 < learner(1.0, same=True).loss(batch, states, states).item() < 1e-3
    assert divergence.loss(batch, states, states).item() > 0.01
    plain = learner(0.0)
    expected = F.cross_entropy(plain.draft(tokens[:, :-1]).logits.flatten(0, 1), tokens[:, 1:].flatten())
    torch.testing.assert_close(plain.loss(batch, states, states), expected, atol=1e-2, rtol=1e-2)
    # Of what the target did not write nothing is learnt.
    half = Texts(tokens, batch.written & (torch.arange(17) < 9))
    first = Texts(tokens[:, :9], half.written[:, :9])
    torch.testing.assert_close(
        divergence.loss(half, states, states),
        divergence.loss(first, states[:, :9], states[:, :9]),
        atol=1e-2,
        rtol=1e-2,
    )


def test_a_draft_learns_and_its_curve_says_what_to_expect(draft: Path, taught: Taught) -> None:
    rows, settings = lines(draft), taught[0].draft_training
    steps, evaluations = ([row for row in rows if key in row] for key in ("loss", "acceptance"))
    assert [row["step"] for row in steps] == list(range(1, settings.steps + 1))
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert [row["step"] for row in evaluations] == [settings.steps // 2, settings.steps]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(draft), AutoTokenizer.from_pretrained(draft)
    assert model.dtype == torch.float32 and model.config.vocab_size == len(tokenizer) == 1024
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.num_parameters() == taught[0].draft.parameters(1024)
    assert sorted(path.name for path in draft.parent.iterdir() if path.name[0] != ".") == ["draft", TEXT]


def test_a_loss_that_is_not_finite_stops_training(tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 2)
    with pytest.raises(TrainingError, match="at step 1; lower"), training(tmp_path / "m", 5, False, "key") as going:
        going.begin({"model": (module, Optimizer(module, Optimisation(steps=5)))})
        for step in range(1, 6):
            going.take_step(step, module(torch.ones(1, 2)).sum() * float("nan"), tokens=step, lr=0.1)
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


@pytest.mark.parametrize("error", [Killed(), OSError(28, "No space left on device")])
def test_a_training_that_was_cut_goes_on(
    draft: Path, taught: Taught, tmp_path: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs the steps since the last checkpoint, and what was measured at that step is not lost. The clock of the curve goes on."""
    recipe, pair = taught
    with_text(tmp_path, pair)

    def save_then_fail(going: Run, step: int) -> None:
        if step == 15:
            going.curve.flush()
            going.state.save(step)
        if step == 17:
            raise error

    with monkeypatch.context() as patch, pytest.raises(type(error)):
        patch.setattr(Run, "keep", save_then_fail)
        train_draft(recipe, tmp_path, pair / "target", progress=False)
    assert not (tmp_path / "draft").exists()
    taken: list[int] = []
    monkeypatch.setattr(Run, "keep", lambda going, step: taken.append(step))
    train_draft(recipe, tmp_path, pair / "target", progress=False)
    assert taken == list(range(16, 31))
    rows, whole = lines(tmp_path / "draft"), lines(draft)
    assert [row["step"] for row in rows] == [row["step"] for row in whole]
    assert [row.get("loss", 0) for row in rows] == pytest.approx([row.get("loss", 0) for row in whole], rel=1e-2)
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds)
    assert sorted(path.name for path in (tmp_path / "draft").iterdir()) == sorted(p.name for p in draft.iterdir())


def test_losses_read_now_and_then_make_the_same_curve(
    draft: Path, taught: Taught, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: the loss is read every few steps, and before an evaluation."""
    monkeypatch.setitem(run._READ_EVERY, "cpu", 4)
    recipe, pair = taught
    train_draft(recipe, with_text(tmp_path, pair), pair / "target", progress=False)
    assert [row["step"] for row in lines(tmp_path / "draft")] == [row["step"] for row in lines(draft)]


def test_a_checkpoint_every_few_minutes_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = torch.nn.Linear(2, 2)
    with pytest.raises(Killed), training(tmp_path / "m", 9, False, "k") as going:
        going.begin({"model": (module, Optimizer(module, Optimisation(steps=9)))})
        going.keep(1)
        assert not going.state.path.exists(), "not every step"
        monkeypatch.setattr("specrig.training.checkpoint.EVERY_S", 0.0)
        going.keep(2)
        monkeypatch.setattr(torch, "save", lambda content, file: file.write_bytes(b"half") and exec("raise OSError"))
        with pytest.raises(OSError):
            going.keep(3)
        raise Killed
    with pytest.raises(Killed), training(tmp_path / "m", 9, False, "k") as going:
        assert going.done == 2
        raise Killed
    (tmp_path / ".m.unfinished/checkpoint.pt").write_bytes(b"damaged")
    with training(tmp_path / "m", 9, False, "k") as going:
        assert going.done == 0, "one that cannot be read is none"


def test_a_second_kill_loses_no_line_of_the_curve(tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 2)
    for _ in range(2):
        with pytest.raises(Killed), training(tmp_path / "m", 9, False, "k") as going:
            going.begin({"model": (module, Optimizer(module, Optimisation(steps=9)))})
            if not going.done:
                going.take_step(1, module(torch.ones(1, 2)).sum(), tokens=1, lr=0.1)
                going.state.save(1)
            (line,) = (going.folder / "training.jsonl").read_text().splitlines()
            raise Killed
    assert json.loads(line)["step"] == 1
    (going.folder / "training.jsonl").unlink()
    with training(tmp_path / "m", 9, False, "k") as going:
        assert going.done == 1, "weights without their curve go on too"


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


def test_requests_that_are_all_too_long_are_said_before_anything_is_written(taught: Taught, tmp_path: Path) -> None:
    recipe, pair = taught
    recipe = recipe.model_copy(update={"text": recipe.text.model_copy(update={"sequence": 8})})
    with pytest.raises(TrainingError, match=r"no train request is left. .* at most 4 tokens \(half of training\.text"):
        write_text(recipe, tmp_path, pair / "target")
    assert not (tmp_path / TEXT).exists()


def test_texts_that_the_target_cannot_read_are_said_before_anything_is_written(taught: Taught, tmp_path: Path) -> None:
    recipe, pair = taught
    recipe = recipe.model_copy(update={"text": recipe.text.model_copy(update={"sequence": 1025})})
    with pytest.raises(TrainingError, match=r"has 1024 positions, training\.text\.sequence is 1025; lower it"):
        write_text(recipe, tmp_path, pair / "target")
    assert not list(tmp_path.iterdir())


def test_nothing_to_learn_from_is_said_at_once(taught: Taught, tmp_path: Path) -> None:
    recipe, pair = taught
    tensors = load_file(pair / TEXT)
    none = {name: tensors[name][:0].contiguous() for name in tensors if name.startswith("train.")}
    save_file(tensors | none, tmp_path / TEXT)
    with pytest.raises(TrainingError, match=r"nothing to learn from: raise training\.text\.sequences"):
        fit("medusa", recipe, tmp_path, pair / "target", progress=False)


def test_a_full_gpu_says_what_to_lower(taught: Taught, monkeypatch: pytest.MonkeyPatch) -> None:
    message = r"eagle: the GPU's memory is full \(CUDA out of memory\); lower its batch"
    with pytest.raises(TrainingError, match=message), within_memory("eagle"):
        raise torch.OutOfMemoryError("CUDA out of memory\nand more")

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("specrig.training.fit.load_teacher", full)
    with pytest.raises(TrainingError, match="medusa: the GPU's memory is full"):
        fit("medusa", taught[0], taught[1], taught[1] / "target", progress=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named(taught: Taught, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"PyTorch sees no GPU here; set `device: cpu`"):
        write_text(taught[0], tmp_path, taught[1] / "target", device="cuda")
    assert not list(tmp_path.iterdir())


def test_writing_side_by_side_changes_no_greedy_text(taught: Taught, tmp_path: Path) -> None:
    recipe, pair = taught
    found = []
    for batch in (1, 5):
        text = recipe.text.model_copy(update={"temperatures": (0.0,), "batch": batch, "sequence": 64})
        write_text(recipe.model_copy(update={"text": text}), tmp_path / str(batch), pair / "target")
        found.append(read_text(tmp_path / str(batch)).train.tokens)
    assert found[0].shape == found[1].shape and len(found[0]) > 2
    assert (found[0] == found[1]).float().mean() > 0.9  # sums of another shape may break ties differently


def test_a_draft_without_a_target_or_its_text_is_refused(taught: Taught, tmp_path: Path) -> None:
    recipe, pair = taught
    with pytest.raises(TrainingError, match="no trained target there"):
        train_draft(recipe, tmp_path, tmp_path / "target", progress=False)
    with pytest.raises(TrainingError, match="write it first with `specrig stage write-text`"):
        train_draft(recipe, tmp_path, pair / "target", progress=False)


def test_what_the_target_writes(taught: Taught) -> None:
    recipe, pair = taught
    text, settings = read_text(pair), recipe.text
    assert text.train.tokens.shape == (settings.sequences, settings.sequence + 1)
    assert text.heldout.tokens.shape == (settings.heldout_sequences, settings.sequence + 1)
    tokenizer = AutoTokenizer.from_pretrained(pair / "target")
    for tokens, written in zip(text.heldout.tokens, text.heldout.written, strict=True):
        first = int(written.int().argmax())
        prompt = tokenizer.decode(tokens[:first])
        assert prompt.startswith("<|user|>") and prompt.endswith("<|endoftext|><|assistant|>")
        answer = tokens[written].tolist()
        assert (
            written[first : first + len(answer)].all()
            and 0 not in answer[:-1]
            and (tokens[first + len(answer) :] == 0).all()
        )
    asked = [
        {
            tuple(tokens[: int(written.int().argmax())].tolist())
            for tokens, written in zip(part.tokens, part.written, strict=True)
        }
        for part in (text.train, text.heldout)
    ]
    assert not asked[0] & asked[1], "other prompts are held out"


@pytest.mark.parametrize("damage", ["empty", "cut", "a tensor missing", "another type"])
def test_a_damaged_text_of_the_target_is_named(taught: Taught, tmp_path: Path, damage: str) -> None:
    whole, file = taught[1] / TEXT, tmp_path / TEXT
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


@pytest.mark.parametrize("damage", [b'{"number": "co"}\n', b"[]\n", b"\xff\xfe\n", b"[" * 100_000 + b"\n"])
def test_a_damaged_file_of_the_targets_text_is_named(taught: Taught, tmp_path: Path, damage: bytes) -> None:
    recipe, pair = taught
    (whole,) = (pair / "text").glob("*.jsonl")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / whole.name).write_bytes(damage + whole.read_bytes())
    with pytest.raises(TrainingError, match=rf"{whole.name}:1: not a text that a target wrote .* delete the file"):
        write_text(recipe, tmp_path, pair / "target")


def test_the_default_recipe_asks_the_target_itself_and_refuses_nonsense() -> None:
    recipe = Recipe()
    assert [source.source for source in recipe.prompts] == ["self"]
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe
    several = Recipe.model_validate({"prompts": ["self", {"source": "owner/name", "split": "test"}, "mine.jsonl"]})
    assert [source.kind for source in several.prompts] == ["self", "hub", "file"]
    for wrong, says in (
        ({"promps": "self"}, "Extra inputs"),
        ({"draft": {"layers": 2, "hidden": 100, "heads": 3, "intermediate": 64}}, "heads 3 times an even head size"),
        ({"prompts": []}, "at least 1 item"),
    ):
        with pytest.raises(ValidationError, match=says):
            Recipe.model_validate(wrong)


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
@pytest.mark.parametrize("kl_weight", [0.0, 0.7, 1.0])
def test_losses_by_rows_have_the_values_and_gradients_of_the_plain_ones(kl_weight: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(650, 50, generator=generator)).requires_grad_()
    goal, labels = torch.randn(650, 50, generator=generator), torch.randint(0, 50, (650,), generator=generator)
    log_probabilities, taught = logits.log_softmax(-1), goal.log_softmax(-1)
    divergence = F.kl_div(log_probabilities, taught, reduction="batchmean", log_target=True)
    plain = kl_weight * divergence + (1 - kl_weight) * F.nll_loss(log_probabilities, labels)
    lean = losses.distillation(logits, goal, labels, kl_weight)
    torch.testing.assert_close(lean, plain)
    torch.testing.assert_close(losses.cross_entropy(logits, labels), F.cross_entropy(logits, labels))
    (expected,) = torch.autograd.grad(2 * plain, logits)
    (found,) = torch.autograd.grad(2 * lean, logits)
    torch.testing.assert_close(found, expected)
