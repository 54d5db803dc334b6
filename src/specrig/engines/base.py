"""What every engine offers the runner. No torch here: the planner asks engines what they can run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

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
    simulated_acceptance: float | None = None
    """Not None: shapes with random weights, and this the declared chance that a drafted token is accepted."""
    heads: dict[str, Path] = field(default_factory=dict)

    def only(self, needs: Sequence[str]) -> PairFiles:
        """The target and these parts: what a method does not need may be missing, or still in training."""
        heads = {name: folder for name, folder in self.heads.items() if name in needs}
        return replace(self, draft=self.draft if "draft" in needs else None, heads=heads)

    @property
    def sources(self) -> dict[str, str]:
        """Every part that is there: name -> folder or hub id."""
        parts = {"target": self.target, "draft": self.draft, **{name: str(folder) for name, folder in self.heads.items()}}
        return {name: source for name, source in parts.items() if source is not None}


class Engine(ABC):
    """Loads one pair and generates with any of its methods. Use as a context manager: closing frees memory and processes."""

    name: ClassVar[str]
    paired: ClassVar[bool] = True
    """Whether baseline and method can alternate prompt by prompt in one process."""
    simulates: ClassVar[bool] = False
    """Whether it runs pairs of random weights with a declared acceptance."""

    def __init__(self, pair: PairFiles, *, device: str, threads: int | None) -> None:
        self.pair = pair
        self.device = device
        self.threads = threads

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
