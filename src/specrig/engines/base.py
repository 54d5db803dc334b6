"""What every engine offers the runner. No torch here: the planner asks engines what they can run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from specrig.cell import Cell

if TYPE_CHECKING:
    from specrig.decoding.types import Generation


class EngineError(RuntimeError):
    """An engine or a model that cannot be used; the message names what, why and the fix."""


class Endpoint(BaseModel):
    """A server that already runs: it decodes one pair with one method at one k. Requests alone do not tell it to speculate."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    pair: str
    """Row of pairs.tsv whose target it serves; the prompts' token ids come from that target's tokenizer."""
    method: str
    """The method it was started with; `autoregressive` for the server that the others are held against."""
    k: int = Field(0, ge=0)
    """The k it was started with; 0 for methods that use none."""
    variant: str = ""
    """Which sweep of the method's options it was started with, as `specrig plan` names it; empty for the defaults."""
    url: Annotated[str, Field(pattern=r"^https?://[^\s]+$")]
    """Where it answers, e.g. `http://gpu1:8000`."""
    engine: str = "server"
    """Who speaks to it: `server` (the OpenAI API) or an engine with an API of its own."""
    model: str | None = None
    """The name it serves the model under; null: the first that it lists."""
    api_key_env: str | None = None
    """Environment variable that holds its key; the key itself is never written down."""
    fields: dict[str, Any] = Field(default_factory=dict)
    """More fields for each request, e.g. what turns speculation on or off in a server that can do both."""

    def runs(self, cell: Cell) -> bool:
        """Whether this is the server for `cell`."""
        wanted = (cell.engine, cell.pair, cell.method, cell.k, cell.variant)
        return (self.engine, self.pair, self.method, self.k, self.variant) == wanted


def endpoint_of(cell: Cell, servers: Iterable[Endpoint]) -> Endpoint | None:
    """The server that runs `cell`, if one was named."""
    return next((server for server in servers if server.runs(cell)), None)


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
    head_revisions: dict[str, str] = field(default_factory=dict)
    servers: tuple[Endpoint, ...] = ()
    """Servers that already run the pair, of any engine and method."""
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

    @property
    def revisions(self) -> dict[str, str]:
        """Revisions of the parts that have one: name -> branch, tag or commit on the hub."""
        parts = {"target": self.target_revision, "draft": self.draft_revision, **self.head_revisions}
        return {name: revision for name, revision in parts.items() if revision is not None and name in self.sources}


class EngineOptions(BaseModel):
    """An engine's own parameters with their defaults; unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Engine(ABC):
    """Loads one pair and generates with any of its methods. Use as a context manager: closing frees memory and processes."""

    name: ClassVar[str]
    paired: ClassVar[bool] = True
    """Whether baseline and method can alternate prompt by prompt in one process."""
    loads_pairs: ClassVar[bool] = True
    """False: it runs no model itself, only measures the servers that a study names."""
    untested: ClassVar[str | None] = None
    """What has not been tried on real hardware yet; shown wherever the engine's figures are."""
    differences: ClassVar[Mapping[str, str]] = {}
    """Method -> what this engine does otherwise than the method's definition here: why its acceptance may differ."""
    one_by_one_samples: ClassVar[int] = 2_048
    """Samples of the exact audit for a method that this engine runs one prompt at a time; the audit says what they can show."""
    simulates: ClassVar[bool] = False
    """Whether it runs pairs of random weights with a declared acceptance."""

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
        known = {"name": self.name, "build": self.build(options), "options": options}
        return {"engine": known | {"untested": self.untested, "differences": dict(self.differences)}}

    def reset_peak_memory(self) -> None:
        """Begin `peak_memory_mb` anew, where the system can (Linux: proc(5), clear_refs)."""
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def peak_memory_mb(self) -> float:
        """Peak memory since `reset_peak_memory` where the device counts itself, else of this process."""
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    def close(self) -> None:  # noqa: B027
        """Free memory and processes."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
