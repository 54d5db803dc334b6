"""P-EAGLE (2602.01469): EAGLE-3's head, trained to draft all its tokens in one pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from specrig.heads.base import BIAS, Foreign, Sizes, kept_share
from specrig.heads.eagle import LayerHead
from specrig.heads.eagle3 import choose_aux_layers


class PEagle(LayerHead):
    """How far and how deep P-EAGLE's head trains."""

    name: ClassVar[str] = "p_eagle"
    title: ClassVar[str] = "P-EAGLE"
    about: ClassVar[str] = "How the head of `p_eagle` is trained."
    aux_hidden_states: ClassVar[int] = 3
    foreign: ClassVar[Mapping[str, Foreign]] = {
        "vllm": Foreign(
            "eagle3",
            keys={"parallel_drafting": True},
            options={"acceptance": "exact", "length": "fixed", "nodes": 0, "passes": 1},
            unknown=BIAS,
            sampled=True,
        ),
    }

    steps: int = Field(default=50, ge=1)
    """Optimiser steps."""
    lr: float = Field(default=1e-2, gt=0)
    """Peak learning rate of AdamW, for norms and LM head."""
    matrix_lr: float = Field(default=0.08, gt=0)
    """Peak learning rate of Muon, for the matrices."""
    layers: int = Field(default=1, ge=1, le=8)
    """Decoder layers; the paper has 4. With one, no mask can look for a position by its content: all masks ask the same.
    A head that goes on from an `initial_checkpoint` of fewer layers gets the others.
    """
    k: int = Field(default=8, ge=1, le=16)
    """Tokens that it learns to draft in one pass. Beyond them it drafts too, untrained."""
    position_weights: Literal["decay", "d_pace"] = "decay"
    """How depths weigh: `decay`, by step_decay; `d_pace`, by what each adds to the expected accepted length (D-PACE,
    2605.18810).
    """
    step_decay: float = Field(default=0.8, gt=0, le=1)
    """With `decay`, each further depth weighs that much of the one before."""
    rollout: int = Field(default=1, ge=1, le=8)
    """Steps of the head's rollout in training, as in EAGLE-3: the first step reads the target's states, each further one
    the head's own output. Above 1 the head can also draft its tokens one by one, all of them (`eagle3`) or the first
    ones (`p_eagle` with `passes`). Needs `layers: 1`.
    """
    markov_rank: int = Field(default=0, ge=0)
    """Rank of a bias by which a mask knows the token that is drafted before its own (DSpark's idea, 2607.05147); 0: there
    is none. A head that goes on from an `initial_checkpoint` without a bias gets one.
    """

    @model_validator(mode="after")
    def _one_layer_unrolls(self) -> Self:
        if self.rollout > 1 and self.layers > 1:
            raise ValueError("rollout is for heads of one layer: leave layers or rollout out")
        return self

    def aux_layers(self, layers: int) -> tuple[int, ...]:
        """See `choose_aux_layers`."""
        return choose_aux_layers(layers)

    def weights(self, sizes: Sizes) -> float:
        """Of the layers, of its own LM head and of the state that stands for unknown ones."""
        first = self.layer_weights(sizes, enters=3, reads=2)
        further = (self.layers - 1) * self.layer_weights(sizes, enters=0, reads=1)
        bias = self.markov_rank * (sizes.vocabulary + self.drafted(sizes))
        return first + further + (self.drafted(sizes) + 3) * sizes.hidden + bias

    @property
    def copies(self) -> float:
        """See `NeuralHead`: of an anchor as many as depths are kept."""
        return sum(map(kept_share, range(self.k)))

    def active_parameters(self, sizes: Sizes) -> float:
        """All its weights, for a position and for each mask that follows it; of the bias a row is looked up."""
        of_masks = self.copies * (self.weights(sizes) - self.markov_rank * sizes.vocabulary)
        layer, output = self.layer_weights(sizes, enters=3, reads=2), self.drafted(sizes) * sizes.hidden
        return of_masks + (self.rollout * layer + (self.rollout - 1) * output if self.rollout > 1 else 0.0)
