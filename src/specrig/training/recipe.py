"""The recipe: the `training:` block of a study's config. Its defaults train the embedded pair. No torch here.

Budgets are counted in optimiser steps, never in seconds, so a recipe gives the same models again on the same machine.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, create_model, model_validator

from specrig.corpus.recipe import Corpus
from specrig.heads import registry, trained
from specrig.heads.base import HeadRecipe
from specrig.settings import AnyPath, Settings
from specrig.training.prompt_sources import CORPUS, OwnRequests, PromptSource


class Shape(Settings):
    """A Llama-architecture model (no biases, tied embeddings, as many key/value heads as heads)."""

    layers: int = Field(ge=1)
    """Decoder layers."""
    hidden: int = Field(ge=8)
    """Width of the residual stream; a multiple of twice the heads."""
    heads: int = Field(ge=1)
    """Attention heads a layer."""
    intermediate: int = Field(ge=8)
    """Inner width of the gated feed-forward block."""
    context: int = Field(default=512, ge=16)
    """Longest sequence the model accepts, in tokens."""

    @model_validator(mode="after")
    def _heads_divide_hidden(self) -> Shape:
        if self.hidden % self.heads or (self.hidden // self.heads) % 2:
            raise ValueError(f"hidden {self.hidden} must be heads {self.heads} times an even head size")
        return self

    def parameters(self, vocabulary: int) -> int:
        """Number of parameters, the tied embedding counted once."""
        layer = 4 * self.hidden**2 + 3 * self.hidden * self.intermediate + 2 * self.hidden
        return vocabulary * self.hidden + self.layers * layer + self.hidden


class Growth(Settings):
    """A stage of a model that starts shallow and grows: its number of layers until a share of the steps."""

    until: float = Field(gt=0, lt=1)
    """Share of the steps at which this stage ends."""
    layers: int = Field(ge=1)
    """Layers that the model has during this stage."""


class Optimisation(Settings):
    """How long and how to train one model."""

    steps: int = Field(ge=1)
    """Optimiser steps."""
    batch: int = Field(default=8, ge=1)
    """Sequences a step."""
    sequence: int = Field(default=256, ge=8)
    """Tokens a sequence."""
    accumulate: int = Field(default=1, ge=1)
    """Parts in which a step's batch goes through the model one after another, where it does not fit into memory at
    once.
    """
    compile: bool = False
    """torch.compile for the layers: a minute at the start, worth it for trainings of many minutes on a GPU."""
    optimizer: Literal["muon", "adamw"] = "muon"
    """`muon`: Muon for the matrices inside the layers, AdamW for embedding and norms. `adamw`: AdamW for all."""
    matrix_lr: float = Field(default=0.02, gt=0)
    """Peak learning rate of Muon; unused with `adamw`."""
    lr: float = Field(default=1e-2, gt=0)
    """Peak learning rate of AdamW."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Share of a matrix that each step takes away, times the learning rate."""
    warmup: float = Field(default=0.02, ge=0, le=1)
    """Share of the steps over which the rate rises."""
    decay: float = Field(default=0.6, ge=0, le=1)
    """Share of the steps, at the end, over which it falls linearly to zero (warm-up, stable, decay)."""
    clip: float = Field(default=1.0, gt=0)
    """Bound of the gradient's norm."""
    growth: tuple[Growth, ...] = ()
    """Stages before the full depth, in order; early steps of a shallow model cost little and teach as much."""
    evaluations: int = Field(default=4, ge=1)
    """Held-out evaluations, evenly spread, the last at the end."""

    @model_validator(mode="after")
    def _parts_divide_batch(self) -> Optimisation:
        if self.batch % self.accumulate:
            raise ValueError(f"batch {self.batch} is no multiple of accumulate {self.accumulate}")
        return self


class TargetText(Settings):
    """What the target writes, for its draft and its heads to learn from."""

    sequences: int = Field(default=192, ge=0)
    """Continuations of training prompts."""
    sequence: int = Field(default=256, ge=32)
    """Tokens a sequence, the prompt included."""
    temperatures: tuple[float, ...] = Field(default=(0.0, 0.6, 1.0), min_length=1)
    """Sampling temperatures of the continuations, in turn."""
    heldout_sequences: int = Field(default=32, ge=4)
    """Greedy continuations of held-out prompts, on which finished heads are measured."""
    shards: AnyPath | None = None
    """Folder with shards of text that the same target wrote before, for instance elsewhere: they are read first, and
    only what lacks is written. `xz` may have compressed them.
    """
    batch: int = Field(default=128, ge=1)
    """Continuations written side by side: on a GPU as many as its memory has keys and values for, since a step takes as
    long for one.
    """


