"""The one training of draft and heads: text, states, steps, evaluations, checkpoint. What differs is the `Learner`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from specrig import heads
from specrig.heads import acceptance
from specrig.heads.base import NeuralHead, TrainingError
from specrig.heads.checkpoint import drafted_tokens, read_head, reading
from specrig.heads.learner import Learner, States, Texts
from specrig.heads.teacher import Teacher, copy_tokenizer, end_tokens, load_teacher, moved
from specrig.runtime.types import DecodingError
from specrig.training.optimizer import Optimizer
from specrig.training.recipe import Optimisation, Recipe
from specrig.training.run import Curve, Run, model_folder, training, training_device, within_memory
from specrig.training.states import LiveStates, StoredStates, states_of
from specrig.training.target_text import (
    TargetText,
    frequent,
    present,
    read_text,
    row_batches,
    training_key,
)


def fit(
    name: str,
    recipe: Recipe,
    models: Path,
    target: Path,
    *,
    progress: bool,
    device: str = "cpu",
    draft: Path | None = None,
) -> None:
    """Make the head `name` (see `heads.trained`) of the model in `target` and write the folder `models`/`name`.

    Also writes its `training.jsonl`: the loss, and at every evaluation the acceptance to expect (`acceptance.report`).
    draft: the folder of the draft that gets a `draft_<name>`; None: `models`/draft. Raises TrainingError when
    there is no model or text, the model cannot have such a head, or the loss is not finite.
    """
    text, where, kind = read_text(models), training_device(device), heads.trained()[name]
    of = present(draft or models / "draft", "draft") if heads.of_draft(name) else target
    settings = recipe.head(kind.name)
    key = training_key(recipe, models, *dict.fromkeys((of, present(target, "target"), *recipe.initial(name))))
    try:
        if not isinstance(settings, NeuralHead):
            with training(models / name, 1, progress, key) as run:
                make = heads.part(name, "training").make
                make(settings, target, text.train, text.heldout, where, run.folder, run.curve)
            return
        named = f"training.{kind.name}.initial_checkpoint"
        initial = next((_initial(folder, name, named) for folder in recipe.initial(name)), None)
        with within_memory(name):
            teacher = load_teacher(target, where)
            model = teacher if of == target else load_teacher(of, where)
            vocabulary = frequent(text.train, settings.draft_vocabulary, model.vocabulary)
            if initial is not None:
                vocabulary = initial.vocabulary
            learner = heads.learner_class(name)(settings, model, teacher, vocabulary, recipe.seed + 3).to(model.where)
        with training(models / name, settings.steps, progress, key) as run:
            schedule = _schedule(settings, settings.steps, settings.lr, settings.matrix_lr)
            parts = {"head": (learner, Optimizer(learner, schedule, learner.outer()))}
            learn(learner, parts, Lesson(recipe, text, of, target, initial), run)
    except DecodingError as error:
        raise TrainingError(f"{target}: {error}") from error


@dataclass(frozen=True, slots=True)
class Initial:
    """The checkpoint from which a training goes on."""

    config: SimpleNamespace
    """The keys of its config.json."""
    tensors: dict[str, Tensor]
    vocabulary: Tensor | None
    """See `drafted_tokens`; the ids rise."""


def _initial(folder: Path, name: str, named: str) -> Initial:
    """The checkpoint of a head `name` in `folder`, without the tensors that decoding ignores too. named: what names the
    folder, for messages. Raises TrainingError where it holds none, or one whose drafted tokens do not rise.
    """
    try:
        with reading(folder, f"{heads.trained()[name].title} head"):
            config, tensors = read_head(folder, heads.trained()[name].name)
            drafted, keys = drafted_tokens(config, tensors), SimpleNamespace(**config)
    except DecodingError as error:
        raise TrainingError(f"{named}: {error}") from error
    if drafted is not None and bool((drafted.diff() <= 0).any()):
        raise TrainingError(
            f"{named}: {folder}: training cannot go on from it: the ids of its drafted tokens do not rise; sort them, and "
            "the rows of its LM head alike, or begin without initial_checkpoint"
        )
    return Initial(keys, {each: tensor for each, tensor in tensors.items() if each != "embed_tokens.weight"}, drafted)


def _schedule(settings: NeuralHead, steps: int, lr: float, matrix_lr: float) -> Optimisation:
    return Optimisation(steps=steps, batch=settings.batch, lr=lr, matrix_lr=matrix_lr)


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a head learns from."""

    recipe: Recipe
    text: TargetText
    of: Path
    """The folder of the model that gets the head."""
    target: Path
    """The folder of its teacher."""
    initial: Initial | None = None
    """The checkpoint from which the head goes on; None: it begins untrained."""


