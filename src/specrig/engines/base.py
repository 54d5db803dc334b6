"""What every engine offers the runner. No torch here: the planner asks engines what they can run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict

from specrig.cell import Cell

if TYPE_CHECKING:
    from specrig.decoding.types import Generation


class EngineError(RuntimeError):
    """An engine or a model that cannot be used; the message names what, why and the fix."""


@dataclass(frozen=True, slots=True)
class PairFiles:
    """Where a pair's parts lie: local folders or hub ids; `heads` maps a head's name to its folder."""

    name: str
    target: str
    draft: str | None = None
    target_revision: str | None = None
    draft_revision: str | None = None
    dtype: str = "float32"
    heads: dict[str, Path] = field(default_factory=dict)
    tensor_parallel: int = 1
    """GPUs that share each layer; this and the next three are for engines that serve."""
    quantization: str | None = None
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    engine_options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Engine name -> the study's options for it (`Engine.Options`)."""

    def only(self, needs: Sequence[str]) -> PairFiles:
        """The target and these parts: what a method does not need may be missing, or still in training."""
        heads = {name: folder for name, folder in self.heads.items() if name in needs}
        return replace(self, draft=self.draft if "draft" in needs else None, heads=heads)

    @property
    def sources(self) -> dict[str, str]:
        """Every part that is there: name -> folder or hub id."""
        parts = {"target": self.target, "draft": self.draft, **{name: str(folder) for name, folder in self.heads.items()}}
        return {name: source for name, source in parts.items() if source is not None}


class EngineOptions(BaseModel):
    """An engine's own parameters with their defaults; unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Engine(ABC):
    """Loads one pair and generates with any of its methods. Use as a context manager: closing frees memory and processes."""

    name: ClassVar[str]
    paired: ClassVar[bool] = True
    """Whether baseline and method can alternate prompt by prompt in one process."""
    one_by_one_samples: ClassVar[int] = 2_048
    """Samples of the exact audit for a method that this engine runs one prompt at a time; the audit says what they can show."""

    class Options(EngineOptions):
        """No options."""

    def __init__(self, pair: PairFiles, *, device: str, threads: int | None) -> None:
        self.pair = pair
        self.device = device
        self.threads = threads
        self.options: Any = self.Options.model_validate(pair.engine_options.get(self.name, {}))

    @classmethod
    def missing(cls) -> str | None:
        """None, or the command that installs what this engine lacks here."""
        return None

    @classmethod
    @abstractmethod
    def refuses(cls, cell: Cell) -> str | None:
        """Why this engine cannot run `cell`; None if it can. Asked while the DAG is planned."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, special tokens as the target's tokenizer adds them."""

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """Text for people; never counted."""

    @abstractmethod
    def generate(
        self, cell: Cell, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, seeds: Sequence[int]
    ) -> list[Generation]:
        """Continue a batch of prompts with the cell's method, k, temperature and options; one Generation a prompt."""

    @classmethod
    def build(cls, options: Mapping[str, Any]) -> str:
        """Which build of the engine runs with these options, where builds differ in what they compute; else empty."""
        return ""

    def environment(self) -> dict[str, Any]:
        """What the report must know of the engine, beside the machine: goes into the job's environment.json."""
        options = self.options.model_dump(mode="json")
        return {"engine": {"name": self.name, "build": self.build(options), "options": options}}

    def peak_memory_mb(self) -> float:
        """Peak memory since loading: of the device where it counts itself, else of this process."""
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    def close(self) -> None:  # noqa: B027
        """Free memory and processes."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
