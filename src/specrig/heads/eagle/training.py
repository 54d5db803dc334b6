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

from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specrig.heads import acceptance
from specrig.heads.acceptance import ahead
from specrig.heads.eagle import Eagle, LayerHead
from specrig.heads.eagle import module as checkpoint
from specrig.heads.layer import rotate
from specrig.heads.learner import Learner, States, Texts
from specrig.heads.losses import likeness
from specrig.heads.teacher import Teacher, autocast, moved, rows_at_once


class LayerLearner(Learner):
    """A head of one decoder layer with the target's sizes. Keys and values are one matrix, gate and up are one matrix;
    the optimiser splits them by name.
    """

    def __init__(
        self, settings: LayerHead, model: Teacher, teacher: Teacher, vocabulary: Tensor | None, seed: int
    ) -> None:
        super().__init__(settings, model, teacher, vocabulary, seed)
        config = checkpoint.head_config(model.config)
        D, self.heads, self.key_heads = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
        self.head_size, self.eps = config.head_dim, config.rms_norm_eps
        self.output = model.output.subset(None if vocabulary is None else vocabulary.to(model.where))
        self.rotary = LlamaRotaryEmbedding(config)
        reads = self.reads(D)
        self.fc = nn.Parameter(torch.empty(D, self.enters(D)))
        self.q = nn.Parameter(torch.empty(self.heads * self.head_size, reads))
        self.kv = nn.Parameter(torch.empty(2 * self.key_heads * self.head_size, reads))
        self.out = nn.Parameter(torch.zeros(D, self.heads * self.head_size))
        self.mlp_norm = nn.Parameter(torch.ones(D))
        self.gate_up = nn.Parameter(torch.empty(2 * config.intermediate_size, D))
        self.down = nn.Parameter(torch.zeros(D, config.intermediate_size))
        # Normal matrices of deviation 1/sqrt(width). Output matrices stay zero, so at first the head is `fc` alone.
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for matrix in (self.fc, self.q, self.kv, self.gate_up):
                matrix.copy_(torch.randn(matrix.shape, generator=generator) * matrix.shape[1] ** -0.5)

    @abstractmethod
    def enters(self, D: int) -> int:
        """Width of what `fc` reads."""

    @abstractmethod
    def reads(self, D: int) -> int:
        """Width of what attention reads."""

    @abstractmethod
    def fuse(self, states: Tensor) -> Tensor:
        """The target's states `[B, T, ...]` -> true features `[B, T, D]`."""

    @abstractmethod
    def enter(self, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's residual stream `[B, T, D]`, and what its attention reads."""

    @abstractmethod
    def logits(self, predicted: Tensor) -> Tensor:
        """`[..., D]` -> `[..., Vd]`."""

    def choice(self, predicted: Tensor) -> Tensor:
        """`[..., D]` -> the tokens that it would draft, `[...]`."""
        ids = self.logits(predicted).argmax(-1)
        return ids if self.vocabulary is None else self.vocabulary.to(ids.device)[ids]

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

    @torch.no_grad()
    def measured(self, heldout: Texts, states: States) -> tuple[Tensor, Tensor]:
        """See `Learner`: a round that begins at entry t drafts token t + 2 in its first step, t + 3 in the next from
        entry t + 1, and so on.
        """
        right: list[list[Tensor]] = [[] for _ in range(acceptance.DEPTH)]
        for numbers in torch.arange(len(heldout.tokens)).split(rows_at_once(self.model.where)):
            rows = moved(heldout.tokens[numbers], self.model.where)
            with autocast(self.model.where):
                embedded = F.embedding(rows[:, 1:], self.model.embedding)
                for step, predicted in enumerate(self(embedded, states[numbers][:, :-1], acceptance.DEPTH)):
                    right[step].append((self.choice(predicted[:, :-1]) == rows[:, 2:]).cpu())
        choices = heldout.written
        evaluated = [ahead(choices[:, 2:], step) & choices[:, 1:-1] for step in range(acceptance.DEPTH)]
        return torch.stack([ahead(torch.cat(parts), step) for step, parts in enumerate(right)]), torch.stack(evaluated)

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """The weights under the checkpoint's names."""

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


def _visible(T: int, step: int, where: torch.device) -> Tensor:
    """Which entries of steps 0 .. `step` entry i of `step` attends to: `[T, (step + 1) * T]` bool, a block of T columns
    a step.
    """
    # Step 0: true entries, up to i - step. Each step in between: the one entry that lies on i's own path of
    # predictions. Last: itself.
    blocks = [torch.ones(T, T, dtype=torch.bool, device=where).tril(-step)]
    blocks += [torch.ones(T - back, dtype=torch.bool, device=where).diag(-back) for back in range(step - 1, 0, -1)]
    return torch.cat([*blocks, torch.eye(T, dtype=torch.bool, device=where)], 1)


def trained_entries(batch: Texts) -> Tensor:
    """Which entries are trained, `[B, T]` bool: entry t predicts token t + 2, and the target wrote that."""
    return F.pad(batch.written[:, 2:], (0, 1))


class EagleLearner(LayerLearner):
    """EAGLE's head, read out with the target's own LM head."""

    settings: Eagle

    def enters(self, D: int) -> int:
        """The token's embedding and the feature."""
        return 2 * D

    def reads(self, D: int) -> int:
        """The residual stream itself: there is no input norm."""
        return D

    def fuse(self, states: Tensor) -> Tensor:
        """The final states are the features."""
        return states

    def enter(self, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """See `LayerLearner`."""
        x = F.linear(torch.cat((embedded, features.to(embedded.dtype)), -1), self.fc)
        return x, x

    def logits(self, predicted: Tensor) -> Tensor:
        """The target's own LM head reads the predicted features."""
        return self.output(predicted)

    def loss(self, batch: Texts, states: Tensor, taught: Tensor) -> Tensor:
        """Mean over the steps of feature_weight x smooth-L1 + logits_weight x distance of the distributions
        (`losses.likeness`); see the module.
        """
        model, settings, trained = self.model, self.settings, trained_entries(batch)
        with torch.no_grad(), autocast(model.where):
            # What the head is to predict at t: the target's feature and distribution at t + 1. What it reads: token
            # t + 1, feature t.
            goals = states[:, 1:][trained]
            likely = self.output(goals)
            embedded = F.embedding(batch.tokens[:, 1:], model.embedding)
            fed = states[:, :-1].float()
            # Noise makes the head robust against its own errors (2401.15077, section 4.2).
            fed = fed + (torch.rand(fed.shape, generator=self.generator, device=model.where) * 2 - 1) * settings.noise
        total = torch.zeros((), device=model.where)
        with autocast(model.where):
            for predicted in self(embedded, fed, settings.rollout):
                found = predicted[trained]
                total = total + settings.feature_weight * F.smooth_l1_loss(found.float(), goals.float())
                total = total + settings.logits_weight * likeness(self.logits(found), likely, settings.loss)
        return total / settings.rollout

    def tensors(self) -> dict[str, Tensor]:
        """See `LayerLearner`."""
        return self._layer_tensors("layers.0")

    def save(self, folder: Path) -> None:
        """See `Learner`."""
        checkpoint.save(folder, checkpoint.head_config(self.model.config, self.vocabulary), self.tensors())
