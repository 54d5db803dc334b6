"""Training of Medusa heads (Cai et al., 2401.10774, section 2.2): on a frozen model (Medusa-1) or together with it
(Medusa-2).

A frozen model's hidden states are computed once and the heads train on them, so a step costs the heads alone. The text
is part corpus, part what the target itself wrote. Shapes: N sequences, T tokens, D hidden, V vocabulary, K heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

from specrig.heads import medusa as checkpoint
from specrig.training import acceptance, teacher
from specrig.training.losses import distillation
from specrig.training.medusa_heads import Heads, heads_loss, measured, rank_accuracies
from specrig.training.optimizer import Optimizer
from specrig.training.recipe import Optimisation, Recipe
from specrig.training.run import Curve, Run, model_folder, training
from specrig.training.states import StoredStates
from specrig.training.target_text import Texts, frequent, learnt_from, present, read_text, row_batches, with_corpus
from specrig.training.teacher import Output, Teacher, copy_tokenizer
from specrig.training.trainer import autocast, moved, place


def train_heads(
    recipe: Recipe, corpus_dir: Path, models: Path, target: Path, progress: bool, device: str = "cpu"
) -> None:
    """Medusa-1: train heads on the frozen model in `target` and write the folder `models`/medusa (config.json,
    model.safetensors).

    Also writes its `training.jsonl`: the loss, and at the end how often each head's first choice is what the target
    says to held-out prompts. Raises CorpusError for a missing corpus, TrainingError when there is no model or text, or
    the loss is not finite.
    """
    _train_frozen(recipe, corpus_dir, models, target, of=target, name="medusa", progress=progress, device=device)


def train_draft_heads(
    recipe: Recipe,
    corpus_dir: Path,
    models: Path,
    target: Path,
    progress: bool,
    device: str = "cpu",
    draft: Path | None = None,
) -> None:
    """Train heads on the frozen draft in the folder `draft` (None: `models`/draft) and write `models`/draft_medusa.

    Their teacher is the target, which will verify them.
    """
    of = present(draft or models / "draft", "draft")
    _train_frozen(recipe, corpus_dir, models, target, of=of, name="draft_medusa", progress=progress, device=device)


def _train_frozen(
    recipe: Recipe, corpus_dir: Path, models: Path, target: Path, *, of: Path, name: str, progress: bool, device: str
) -> None:
    """Train heads on the frozen model in `of` and write them to `models`/`name`."""
    session = Session(recipe, corpus_dir, models, target, of, device)
    with training(models / name, session.settings.steps, progress, session.key) as run:
        heads = session.heads()
        session.fit(heads, run)
        session.finish(heads, run)


def train_jointly(
    recipe: Recipe, corpus_dir: Path, base: Path, models: Path, target: Path, progress: bool, device: str = "cpu"
) -> None:
    """Medusa-2: train `target`, the target of the pair folder `base`, further, together with its heads; writes
    `models`/target and /medusa.

    The heads begin as `base`/medusa, which were trained alone, as in the paper's warm-up (section 2.2.2). The model's
    own loss is its KL divergence from the model before this training, so that it changes little (self-distillation,
    section 2.3.2). The model and its optimiser need 12 bytes a weight besides its activations. Raises like
    `train_heads`.
    """
    steps = recipe.medusa.joint.steps
    session = Session(recipe, corpus_dir, base, target, target, device, learns=True)
    heads = session.heads()
    heads.restore(present(base / "medusa", "medusa"))
    with model_folder(models / "target") as folder, training(models / "medusa", steps, progress, session.key) as run:
        with Curve(folder / "training.jsonl", "target", steps, False) as own:
            session.fit_jointly(heads.to(session.where), own, run)
        session.finish(heads, run)
        session.model.model.save_pretrained(folder)
        copy_tokenizer(target, folder)


class Session:
    """What Medusa's trainings share: the models, the text, the two training loops, and the measuring.

    of: the folder of the model that gets heads, the target's own or a draft's. The teacher is always the target.
    """

    def __init__(
        self,
        recipe: Recipe,
        corpus_dir: Path,
        models: Path,
        target: Path,
        of: Path,
        device: str,
        *,
        learns: bool = False,
    ) -> None:
        present(target, "target")
        self.where, self.of, self.target = place(device), of, target
        self.recipe, self.settings, self.text = recipe, recipe.medusa, read_text(models)
        self.key = learnt_from(recipe, corpus_dir, models, *dict.fromkeys((of, target)))
        self.teacher = teacher.load(target, self.where, learns=learns)
        self.model = self.teacher if of == target else teacher.load(of, self.where)
        self.texts = with_corpus(self.text.train, self.settings.corpus_sequences, corpus_dir, target, recipe.seed + 3)

    def heads(self) -> Heads:
        """Untrained heads of the model."""
        drafted = frequent(self.text.train, self.settings.draft_vocabulary, self.model.vocabulary)
        return Heads(self.model, self.settings, drafted).to(self.where)

    def fit(self, heads: Heads, run: Run) -> None:
        """Train heads on the frozen model's hidden states."""
        settings = self.settings
        optimizer = Optimizer(heads, self._optimisation(settings.steps, settings.lr, settings.matrix_lr))
        run.begin({"heads": (heads, optimizer)})
        hidden = StoredStates(run.folder, self.of, self.model, self.texts.tokens)
        alike = self.teacher is self.model
        taught = hidden if alike else StoredStates(run.folder, self.target, self.teacher, self.texts.tokens)
        teaching = self._among(heads, self.teacher.output)
        shown = self._shown()
        for step, rows, batch in self._batches(run.done, settings.steps, self.recipe.seed + 5):
            given = hidden[rows]
            with autocast(self.where):
                goal = given if alike else taught[rows]
                loss = heads_loss(heads, heads.output, given, goal, teaching, batch, settings)
            run.take_step(step, [loss], tokens=step * batch.tokens.numel(), lr=settings.lr)
            if step in settings.evaluated() and step < settings.steps:
                run.curve.write(step, **acceptance.report(*measured(heads, *shown)))

    def fit_jointly(self, heads: Heads, own_curve: Curve, run: Run) -> None:
        """Train heads and model together. The teacher is the model before this training, by its LM head and stored
        hidden states.
        """
        settings, joint, model = self.settings, self.settings.joint, self.model
        taught = StoredStates(run.folder, self.of, model, self.texts.tokens)
        before = Output(model.output.weight.clone(), model.output.bias)
        teaching = self._among(heads, before)
        model.model.requires_grad_(True)
        optimizer = Optimizer(model.model, self._optimisation(joint.steps, joint.lr, joint.matrix_lr), model.outer())
        run.begin(
            {
                "heads": (heads, Optimizer(heads, self._optimisation(joint.steps, settings.lr, settings.matrix_lr))),
                "model": (model.model, optimizer),
            }
        )
        live = model.model.get_output_embeddings()
        for step, rows, batch in self._batches(run.done, joint.steps, self.recipe.seed + 6):
            goals = taught[rows]
            with autocast(self.where):
                hidden = model.forward(batch.tokens)
                said = F.pad(batch.written[:, 1:], (0, 1))
                with torch.no_grad():
                    goal = before(goals[said])  # the stored states through the LM head as it was before
                labels = batch.tokens.roll(-1, 1)[said]
                # The model's own loss, then the heads' beside it with weight lambda_0 (2401.10774, section 2.2.2).
                own = distillation(live(hidden[said]), goal, labels, settings.kl_weight)
                output = self._among(heads, Output(live.weight, live.bias))
                loss = own + joint.heads_weight * heads_loss(heads, output, hidden, goals, teaching, batch, settings)
            own_curve.note(step, own, tokens=step * batch.tokens.numel())
            run.take_step(step, [loss], tokens=step * batch.tokens.numel(), lr=settings.lr)
        model.model.requires_grad_(False)
        heads.output = self._among(heads, model.output)

    def finish(self, heads: Heads, run: Run) -> None:
        """Measure the heads and write their checkpoint."""
        shown = self._shown()
        first, *accuracy = rank_accuracies(heads, *shown)
        found = acceptance.report(*measured(heads, *shown))
        run.curve.write(run.curve.steps, accuracy=[shares[0] for shares in accuracy], **found)
        run.curve.say(acceptance.told(found))
        config = checkpoint.heads_config(
            hidden=self.model.hidden,
            vocabulary=self.model.vocabulary,
            heads=len(heads),
            drafted=None if heads.drafted is None else len(heads.drafted),
            shared=not self.settings.owns(len(heads.output.weight)),
            measured={"accuracy": accuracy, "first": first},
        )
        checkpoint.save(run.folder, config, heads.tensors())

    def _shown(self) -> tuple[Teacher, Texts, Tensor]:
        """What heads are measured on: the model, held-out texts, the model's states of them."""
        heldout = self.text.heldout
        return self.model, heldout, self.model.states_of(heldout.tokens)

    def _among(self, heads: Heads, output: Output) -> Output:
        return output.among(None if heads.drafted is None else heads.drafted.to(self.where))

    def _batches(self, done: int, steps: int, seed: int) -> Iterator[tuple[int, Tensor, Texts]]:
        """From the step after `done` on: its number, the texts' numbers, and the texts on the device."""
        batches = row_batches(len(self.texts.tokens), self.settings.batch, seed)
        for step, rows in islice(enumerate(batches, 1), done, steps):
            yield (
                step,
                rows,
                Texts(moved(self.texts.tokens[rows], self.where), moved(self.texts.written[rows], self.where)),
            )

    def _optimisation(self, steps: int, lr: float, matrix_lr: float) -> Optimisation:
        return Optimisation(steps=steps, batch=self.settings.batch, lr=lr, matrix_lr=matrix_lr)