class Distillation(Settings):
    """How the draft learns from the target."""

    kl_weight: float = Field(default=0.9, ge=0, le=1)
    """Loss = kl_weight x KL(target, draft) + (1 - kl_weight) x cross-entropy."""
    generated_share: float = Field(default=0.5, ge=0, le=1)
    """Share of the steps, at the end, that learn from the target's own text; the steps before learn from the corpus."""
    loss: Literal["kl", "lk"] = "kl"
    """`kl`: as kl_weight says; `lk`: a loss that turns from KL to the acceptance rate itself (2602.23881)."""
    draft_vocabulary: int | None = Field(default=None, ge=1)
    """Number of the target's tokens that can be drafted: those it writes most often (FR-Spec, 2502.14856); null: all."""
    start: Literal["random", "embedding"] = "random"
    """`embedding`: the draft starts from the principal directions of the target's embedding, which pays with a large
    vocabulary.
    """


class Training(Settings):
    """Everything that decides the models that a study trains."""

    seed: int = 0
    """Seed of the corpus, of the initial weights and of the order of the training text."""
    corpus: Corpus = Corpus()
    """The text to learn from, and how much of it is held out."""
    prompts: Literal["self"] | AnyPath | Annotated[tuple[PromptSource, ...], Field(min_length=1)] | None = None
    """Prompts that the target answers to write its training text. `self`: the target writes the prompts itself; a
    JSONL, CSV or Parquet file whose rows have `prompt`, `turns` or `messages`; a list of sources with shares; null: the
    corpus, as instructions if the target has a chat template. Prompts of the study's tasks are left out."""
    own_requests: OwnRequests = OwnRequests()
    """How a target writes requests itself, where `prompts` says `self` or `self_long`."""
    chat: Literal["auto"] | bool = "auto"
    """Whether the prompts are put into the chat template of the target's tokenizer; auto: if the tokenizer has one."""
    vocabulary: int = Field(default=4096, ge=300)
    """Tokens of the tokenizer that is trained on the corpus and shared by target and draft."""
    target: Shape = Shape(layers=6, hidden=384, heads=6, intermediate=1024)
    """Shape of the target."""
    draft: Shape = Shape(layers=2, hidden=128, heads=2, intermediate=352)
    """Shape of the draft model."""
    target_training: Optimisation = Optimisation(
        steps=260, growth=(Growth(until=0.6, layers=2), Growth(until=0.75, layers=4)), evaluations=2
    )
    """How the target is trained, on the corpus."""
    draft_training: Optimisation = Optimisation(steps=200, evaluations=2)
    """How the draft model is trained, with the target as its teacher."""
    text: TargetText = TargetText()
    """What the trained target writes, for its draft and its heads to learn from."""
    distillation: Distillation = Distillation()
    """How the draft model learns from the target."""

    def head(self, name: str) -> Any:
        """The block of a kind of head, an instance of its `HeadRecipe`."""
        return getattr(self, name) if name in type(self).model_fields else registry()[name]()

    def initial(self, name: str) -> list[Path]:
        """The folder of the checkpoint from which the training of the head `name` goes on; none for other models."""
        kind = trained().get(name)
        folder = None if kind is None else getattr(self.head(kind.name), "initial_checkpoint", None)
        return [] if folder is None else [folder.expanduser()]

    @property
    def sources(self) -> tuple[PromptSource, ...]:
        """Where requests come from."""
        if isinstance(self.prompts, tuple):
            return self.prompts
        return (PromptSource(source=CORPUS if self.prompts is None else str(self.prompts)),)

    @model_validator(mode="after")
    def _sequences_fit(self) -> Training:
        for name, shape, training in (
            ("target", self.target, self.target_training),
            ("draft", self.draft, self.draft_training),
        ):
            if training.sequence > shape.context:
                raise ValueError(
                    f"{name}_training.sequence {training.sequence} is longer than {name}.context {shape.context}"
                )
            stages = training.growth
            for one, two in itertools.pairwise(stages):
                if two.until <= one.until or two.layers <= one.layers:
                    raise ValueError(f"{name}_training.growth: `until` and `layers` must rise from stage to stage")
            ends = [0, *(round(training.steps * stage.until) for stage in stages), training.steps]
            if stages and any(end <= begin for begin, end in itertools.pairwise(ends)):
                raise ValueError(f"{name}_training: {training.steps} steps are too few for `growth`: raise steps")
            if stages and stages[-1].layers >= shape.layers:
                raise ValueError(f"{name}_training.growth must stay below {name}.layers ({shape.layers})")
        if self.draft.context < self.target.context:
            raise ValueError("draft.context must not be shorter than target.context")
        return self


def _block(kind: type[HeadRecipe]) -> Any:
    """The block of a head as pydantic wants it: its type, its default and its description."""
    return kind, Field(default=kind(), description=kind.about)


if TYPE_CHECKING:
    Recipe = Training
else:
    Recipe = create_model(
        "Recipe",
        __base__=Training,
        __module__=__name__,
        __doc__=Training.__doc__,
        **{name: _block(kind) for name, kind in registry().items() if kind.model_fields},
    )
    """A study's recipe: `Training`, and a block for each kind of head that has keys."""
