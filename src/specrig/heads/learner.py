"""A head while it trains: what `training.fit` needs of it. Shapes: B texts, T tokens, N held-out texts, K depths."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from specrig.heads.base import NeuralHead, TrainingError
from specrig.heads.checkpoint import faults
from specrig.heads.teacher import Teacher


@dataclass(frozen=True, slots=True)
class Texts:
    """Sequences to learn from or to be measured on. Behind a text its row is filled up with an end token."""

    tokens: Tensor
    """`[N, T + 1]` int64."""
    written: Tensor
    """Which of them the target wrote, its end of the text included: `[N, T + 1]` bool."""

    def lengths(self) -> Tensor:
        """Tokens of each text up to the last one that the target wrote, one at least: `[N]`. What is behind is not
        learnt from.
        """
        positions = torch.arange(1, self.written.shape[1] + 1)
        return (self.written * positions).amax(1).clamp(min=1)


class States(Protocol):
    """A model's hidden states of some texts."""

    def __getitem__(self, rows: Tensor, /) -> Tensor:
        """Of the texts `rows` `[B]`: `[B, T + 1, (F + 1) D]`, the final state behind the F auxiliary ones."""


class Learner(nn.Module, ABC):
    """A head while it trains, made for one model. It starts from the same weights whenever its arguments are the same."""

    order: ClassVar[int] = 4
    """Added to the recipe's seed: in which order it sees the texts."""
    aux_layers: tuple[int, ...] = ()
    """The model's layers whose states it reads besides the final one."""
    reads_teacher: ClassVar[bool] = False
    """Whether `loss` and `measured` get the teacher's states instead of the model's."""
    settings: Any

    def __init__(
        self, settings: NeuralHead, model: Teacher, teacher: Teacher, vocabulary: Tensor | None, seed: int
    ) -> None:
        """model: the one that gets the head. teacher: the target, mostly the same. vocabulary: `[Vd]` rising ids of the
        tokens that can be drafted; None: all. seed: of its weights and its noise.
        """
        super().__init__()
        self.aux_layers = settings.aux_layers(model.layers)
        self.settings, self.model, self.teacher, self.vocabulary = settings, model, teacher, vocabulary
        self.generator = torch.Generator(model.where).manual_seed(seed)
        """Of random numbers in `loss`; a training that was cut goes on with its state."""

    def prepare(self, texts: Texts, states: States) -> None:
        """Start from better weights than random ones, from some of the training texts. It is called before the first
        step, and again before an interrupted training continues; the same arguments give the same start.
        """

    @abstractmethod
    def loss(self, batch: Texts, states: Tensor, teacher_states: Tensor) -> Tensor:
        """The loss of a batch, a scalar. batch: B texts of T + 1 tokens; states: the model's of them, `[B, T + 1, (F + 1)
        D]` (see `reads_teacher`); teacher_states: the teacher's, `[B, T + 1, D']`; all on the model's device. Only tokens
        that the target wrote count: only there will the head draft.
        """

    @abstractmethod
    def measured(self, heldout: Texts, states: States) -> tuple[Tensor, Tensor]:
        """For `acceptance.report`, of texts that the target wrote greedily: which drafts are right, and which are
        evaluated, `[K, N, T]` bool each.
        """

    def outer(self) -> Iterable[Tensor]:
        """Its matrices over the vocabulary that the optimiser does not know by name."""
        return ()

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """The weights under the checkpoint's names; a part of a fused matrix is a view of it."""

    def reading(self, config: Any) -> dict[str, tuple[Any, Any]]:
        """What decides how a checkpoint's weights read the target, besides their shapes: key of its config.json -> its
        value, and this head's. config: its config.json, with keys as attributes. Raises DecodingError for nonsense.
        """
        return {}

    def restore(self, found: dict[str, Tensor]) -> None:
        """Become the head of a checkpoint with these tensors. It is called after `prepare`.

        Raises TrainingError where the checkpoint has another shape.
        """
        own = self.tensors()
        if wrong := faults(found, {name: tuple(tensor.shape) for name, tensor in own.items()}):
            raise TrainingError(wrong)
        for name, tensor in own.items():
            if tensor.requires_grad:  # others are the model's own
                tensor.detach().copy_(found[name])

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the checkpoint, with what `measured` found last."""


class Report(Protocol):
    """Where a head that nothing trains says what was found while it was made (`training.run.Curve`)."""

    def write(self, step: int, **values: Any) -> None:
        """A line of training.jsonl."""

    def log(self, text: str) -> None:
        """A line for a person."""


def draft_ids(tokens: Tensor, vocabulary: Tensor | None) -> Tensor:
    """Where a reduced vocabulary `[Vd]` of rising ids holds these tokens, of any shape; -1 for those that it lacks."""
    if vocabulary is None:
        return tokens
    vocabulary = vocabulary.to(tokens.device)
    found = torch.searchsorted(vocabulary, tokens.contiguous()).clamp(max=len(vocabulary) - 1)
    return torch.where(vocabulary[found] == tokens, found, -1)
