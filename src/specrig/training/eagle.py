"""Training of the EAGLE head: it learns to continue the frozen target's features (Li et al., 2401.15077, section 4.2).

The loss of one step is the smooth-L1 distance between predicted and true features, plus a weighted KL divergence between two
distributions: the target's own, and the one that the target's LM head gives for the predicted feature. (The paper has a cross-entropy,
which differs from it by a constant.) With `rollout` > 1 the head takes further steps on the features that it predicted itself, as it
does when it drafts (HASS, 2408.15766; EAGLE-3, 2503.01840, "training-time test"), and the losses are averaged over the steps. The
target's features are computed once, before training.
Shapes: B sequences, T entries (tokens less one), D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name
from transformers import LlamaConfig

from specrig.decoding.heads import eagle as checkpoint
from specrig.training import llama
from specrig.training.eagle_recipe import EagleTraining, HeadTraining
from specrig.training.llama import EPSILON, Llama, rotate
from specrig.training.losses import distillation
from specrig.training.optimizer import Optimizer
from specrig.training.recipe import Optimisation, Recipe
from specrig.training.run import training
from specrig.training.target_text import learnt_from, present, read_text, row_batches, states, with_corpus
from specrig.training.tokenizer import end_of_text, load_tokenizer
from specrig.training.trainer import autocast, moved, place


class Layer(nn.Module):
    """The head while it trains. Query, key and value are one matrix, gate and up are one matrix; the optimiser splits them by name."""

    streams: tuple[int, ...] = ()
    """Residual streams of the target that the head reads besides its final state (see `Llama.forward`)."""

    def __init__(self, target: Llama) -> None:
        super().__init__()
        D, intermediate = target.shape.hidden, target.shape.intermediate
        self.heads, self.head_size = target.shape.heads, D // target.shape.heads
        self.fc = nn.Parameter(torch.empty(D, 2 * D))
        self.qkv = nn.Parameter(torch.empty(3 * D, D))
        self.out = nn.Parameter(torch.zeros(D, D))
        self.mlp_norm = nn.Parameter(torch.ones(D))
        self.gate_up = nn.Parameter(torch.empty(2 * intermediate, D))
        self.down = nn.Parameter(torch.zeros(D, intermediate))

    def initialise(self, seed: int) -> Layer:
        """Draw the weights: normal matrices of deviation 1/sqrt(width). Output matrices stay zero, so at first the head is `fc` alone."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for matrix in (self.fc, self.qkv, self.gate_up):
                matrix.copy_(torch.randn(matrix.shape, generator=generator) * matrix.shape[1] ** -0.5)
        return self

    def fuse(self, states: Tensor) -> Tensor:
        """The target's states `[B, T, ...]` -> true features `[B, T, D]`."""
        return states

    def enter(self, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's residual stream `[B, T, D]`, and what its attention reads."""
        x = F.linear(torch.cat((embedded, features.to(embedded.dtype)), -1), self.fc)
        return x, x

    def logits(self, predicted: Tensor, target: Llama) -> Tensor:
        """`[..., D]` -> `[..., V]`: the target's own LM head reads the predicted features."""
        return target.logits(predicted)

    def forward(self, embedded: Tensor, states: Tensor, steps: int, cos: Tensor, sin: Tensor) -> Iterator[Tensor]:
        """Yield the predicted features `[B, T, D]` of each of `steps` steps, all positions at once.

        embedded: `[B, T, D]`, of tokens t + 1; states: `[B, T, ...]`, the target's at t. Step 0 reads the true features. In step j + 1
        entry i reads what step j predicted at i - 1, and it attends as it does when drafting: to the true entries up to i - j - 1, then
        to one entry of each step up to its own.
        """
        B, T, D = embedded.shape
        keys: list[Tensor] = []
        values: list[Tensor] = []
        features = incoming = self.fuse(states)
        for step in range(steps):
            # x: the residual stream [B, T, D]; reads: what attention projects.
            x, reads = self.enter(embedded, incoming)
            q, k, v = F.linear(reads, self.qkv).view(B, T, 3, self.heads, self.head_size).permute(2, 0, 3, 1, 4)
            # Keys and values of all steps so far side by side, [B, heads, (step + 1) · T, head size]; `_visible` says who sees which.
            keys.append(rotate(k, cos, sin))
            values.append(v)
            mask = _visible(T, step, x.device) if step else None
            mixed = F.scaled_dot_product_attention(
                rotate(q, cos, sin), torch.cat(keys, 2), torch.cat(values, 2), attn_mask=mask, is_causal=step == 0
            )
            x = x + F.linear(mixed.transpose(1, 2).reshape(B, T, D), self.out)
            gate, up = F.linear(F.rms_norm(x, (D,), self.mlp_norm, EPSILON), self.gate_up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, self.down)
            yield x
            # The next step reads each prediction one position later. Entry 0 has none before it and keeps its true feature.
            incoming = torch.cat((features[:, :1].to(x.dtype), x[:, :-1]), 1)

    def save(self, folder: Path, target: LlamaConfig) -> None:
        """Write the checkpoint of a head for a target with this configuration."""
        checkpoint.save(folder, checkpoint.head_config(target), self.tensors())

    def tensors(self) -> dict[str, Tensor]:
        """The weights under the checkpoint's names."""
        return self._layer_tensors("layers.0")

    def _layer_tensors(self, name: str) -> dict[str, Tensor]:
        q, k, v = self.qkv.chunk(3)
        gate, up = self.gate_up.chunk(2)
        return {
            "fc.weight": self.fc,
            f"{name}.self_attn.q_proj.weight": q,
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
    """Which entries of steps 0 .. `step` entry i of `step` attends to: `[T, (step + 1) * T]` bool, a block of T columns a step."""
    # Step 0: true entries, up to i - step. Each step in between: the one entry that lies on i's own path of predictions. Last: itself.
    blocks = [torch.ones(T, T, dtype=torch.bool, device=where).tril(-step)]
    blocks += [torch.ones(T - back, dtype=torch.bool, device=where).diag(-back) for back in range(step - 1, 0, -1)]
    return torch.cat([*blocks, torch.eye(T, dtype=torch.bool, device=where)], 1)


def head_loss(
    head: Layer, target: Llama, tokens: Tensor, hidden: Tensor, settings: EagleTraining, generator: torch.Generator
) -> Tensor:
    """Mean over the steps of feature_weight x smooth-L1 + logits_weight x KL divergence.

    tokens: `[B, T + 1]`; hidden: `[B, T + 1, D]`, the target's features of them. Both on the target's device.
    """
    where = target.embedding.device
    with torch.no_grad(), autocast(where):
        # What the head is to predict at t: the target's feature and distribution at t + 1. What it reads: token t + 1, feature t.
        goals = hidden[:, 1:].float()
        likely = target.logits(hidden[:, 1:]).flatten(0, 1)
        embedded = F.embedding(tokens[:, 1:], target.embedding)
        fed = hidden[:, :-1].float()
        # Noise makes the head robust against its own errors (2401.15077, section 4.2).
        fed = fed + (torch.rand(fed.shape, generator=generator, device=where) * 2 - 1) * settings.noise
    T = embedded.shape[1]
    unused = torch.zeros(len(likely), dtype=torch.int64, device=where)  # labels, of no weight
    total = torch.zeros((), device=where)
    with autocast(where):
        for predicted in head(embedded, fed, settings.rollout, target.cos[:T], target.sin[:T]):
            # The two losses of the module's docstring; each step weighs the same.
            total = total + settings.feature_weight * F.smooth_l1_loss(predicted.float(), goals)
            logits = target.logits(predicted).flatten(0, 1)
            total = total + settings.logits_weight * distillation(logits, likely, unused, 1.0)
    return total / settings.rollout


@torch.no_grad()
def agreement(head: Layer, target: Llama, texts: Tensor, counted: Tensor, depth: int) -> list[float]:
    """Share of tokens on which head and target have the same first choice, for each number of steps up to `depth`.

    texts: `[N, T + 1]`; counted: `[N, T + 1]` bool, which positions' choices count. On text that the target wrote greedily this is
    the acceptance of the draft's token at that depth, given that those before were accepted.
    """
    where = target.embedding.device
    texts, T = texts.to(where), texts.shape[1] - 1
    same, wanted = [0] * depth, counted[:, 1:].to(where)
    with autocast(where):
        # The target's first choice at every position but the first, [N, T], against the head's after 1, 2, … steps.
        states = target(texts, head.streams)
        choices = target.logits(states[:, 1:, -target.shape.hidden :]).argmax(-1)
        embedded = F.embedding(texts[:, 1:], target.embedding)
        for index, predicted in enumerate(head(embedded, states[:, :-1], depth, target.cos[:T], target.sin[:T])):
            same[index] = int(((head.logits(predicted, target).argmax(-1) == choices) & wanted).sum())
    return [round(count / max(1, int(wanted.sum())), 4) for count in same]


@dataclass(frozen=True, slots=True)
class HeadKind(Generic[Head, Settings]):
    """What differs between the trainings of two kinds of head: everything else is `fit`'s."""

    name: str
    """The head's folder beside the target's, and its name in a pair."""
    settings: Settings
    make: Callable[[Llama], Head]
    """An untrained head for a target."""
    loss_of: Callable[[Head, Llama, Tensor, Tensor, Settings, torch.Generator], Tensor]
    """Of (head, target, tokens `[B, T + 1]`, the target's states of them, settings, generator of noise): the loss, one number."""


def train_head(recipe: Recipe, corpus_dir: Path, models: Path, target: Path, progress: bool, device: str = "cpu") -> None:
    """Train an EAGLE head for the model in `target` and write the folder `models`/eagle: see `fit`."""
    fit(HeadKind("eagle", recipe.eagle, Layer, head_loss), recipe, corpus_dir, models, target, progress=progress, device=device)


def fit(
    kind: HeadKind[Head, Settings], recipe: Recipe, corpus_dir: Path, models: Path, target: Path, *, progress: bool, device: str
) -> None:
    """Train a head of this kind for the model in `target` and write `models`/`kind.name` (config.json, model.safetensors).

    Also writes its `training.jsonl`: the loss, and at the end the agreement with the target by depth. Raises CorpusError for a
    missing corpus, TrainingError when there is no target or no text of it, or the loss is not finite.
    """
    settings = kind.settings
    target, text, where = present(target, "target"), read_text(models), place(device)
    tokenizer = load_tokenizer(target)
    teacher = llama.load(target).to(where).eval().requires_grad_(False)
    head = kind.make(teacher)
    head.initialise(recipe.seed + 3).to(where)
    schedule = Optimisation(steps=settings.steps, batch=settings.batch, lr=settings.lr, matrix_lr=settings.matrix_lr)
    optimizer = Optimizer(head, schedule)
    generator = torch.Generator(where).manual_seed(recipe.seed + 3)
    with training(models / kind.name, settings.steps, progress, learnt_from(recipe, corpus_dir, models, target)) as run:
        run.begin({"head": (head, optimizer)}, [generator])
        texts = moved(with_corpus(text.train, settings.corpus_sequences, corpus_dir, tokenizer, recipe.seed + 3), where)
        hidden = states(teacher, texts, head.streams)  # once: a step then costs the head alone
        batches = row_batches(len(texts), settings.batch, recipe.seed + 4)
        for step, rows in islice(enumerate(batches, 1), run.done, settings.steps):
            rows = moved(rows, where)
            tokens = texts[rows]
            loss = kind.loss_of(head, teacher, tokens, hidden[rows], settings, generator)
            run.take_step(step, [loss], tokens=step * tokens.numel(), lr=settings.lr)
        # The choice after the end of the text is never drafted.
        counted = text.written & (text.heldout != end_of_text(tokenizer))
        shares = agreement(head, teacher, text.heldout, counted, depth=5)
        run.curve.write(settings.steps, agreement=shares)
        run.curve.say(
            f"first choice the target's at depth 1 to 5, held-out prompts: {', '.join(f'{share:.3f}' for share in shares)}"
        )
        head.save(run.folder, LlamaConfig.from_pretrained(target))
