"""Training of the EAGLE head: it learns to continue the frozen target's features (Li et al., 2401.15077, section 4.2).

The loss of one step is the smooth-L1 distance between predicted and true features, plus a weighted KL divergence
between two distributions: the target's own, and the one that the target's LM head gives for the predicted feature. (The
paper has a cross-entropy, which differs from it by a constant.) With `rollout` > 1 the head takes further steps on the
features that it predicted itself, as it does when it drafts (HASS, 2408.15766; EAGLE-3, 2503.01840, "training-time
test"), and the losses are averaged over the steps. The target's features are computed once, before training.
Shapes: B sequences, T entries (tokens less one), D hidden, V vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specrig.heads import acceptance
from specrig.heads.acceptance import ahead
from specrig.heads.eagle import LayerHead
from specrig.heads.eagle import module as checkpoint
from specrig.heads.eagle.module import EagleLayers
from specrig.heads.learner import Learner, States, Texts
from specrig.heads.losses import distribution_loss
from specrig.heads.regression import Regression
from specrig.heads.teacher import Teacher, autocast, moved, rows_at_once
from specrig.heads.trained_layer import attend, layer_tensors, normal, queries_keys, tables, untrained_layer


class Divided(nn.Module):
    """`fc` while it learns: it divides each dimension that it reads by its size (`LayerLearner.prepare`), since auxiliary
    states have some of a hundred times the others'. A checkpoint's `fc` holds the division.
    """

    def __init__(self, product: nn.Linear) -> None:
        super().__init__()
        self.weight = product.weight
        self.scale: Tensor
        self.register_buffer("scale", torch.ones(product.in_features), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., R]` -> `[..., D]`."""
        return F.linear((x / self.scale).to(self.weight.dtype), self.weight)

    def stored(self) -> Tensor:
        """The weight for inputs that are not divided."""
        return self.weight / self.scale


