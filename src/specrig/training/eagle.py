"""Training of the EAGLE head: it learns to continue the frozen target's features (Li et al., 2401.15077, section 4.2).

The loss of one step is the smooth-L1 distance between predicted and true features, plus a weighted KL divergence
between two
distributions: the target's own, and the one that the target's LM head gives for the predicted feature. (The paper has a
cross-entropy, which differs from it by a constant.) With `rollout` > 1 the head takes further steps on the features
that it predicted itself, as it does when it drafts (HASS, 2408.15766; EAGLE-3, 2503.01840, "training-time test"), and
the losses are averaged over the steps. The target's features are computed once, before training.
Shapes: B sequences, T entries (tokens less one), D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specrig.heads import eagle as checkpoint
from specrig.training import acceptance, teacher
from specrig.training.acceptance import ahead
from specrig.training.eagle_recipe import EagleTraining, HeadTraining
from specrig.training.llama import rotate
from specrig.training.losses import likeness
from specrig.training.optimizer import Optimizer
from specrig.training.recipe import Optimisation, Recipe
from specrig.training.run import training
from specrig.training.states import StoredStates
from specrig.training.target_text import Texts, frequent, learnt_from, present, read_text, row_batches, with_corpus
from specrig.training.teacher import Teacher
from specrig.training.trainer import autocast, moved, place, rows_at_once


class Layer(nn.Module):
    """The head while it trains, of the target's sizes. Keys and values are one matrix, gate and up are one matrix; the
    optimiser splits them by name.
    """

    streams: tuple[int, ...] = ()
    """Residual streams of the target that the head reads besides its final state (see `Teacher.states`)."""

    def __init__(self, target: Teacher, drafted: Tensor | None = None) -> None:
        """drafted: `[Vd]` rising token ids that the head can draft; None: all."""
        super().__init__()
        config = checkpoint.head_config(target.config)
        D, self.heads, self.key_heads = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
        self.head_size, self.eps = config.head_dim, config.rms_norm_eps
        self.drafted = drafted
        self.output = target.output.among(None if drafted is None else drafted.to(target.where))
        self.rotary = LlamaRotaryEmbedding(config)
        reads = self.reads(D)
        self.fc = nn.Parameter(torch.empty(D, self.enters(D)))
        self.q = nn.Parameter(torch.empty(self.heads * self.head_size, reads))
        self.kv = nn.Parameter(torch.empty(2 * self.key_heads * self.head_size, reads))
        self.out = nn.Parameter(torch.zeros(D, self.heads * self.head_size))
        self.mlp_norm = nn.Parameter(torch.ones(D))
        self.gate_up = nn.Parameter(torch.empty(2 * config.intermediate_size, D))
        self.down = nn.Parameter(torch.zeros(D, config.intermediate_size))

    def enters(self, D: int) -> int:
        """Width of what `fc` reads: the token's embedding and the feature."""
        return 2 * D

    def reads(self, D: int) -> int:
        """Width of what attention reads."""
        return D

    def initialise(self, seed: int) -> Layer:
        """Draw the weights: normal matrices of deviation 1/sqrt(width). Output matrices stay zero, so at first the head
        is `fc` alone.
        """
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for matrix in (self.fc, self.q, self.kv, self.gate_up):
                matrix.copy_(torch.randn(matrix.shape, generator=generator) * matrix.shape[1] ** -0.5)
        return self

    def fuse(self, states: Tensor) -> Tensor:
        """The target's states `[B, T, ...]` -> true features `[B, T, D]`."""
        return states

    def enter(self, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's residual stream `[B, T, D]`, and what its attention reads."""
        x = F.linear(torch.cat((embedded, features.to(embedded.dtype)), -1), self.fc)
        return x, x

    def logits(self, predicted: Tensor) -> Tensor:
        """`[..., D]` -> `[..., Vd]`: the target's own LM head reads the predicted features."""
        return self.output(predicted)

    def choice(self, predicted: Tensor) -> Tensor:
        """`[..., D]` -> the tokens that it would draft, `[...]`."""
        place = self.logits(predicted).argmax(-1)
        return place if self.drafted is None else self.drafted.to(place.device)[place]

    def forward(self, embedded: Tensor, states: Tensor, steps: int) -> Iterator[Tensor]:
        """Yield the predicted features `[B, T, D]` of each of `steps` steps, all positions at once.

        embedded: `[B, T, D]`, of tokens t + 1; states: `[B, T, ...]`, the target's at t. Step 0 reads the true
        features. In step j + 1 entry i reads what step j predicted at i - 1, and it attends as it does when drafting:
        to the true entries up to i - j - 1, then to one entry of each step up to its own.
        """
        B, T, D = embedded.shape
        cos, sin = (table[0] for table in self.rotary(embedded, torch.arange(T, device=embedded.device).unsqueeze(0)))
        keys: list[Tensor] = []
        values: list[Tensor] = []
        features = incoming = self.fuse(states)
        shared = self.heads // self.key_heads
        for step in range(steps):
            # x: the residual stream [B, T, D]; read: what attention projects.
            x, read = self.enter(embedded, incoming)
            q = F.linear(read, self.q).view(B, T, self.heads, self.head_size).transpose(1, 2)
            k, v = F.linear(read, self.kv).view(B, T, 2, self.key_heads, self.head_size).permute(2, 0, 3, 1, 4)
            # Keys and values of all steps so far side by side, [B, heads, (step + 1) · T, head size]; `_visible` says
            # who sees which.
            keys.append(rotate(k, cos, sin).repeat_interleave(shared, 1))
            values.append(v.repeat_interleave(shared, 1))
            mask = _visible(T, step, x.device) if step else None
            mixed = F.scaled_dot_product_attention(
                rotate(q, cos, sin), torch.cat(keys, 2), torch.cat(values, 2), attn_mask=mask, is_causal=step == 0
            )
            x = x + F.linear(mixed.transpose(1, 2).reshape(B, T, self.heads * self.head_size), self.out)
            gate, up = F.linear(F.rms_norm(x, (D,), self.mlp_norm, self.eps), self.gate_up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, self.down)
            yield x
            # The next step reads each prediction one position later. Entry 0 has none before it and keeps its true
            # feature.
            incoming = torch.cat((features[:, :1].to(x.dtype), x[:, :-1]), 1)

    def save(self, folder: Path, target: Any) -> None:
        """Write the checkpoint of a head for a target with this configuration."""
        checkpoint.save(folder, checkpoint.head_config(target, self.drafted), self.tensors())

    def tensors(self) -> dict[str, Tensor]:
        """The weights under the checkpoint's names."""
        return self._layer_tensors("layers.0")

    def _layer_tensors(self, name: str) -> dict[str, Tensor]:
        k, v = self.kv.chunk(2)
        gate, up = self.gate_up.chunk(2)
        return {
            "fc.weight": self.fc,
            f"{name}.self_attn.q_proj.weight": self.q,
            f"{name}.self_attn.k_proj.weight": k,
            f"{name}.self_attn.v_proj.weight": v,
            f"{name}.self_attn.o_proj.weight": self.out,
            f"{name}.mlp.gate_proj.weight": gate,
            f"{name}.mlp.up_proj.weight": up,
            f"{name}.mlp.down_proj.weight": self.down,
            f"{name}.post_attention_layernorm.weight": self.mlp_norm,
        }


Head = TypeVar("Head", bound=Layer)
Settings = TypeVar("Settings", bound=HeadTraining)


def _visible(T: int, step: int, where: torch.device) -> Tensor:
    """Which entries of steps 0 .. `step` entry i of `step` attends to: `[T, (step + 1) * T]` bool, a block of T columns
    a step.
    """
    # Step 0: true entries, up to i - step. Each step in between: the one entry that lies on i's own path of
    # predictions. Last: itself.
    blocks = [torch.ones(T, T, dtype=torch.bool, device=where).tril(-step)]
    blocks += [torch.ones(T - back, dtype=torch.bool, device=where).diag(-back) for back in range(step - 1, 0, -1)]
    return torch.cat([*blocks, torch.eye(T, dtype=torch.bool, device=where)], 1)


def head_loss(
    head: Layer, target: Teacher, batch: Texts, hidden: Tensor, settings: EagleTraining, generator: torch.Generator
) -> Tensor:
    """Mean over the steps of feature_weight x smooth-L1 + logits_weight x distance of the distributions
    (`losses.likeness`).

    batch: B texts of T + 1 tokens; hidden: `[B, T + 1, D]`, the target's features of them. Both on the target's device.
    Only what the
    target wrote is learnt: those are the places at which the head will draft.
    """
    wanted = learnt(batch)
    with torch.no_grad(), autocast(target.where):
        # What the head is to predict at t: the target's feature and distribution at t + 1. What it reads: token t + 1,
        # feature t.
        goals = hidden[:, 1:][wanted]
        likely = head.output(goals)
        embedded = F.embedding(batch.tokens[:, 1:], target.embedding)
        fed = hidden[:, :-1].float()
        # Noise makes the head robust against its own errors (2401.15077, section 4.2).
        fed = fed + (torch.rand(fed.shape, generator=generator, device=target.where) * 2 - 1) * settings.noise
    total = torch.zeros((), device=target.where)
    with autocast(target.where):
        for predicted in head(embedded, fed, settings.rollout):
            # The two losses of the module's docstring; each step weighs the same.
            found = predicted[wanted]
            total = total + settings.feature_weight * F.smooth_l1_loss(found.float(), goals.float())
            total = total + settings.logits_weight * likeness(head.logits(found), likely, settings.loss)
    return total / settings.rollout


def learnt(batch: Texts) -> Tensor:
    """Which entries learn, `[B, T]` bool: entry t predicts token t + 2, and the target wrote that."""
    return F.pad(batch.written[:, 2:], (0, 1))


@torch.no_grad()
def measured(head: Layer, target: Teacher, heldout: Texts, states: Tensor | StoredStates) -> tuple[Tensor, Tensor]:
    """For `acceptance.report`, of texts that the target wrote greedily: which drafts are right, and which were asked
    for, `[K, N, T]`.

    states: the target's, of these texts and of the head's streams, `[N, T + 1, (F + 1) D]`.
    A round that begins at entry t drafts token t + 2 in its first step, t + 3 in the next from entry t + 1, and so on.
    """
    right: list[list[Tensor]] = [[] for _ in range(acceptance.DEPTH)]
    for numbers in torch.arange(len(heldout.tokens)).split(rows_at_once(target.where)):
        rows, given = moved(heldout.tokens[numbers], target.where), states[numbers]
        with autocast(target.where):
            embedded = F.embedding(rows[:, 1:], target.embedding)
            for step, predicted in enumerate(head(embedded, given[:, :-1], acceptance.DEPTH)):
                right[step].append((head.choice(predicted[:, :-1]) == rows[:, 2:]).cpu())
    choices = heldout.written
    asked = [ahead(choices[:, 2:], step) & choices[:, 1:-1] for step in range(acceptance.DEPTH)]
    return torch.stack([ahead(torch.cat(parts), step) for step, parts in enumerate(right)]), torch.stack(asked)


@dataclass(frozen=True, slots=True)
class HeadKind(Generic[Head, Settings]):
    """What differs between the trainings of two kinds of head: everything else is `fit`'s."""

    name: str
    """The head's folder beside the target's, and its name in a pair."""
    settings: Settings
    make: Callable[[Teacher, Tensor | None], Head]
    """An untrained head for a target, of some of its tokens."""
    loss_of: Callable[[Head, Teacher, Texts, Tensor, Settings, torch.Generator], Tensor]
    """Of (head, target, B texts of T + 1 tokens, the target's states of them, settings, generator of noise): the loss,
    one number.
    """


def train_head(
    recipe: Recipe, corpus_dir: Path, models: Path, target: Path, progress: bool, device: str = "cpu"
) -> None:
    """Train an EAGLE head for the model in `target` and write the folder `models`/eagle: see `fit`."""
    kind = HeadKind("eagle", recipe.eagle, Layer, head_loss)
    fit(kind, recipe, corpus_dir, models, target, progress=progress, device=device)


def fit(
    kind: HeadKind[Head, Settings],
    recipe: Recipe,
    corpus_dir: Path,
    models: Path,
    target: Path,
    *,
    progress: bool,
    device: str,
) -> None:
    """Train a head of this kind for the model in `target` and write `models`/`kind.name` (config.json,
    model.safetensors).

    Also writes its `training.jsonl`: the loss, and at every evaluation the acceptance to expect (`acceptance.report`).
    Raises CorpusError for a missing corpus, TrainingError when there is no target or no text of it, or the loss is not
    finite.
    """
    present(target, "target")
    settings, where, text = kind.settings, place(device), read_text(models)
    tutor = teacher.load(target, where)
    head = kind.make(tutor, frequent(text.train, settings.draft_vocabulary, tutor.vocabulary))
    head.initialise(recipe.seed + 3).to(where)
    schedule = Optimisation(steps=settings.steps, batch=settings.batch, lr=settings.lr, matrix_lr=settings.matrix_lr)
    optimizer = Optimizer(head, schedule)
    generator = torch.Generator(where).manual_seed(recipe.seed + 3)
    key = learnt_from(recipe, corpus_dir, models, target)
    with training(models / kind.name, settings.steps, progress, key) as run:
        run.begin({"head": (head, optimizer)}, [generator])
        texts = with_corpus(text.train, settings.corpus_sequences, corpus_dir, target, recipe.seed + 3)
        hidden = StoredStates(
            run.folder, target, tutor, texts.tokens, head.streams
        )  # once: a step then costs the head alone
        shown = StoredStates(run.folder, target, tutor, text.heldout.tokens, head.streams)
        batches = row_batches(len(texts.tokens), settings.batch, recipe.seed + 4)
        for step, rows in islice(enumerate(batches, 1), run.done, settings.steps):
            batch = Texts(moved(texts.tokens[rows], where), moved(texts.written[rows], where))
            loss = kind.loss_of(head, tutor, batch, hidden[rows], settings, generator)
            run.take_step(step, [loss], tokens=step * batch.tokens.numel(), lr=settings.lr)
            if step in settings.evaluated():
                found = acceptance.report(*measured(head, tutor, text.heldout, shown))
                run.curve.write(step, **found)
                run.curve.say(acceptance.told(found))
        head.save(run.folder, tutor.config)
