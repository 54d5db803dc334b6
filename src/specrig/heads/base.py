"""What is known about a kind of head without torch: its keys in a study, its names, its cost, what it is made from."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import Field

from specrig.settings import AnyPath, Settings

LEARNING = 3
"""Forward and backward pass in forward passes (Kaplan et al., 2001.08361, section 2.1)."""


KEPT, KEPT_LEAST = 0.7, 0.2
"""Of the anchors at one depth, the share that conditional drop-out keeps at the next; at least so many of all."""


def kept_share(depth: int) -> float:
    """The share of anchors that conditional drop-out keeps at a depth, from 0 (PARD, 2504.18583, section 3.2)."""
    return max(KEPT**depth, KEPT_LEAST)


BIAS = "markov_rank", "markov.embedding.weight", "markov.lm_head.weight"
"""What a checkpoint has of a bias of the token before: the key of config.json, and the tensors."""
MASKS = "ptd_token_id", "mask_hidden", *BIAS
"""What a P-EAGLE head, which may serve as one of EAGLE-3, has besides."""
LONG = 200
"""Steps from which on a training is long."""


class TrainingError(RuntimeError):
    """Training that cannot start or has diverged; the message says why and what to change."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of the model that a head is made for, as plans know it: `parameters` are those that a token's pass reads."""

    hidden: int
    vocabulary: int
    layers: int
    intermediate: int
    parameters: float

    def forward(self, tokens: int) -> float:
        """Operations of a forward pass for one token of a sequence of `tokens`: 2 a weight, 2·T·D a layer for causal
        attention.
        """
        return 2.0 * self.parameters + 2.0 * self.layers * tokens * self.hidden


@dataclass(frozen=True, slots=True)
class Foreign:
    """How another engine drafts with a head, or runs a method."""

    method: str
    """What the engine calls the method; empty for plain decoding."""
    part: str = ""
    """The part of the pair that it drafts with, e.g. "draft"; empty in a head's own recipe and where nothing is loaded."""
    keys: Mapping[str, Any] = field(default_factory=dict)
    """Further keys of the engine's configuration; of SGLang's flags, "{k}" stands for the cell's k."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Values that the native method's options must have for the engine to do the same."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Options of the native method -> what the engine calls them."""
    unknown: tuple[str, ...] = ()
    """Keys of a head's config.json and tensors of its checkpoint that the engine does not know: it gets a copy without."""
    on_gpus_alone: bool = False
    """Whether the engine has it for GPUs alone."""
    sampled: bool = False
    """Whether it draws draft tokens from a distribution above temperature 0."""
    carried: bool = False
    """Whether it drafts with layers that the target's own checkpoint carries, and with no others."""


class HeadRecipe(Settings):
    """A kind of head. An instance is the block `training.<name>:` of a study's config.

    A class without keys has no block. `heads/__init__.py` says which files its folder holds.
    """

    name: ClassVar[str]
    """Of its folder, of its block, and in the column `heads` of pairs.tsv."""
    title: ClassVar[str]
    """As messages print it."""
    about: ClassVar[str]
    """What its block describes, for the JSON schema."""
    for_drafts: ClassVar[bool] = False
    """Whether the draft may have such a head too, trained as `draft_<name>`."""
    of_draft: ClassVar[bool] = False
    """Whether it is made from the pair's draft instead of the target."""
    foreign: ClassVar[Mapping[str, Foreign]] = {}
    """Engine -> how it drafts with the head."""
    aux_hidden_states: ClassVar[int] = 0
    """Number of the target's layers whose states the head reads besides the final one."""

    def aux_layers(self, layers: int) -> tuple[int, ...]:
        """Those layers, of a target with so many: j is the state after j layers. Raises DecodingError for too few."""
        return ()

    def weights(self, sizes: Sizes) -> float:
        """Weights that it trains and stores."""
        return 0.0

    @abstractmethod
    def flop(self, sizes: Sizes, tokens: int) -> float:
        """Operations that making it takes on sequences of `tokens`, the target's states and text aside."""

    @classmethod
    def unloadable(cls, engine: str, config: Mapping[str, Any]) -> str | None:
        """Why an engine in `foreign` cannot load a checkpoint with this config.json; None: it can."""
        return None


class NeuralHead(HeadRecipe):
    """A head that gradients train: for how long, how fast, on what text."""

    steps: int = Field(default=60, ge=1)
    """Optimiser steps."""
    batch: int = Field(default=8, ge=1)
    """Sequences a step."""
    lr: float = Field(default=3e-3, gt=0)
    """Peak learning rate of AdamW, for norms, biases and LM heads."""
    matrix_lr: float = Field(default=0.02, gt=0)
    """Peak learning rate of Muon, for the other matrices."""
    draft_vocabulary: int | None = Field(default=None, ge=1)
    """Number of the target's tokens that can be drafted: those it writes most often (FR-Spec, 2502.14856); null: all."""
    initial_checkpoint: AnyPath | None = None
    """Folder of a head of the same kind, shape and target, from which training goes on, for instance on further text;
    where the block says so it may lack parts. Its vocabulary stays, whatever `draft_vocabulary` says. null: the
    head begins untrained.
    """

    def drafted(self, sizes: Sizes) -> int:
        """Tokens that can be drafted."""
        return min(self.draft_vocabulary or sizes.vocabulary, sizes.vocabulary)

    def evaluated(self) -> set[int]:
        """The steps after which the acceptance to expect is measured: halfway and at the end; of a long training also
        after an eighth and a quarter.
        """
        return {round(self.steps / part) for part in ((8, 4, 2, 1) if self.steps >= LONG else (2, 1))}

    @property
    def copies(self) -> float:
        """Predictions that a step learns from at each position, on average."""
        return 1.0

    @abstractmethod
    def active_parameters(self, sizes: Sizes) -> float:
        """Weights, the LM head's included, that a position is multiplied with in a step."""

    def flop(self, sizes: Sizes, tokens: int) -> float:
        """See `HeadRecipe`: each step learns from `batch` sequences."""
        return LEARNING * 2.0 * self.active_parameters(sizes) * self.steps * self.batch * tokens
