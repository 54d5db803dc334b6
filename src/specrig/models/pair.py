"""The parts of a pair of models: folders or hub ids, and how they are loaded. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specrig.models.endpoint import Endpoint


class ModelError(RuntimeError):
    """A model or a pair that cannot be used; the message names what, why and the fix."""


@dataclass(frozen=True, slots=True)
class PairFiles:
    """Where a pair's parts are: local folders or hub ids. heads: a head's name -> its folder."""

    name: str
    target: str
    draft: str | None = None
    target_revision: str | None = None
    draft_revision: str | None = None
    dtype: str = "float32"
    random_weights: bool = False
    """Whether only the shapes are known, and the weights are random."""
    simulated_acceptance: float | None = None
    """The declared chance that a drafted token is accepted; None: the pair's own acceptance is measured."""
    heads: dict[str, Path] = field(default_factory=dict)
    head_revisions: dict[str, str] = field(default_factory=dict)
    servers: tuple[Endpoint, ...] = ()
    """Servers that already run the pair, of any engine and method."""
    tensor_parallel: int = 1
    """GPUs that the target is split over, by engines that do (`Engine.splits`); the next three are for engines that
    serve.
    """
    quantization: str | None = None
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    engine_options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Engine name -> the study's options for it (`Engine.Options`)."""

    def only(self, needs: Sequence[str]) -> PairFiles:
        """The pair with the target and only the parts in `needs`; other parts may be missing, or still in training."""
        heads = {name: folder for name, folder in self.heads.items() if name in needs}
        return replace(self, draft=self.draft if "draft" in needs else None, heads=heads)

    @property
    def sources(self) -> dict[str, str]:
        """Every part that is there: name -> folder or hub id."""
        parts = {
            "target": self.target,
            "draft": self.draft,
            **{name: str(folder) for name, folder in self.heads.items()},
        }
        return {name: source for name, source in parts.items() if source is not None}

    @property
    def revisions(self) -> dict[str, str]:
        """Revisions of the parts that have one: name -> branch, tag or commit on the hub."""
        parts = {"target": self.target_revision, "draft": self.draft_revision, **self.head_revisions}
        return {name: revision for name, revision in parts.items() if revision is not None and name in self.sources}