class LayerLearner(Learner):
    """A head of decoder layers with the target's sizes."""

    module: EagleLayers

    def __init__(
        self, settings: LayerHead, model: Teacher, teacher: Teacher, vocabulary: Tensor | None, seed: int
    ) -> None:
        super().__init__(settings, model, teacher, vocabulary, seed)
        self.output = model.output.subset(None if vocabulary is None else vocabulary.to(model.where))
        self.layer_config = checkpoint.head_config(model.config)
        self.rotary = LlamaRotaryEmbedding(self.layer_config)

    @property
    def fc(self) -> Divided:
        """What makes features; at first the head is this alone."""
        assert isinstance(self.module.fc, Divided)
        return self.module.fc

    @abstractmethod
    def fuse(self, states: Tensor) -> Tensor:
        """The target's states `[B, T, ...]` -> true features `[B, T, D]`."""

    @abstractmethod
    def logits(self, predicted: Tensor) -> Tensor:
        """`[..., D]` -> `[..., Vd]`."""

    @abstractmethod
    def goal_scale(self) -> Tensor | float:
        """By what the target's final state is divided to be what the head predicts: `[D]` or a number."""

    def inputs(self, tokens: Tensor, states: Tensor) -> Tensor:
        """What `fc` reads of tokens t + 1 `[B, T]` and states t `[B, T, ...]`: `[B, T, R]`."""
        return states[..., : self.fc.weight.shape[1]]

    @torch.no_grad()
    def prepare(self, texts: Texts, states: States) -> None:
        """Divide what `fc` reads by its root mean square, and begin `fc` as the linear map that best predicts the
        target's next state from it (ridge regression).
        """
        fc = self.fc
        found = Regression(fc.weight.shape[1], fc.weight.shape[0], fc.weight.device)
        for rows in torch.arange(len(texts.tokens)).split(rows_at_once(self.model.where)):
            if found.enough:
                break
            read, tokens = states[rows], moved(texts.tokens[rows], self.model.where)
            trained = moved(trained_entries(Texts(texts.tokens[rows], texts.written[rows])), self.model.where)
            goals = read[:, 1:, -self.model.hidden :] / self.goal_scale()
            found.add(self.inputs(tokens[:, 1:], read[:, :-1])[trained], goals[trained])
        if solution := found.solution():
            fc.scale = solution[0]
            fc.weight.copy_(solution[1])

    def choice(self, predicted: Tensor) -> Tensor:
        """`[..., D]` -> the tokens that it would draft, `[...]`."""
        return self.named(self.logits(predicted))

    def named(self, logits: Tensor) -> Tensor:
        """`[..., Vd]` -> the most likely tokens, `[...]`."""
        ids = logits.argmax(-1)
        return ids if self.vocabulary is None else self.vocabulary.to(ids.device)[ids]

    def forward(self, embedded: Tensor, states: Tensor, steps: int, known: Tensor | None = None) -> Iterator[Tensor]:
        """Yield the predicted features `[B, T, D]` of each of `steps` steps, all positions at once.

        embedded: `[B, T, D]`, of tokens t + 1; states: `[B, T, ...]`, the target's at t. Step 0 reads the true
        features. In step j + 1 entry i reads what step j predicted at i - 1, and it attends as it does when drafting:
        to the true entries up to i - j - 1, then to one entry of each step up to its own. known: what step 0 predicts,
        where it is known already.
        """
        T, layer = embedded.shape[1], self.module.layers[0]
        at = tables(self.rotary, torch.arange(T, device=embedded.device))
        # Keys and values of all steps so far side by side, [B, (step + 1) · T, K, d]; `_visible` says who sees which.
        keys: list[Tensor] = []
        values: list[Tensor] = []

        def attention(qk: Tensor, v: Tensor) -> Tensor:
            q, k = queries_keys(qk, v, at)
            keys.append(k)
            values.append(v)
            step = len(keys) - 1
            return attend(q, torch.cat(keys, 1), torch.cat(values, 1), _visible(T, step, q.device) if step else None)

        features = incoming = self.fuse(states)
        for step in range(steps):
            x, reads = self.module.entry(embedded, incoming)
            if step or known is None:
                x = layer(x, attention, reads)
            else:
                qk, v = layer.project(x, reads)
                keys.append(queries_keys(qk, v, at)[1])
                values.append(v)
                x = known
            yield x
            # The next step reads each prediction one position later. Entry 0 has none before it and keeps its true
            # feature.
            incoming = torch.cat((features[:, :1].to(x.dtype), self.module.fed_back(x)[:, :-1]), 1)

    def unrolled(self, batch: Texts, states: Tensor, steps: int, decay: float, known: Tensor | None = None) -> Tensor:
        """The weighted mean over the steps of the distance of the distributions (`losses.distribution_loss`), each step
        `decay` times the one before. With a reduced vocabulary the target's distribution is renormalised over the tokens
        that the head knows. known: what step 0 predicts, `[B, T, D]`; then the mean is over the further steps alone.
        """
        model, trained = self.model, trained_entries(batch)
        with torch.no_grad(), autocast(model.where):
            likely = self.output(states[:, 1:, -model.hidden :][trained])
            embedded = F.embedding(batch.tokens[:, 1:], model.embedding)
        total, weight, weights = torch.zeros((), device=model.where), 1.0, 0.0
        with autocast(model.where):
            further = islice(self(embedded, states[:, :-1], steps, known), 0 if known is None else 1, None)
            for predicted in further:
                loss = distribution_loss(self.logits(predicted[trained]), likely, self.settings.loss)
                total = total + weight * loss
                weights += weight
                weight *= decay
        return total / weights

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
        evaluated = acceptance.rounds(heldout.written[:, 1:], acceptance.DEPTH)
        return torch.stack([ahead(torch.cat(parts), step) for step, parts in enumerate(right)]), evaluated

    @torch.no_grad()
    def restore(self, found: dict[str, Tensor]) -> None:
        """See `Learner`; `fc` reads what is divided."""
        super().restore(found)
        self.fc.weight.copy_(found["fc.weight"].to(self.fc.weight.device) * self.fc.scale)


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

    def __init__(
        self, settings: LayerHead, model: Teacher, teacher: Teacher, vocabulary: Tensor | None, seed: int
    ) -> None:
        super().__init__(settings, model, teacher, vocabulary, seed)
        generator, D, config = torch.Generator().manual_seed(seed), model.hidden, self.layer_config
        fc = Divided(normal(D, 2 * D, generator))
        self.module = EagleLayers(fc, [untrained_layer(config, D, generator)], config.rms_norm_eps)

    def fuse(self, states: Tensor) -> Tensor:
        """The final states are the features."""
        return states

    def inputs(self, tokens: Tensor, states: Tensor) -> Tensor:
        """The token's embedding and the feature."""
        return self.module.joined(F.embedding(tokens, self.model.embedding).to(states.dtype), states)

    def goal_scale(self) -> Tensor | float:
        """It predicts the final state itself."""
        return 1.0

    def logits(self, predicted: Tensor) -> Tensor:
        """The target's own LM head reads the predicted features."""
        return self.output(self.module.read_out(predicted))

    def loss(self, batch: Texts, states: Tensor, teacher_states: Tensor) -> Tensor:
        """Mean over the steps of feature_weight x smooth-L1 + logits_weight x distance of the distributions
        (`losses.distribution_loss`); see the module.
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
                total = total + settings.logits_weight * distribution_loss(self.logits(found), likely, settings.loss)
        return total / settings.rollout

    def tensors(self) -> dict[str, Tensor]:
        """See `Learner`."""
        return {"fc.weight": self.fc.stored()} | layer_tensors(self.module.layers[0], "layers.0")

    def save(self, folder: Path) -> None:
        """See `Learner`."""
        checkpoint.save(folder, checkpoint.head_config(self.model.config, self.vocabulary), self.tensors())