def learn(
    learner: Learner,
    parts: Mapping[str, tuple[nn.Module, Optimizer]],
    lesson: Lesson,
    run: Run,
    each_step: Callable[[int, int], None] | None = None,
) -> None:
    """Take the run's steps, less those that a cut training took before; measure the head and write its checkpoint.

    parts: what learns, see `checkpoint.State`. each_step: called between a step's loss and its update with (step,
    tokens seen). The head is also measured on the way where nothing but the head learns. Raises TrainingError where there
    is no text.
    """
    settings, seed, text, where = learner.settings, lesson.recipe.seed, lesson.text, learner.model.where
    texts = text.train
    if not len(texts.tokens):
        raise TrainingError("there is nothing to learn from: raise training.text.sequences")
    frozen = len(parts) == 1

    def stored(folder: Path, model: Teacher, read: Texts, aux_layers: tuple[int, ...] = ()) -> States:
        # A model that learns is taught by the states that it had before.
        made = states_of if frozen else StoredStates
        return made(run.folder, folder, model, read, aux_layers)

    reads = learner.teacher if learner.reads_teacher else learner.model
    folder = lesson.target if learner.reads_teacher else lesson.of
    states = stored(folder, reads, texts, learner.aux_layers)
    same_model, D = learner.teacher is reads, learner.teacher.hidden
    teacher_states = states if same_model else stored(lesson.target, learner.teacher, texts)
    heldout_states: States = LiveStates(reads, text.heldout.tokens, learner.aux_layers)
    if frozen:
        heldout_states = stored(folder, reads, text.heldout, learner.aux_layers)
        learner.prepare(texts, states)
    if lesson.initial is not None:
        _restore(learner, lesson.initial)

    def evaluate(step: int) -> None:
        found = acceptance.report(*learner.measured(text.heldout, heldout_states))
        run.curve.write(step, texts=step * settings.batch, **found)
        run.curve.log(acceptance.summary(found))

    run.begin(parts, [learner.generator])
    batches = row_batches(len(texts.tokens), settings.batch, seed + learner.order)
    for step, rows in islice(enumerate(batches, 1), run.done, run.curve.steps):
        batch = Texts(moved(texts.tokens[rows], where), moved(texts.written[rows], where))
        inputs = states[rows]
        loss = learner.loss(batch, inputs, inputs[..., -D:] if same_model else teacher_states[rows])
        if each_step:
            each_step(step, step * batch.tokens.numel())
        run.take_step(step, loss, tokens=step * batch.tokens.numel(), lr=settings.lr)
        if frozen and step in settings.evaluated() and step < settings.steps:
            evaluate(step)
        run.keep(step)
    evaluate(run.curve.steps)
    learner.save(run.folder)


def _restore(learner: Learner, initial: Initial) -> None:
    try:
        for key, (theirs, own) in learner.reading(initial.config).items():
            if theirs != own:
                raise TrainingError(f"its {key} is {theirs}, that of this training {own}")
        learner.restore(initial.tensors)
    except (TrainingError, DecodingError) as error:
        folder, name = learner.settings.initial_checkpoint, learner.settings.name
        fix = "name a head of the same kind, shape and target, or correct the block"
        raise TrainingError(f"{folder}: training.{name} cannot go on from it: {error}; {fix}") from error


def train_jointly(recipe: Recipe, base: Path, models: Path, target: Path, progress: bool, device: str = "cpu") -> None:
    """Medusa-2: train `target`, the target of the pair folder `base`, further, together with its heads; writes
    `models`/target and /medusa.

    The heads begin as `base`/medusa, which were trained alone, as in the paper's warm-up (2401.10774, section 2.2.2).
    The model and its optimiser need 12 bytes a weight besides its activations. Raises like `fit`.
    """
    text, where = read_text(base), training_device(device)
    settings = recipe.head("medusa")
    alone, joint = _initial(present(base / "medusa", "medusa"), "medusa", "heads to train jointly"), settings.joint
    with within_memory("medusa"):
        model = load_teacher(present(target, "target"), where, learns=True)
        made = heads.part("medusa", "joint").Joint
        learner: Any = made(settings, model, model, alone.vocabulary, recipe.seed + 3).to(model.where)
        learner.restore(alone.tensors)
    lesson = Lesson(recipe, text, target, target)
    key = training_key(recipe, base, target)
    with model_folder(models / "target") as folder, training(models / "medusa", joint.steps, progress, key) as run:
        # Beside the checkpoint, with which a training that was cut goes on.
        unfinished = run.folder / "target.jsonl"
        with Curve(unfinished, "target", joint.steps, False, run.done) as curve:
            run.curves.append(curve)
            model.model.requires_grad_(True)
            schedule = _schedule(settings, joint.steps, settings.lr, settings.matrix_lr)
            parts = {
                "heads": (learner, Optimizer(learner, schedule)),
                "model": (
                    model.model,
                    Optimizer(model.model, _schedule(settings, joint.steps, joint.lr, joint.matrix_lr), model.outer()),
                ),
            }
            learn(learner, parts, lesson, run, lambda step, tokens: curve.note(step, learner.own, tokens=tokens))
        model.model.generation_config.eos_token_id = list(end_tokens(target))  # loading leaves the settings out
        model.model.requires_grad_(False).save_pretrained(folder)
        copy_tokenizer(target, folder)
        unfinished.replace(folder / "training.jsonl")
