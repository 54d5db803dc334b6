"""The recipe: the `training:` block of a study's config. No torch here.

Budgets are counted in optimiser steps, never in seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, create_model, model_validator

from specrig.heads import registry, trained
from specrig.heads.base import HeadRecipe
from specrig.settings import Settings
from specrig.training.prompt_sources import SELF, OwnRequests, PromptSource


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


class Optimisation(Settings):
    """How long and how to train one model."""

    steps: int = Field(ge=1)
    """Optimiser steps."""
    batch: int = Field(default=8, ge=1)
    """Texts a step."""
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

    def evaluated(self) -> set[int]:
        """The steps after which the acceptance to expect is measured: halfway and at the end."""
        return {round(self.steps / 2), self.steps}


class TargetText(Settings):
    """What the target writes, for its draft and its heads to learn from."""

    sequences: int = Field(default=192, ge=0)
    """Texts to learn from, over all sources."""
    sequence: int = Field(default=256, ge=32)
    """Tokens of a text at most, the prompt included."""
    temperatures: tuple[float, ...] = Field(default=(0.0, 0.6, 1.0), min_length=1)
    """Sampling temperatures of the answers, in turn."""
    heldout_sequences: int = Field(default=32, ge=4)
    """Greedy answers to other prompts, on which what was trained is measured. Every eighth prompt is held out."""
    batch: int = Field(default=128, ge=1)
    """Texts written side by side: on a GPU as many as its memory has keys and values for, since a step takes as long for
    one.
    """


class Distillation(Settings):
    """How the draft learns from the target."""

    kl_weight: float = Field(default=0.9, ge=0, le=1)
    """Loss = kl_weight x KL(target, draft) + (1 - kl_weight) x cross-entropy."""
    loss: Literal["kl", "lk"] = "kl"
    """`kl`: as kl_weight says; `lk`: a loss that turns from KL to the acceptance rate itself (2602.23881)."""
    draft_vocabulary: int | None = Field(default=None, ge=1)
    """Number of the target's tokens that can be drafted: those it writes most often (FR-Spec, 2502.14856); null: all."""
    start: Literal["random", "embedding"] = "random"
    """`embedding`: the draft starts from the principal directions of the target's embedding, which pays with a large
    vocabulary.
    """


def _sources(prompts: Any) -> Any:
    """One source or several, each a name or a block, as a list of blocks."""
    listed = prompts if isinstance(prompts, list | tuple) else [prompts]
    return [{"source": source} if isinstance(source, str | Path) else source for source in listed]


class Training(Settings):
    """Everything that decides the models that a study trains."""

    seed: int = 0
    """Seed of the prompts' order, of the initial weights and of the order of the training text."""
    prompts: Annotated[
        tuple[PromptSource, ...],
        Field(min_length=1),
        BeforeValidator(_sources, json_schema_input_type=str | PromptSource | list[str | PromptSource]),
    ] = (PromptSource(source=SELF),)
    """Prompts that the target answers to write its training text, from one source or several in equal parts. `self`:
    the target asks itself; a JSONL, CSV or Parquet file whose rows have `prompt`, `turns` or `messages`; a data set on the
    hub. Prompts of the study's tasks are left out."""
    own_requests: OwnRequests = OwnRequests()
    """How a target asks itself, where `prompts` says `self`."""
    chat: Literal["auto"] | bool = "auto"
    """Whether the prompts are put into the chat template of the target's tokenizer; auto: if the tokenizer has one."""
    draft: Shape = Shape(layers=2, hidden=128, heads=2, intermediate=352)
    """Shape of the draft model."""
    draft_training: Optimisation = Optimisation(steps=200)
    """How the draft model is trained, with the target as its teacher."""
    text: TargetText = TargetText()
    """How much the target writes, and how."""
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
