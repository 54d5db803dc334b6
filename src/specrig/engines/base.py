"""What every engine offers the runner. No torch here: the planner asks engines what they can run."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from specrig.cell import Cell
from specrig.models.pair import PairFiles
from specrig.settings import Settings

if TYPE_CHECKING:
    from specrig.decoding.types import Generation


class EngineError(RuntimeError):
    """An engine that cannot be used, or fails; the message names what, why and the fix."""


class EngineOptions(Settings):
    """An engine's own parameters with their defaults; unknown names are refused."""


class Engine(ABC):
    """Loads one pair and generates with any of the engine's methods. Use as a context manager: on exit it frees memory
    and processes.
    """

    name: ClassVar[str]
    paired: ClassVar[bool] = True
    """Whether baseline and method can alternate prompt by prompt."""
    in_process: ClassVar[bool] = True
    """Whether this process runs the models, not children of it."""
    loads_pairs: ClassVar[bool] = True
    """False for an engine that runs no model itself and only measures servers that a study names."""
    untested: ClassVar[str | None] = None
    """What has not been tried on real hardware yet; None where everything has. It is shown wherever the engine's
    figures are.
    """
    differences: ClassVar[Mapping[str, str]] = {}
    """Method -> how this engine's version differs from the native one, which explains why its acceptance may differ."""
    one_by_one_samples: ClassVar[int] = 2_048
    """How many samples the exact audit takes of a method that this engine runs one prompt at a time."""
    audit_options: ClassVar[Mapping[str, Any]] = {}
    """Options by which the exact audit starts the engine more quickly; none that changes how it samples."""
    splits: ClassVar[bool] = False
    """Whether it splits a pair over as many GPUs as its row says (`tensor_parallel`)."""
    simulates: ClassVar[bool] = False
    """Whether it runs pairs of random weights with a declared acceptance."""

    class Options(EngineOptions):
        """No options."""

    def __init__(self, pair: PairFiles, *, device: str, threads: int | None) -> None:
        self.pair = pair
        self.device = device
        self.threads = threads
        self.options: Any = self.Options.model_validate(pair.engine_options.get(self.name, {}))

    def thread_count(self) -> int:
        """How many threads an engine in processes of its own takes: as many as torch would.

        Left to themselves they take another number, vLLM one core less and llama.cpp all of the machine's.
        """
        import torch

        return self.threads or torch.get_num_threads()

    @classmethod
    def missing(cls) -> str | None:
        """None, or the command that installs what this engine lacks here."""
        return None

    @classmethod
    @abstractmethod
    def refuses(cls, cell: Cell) -> str | None:
        """Why this engine cannot run `cell`; None if it can. Called while the DAG is planned, so it must not load
        anything.
        """

    @classmethod
    def refuses_model(cls, method: str, config: dict[str, Any]) -> str | None:
        """Why this engine cannot run `method` with a model of this config.json, as far as that tells; None if it can."""
        return None

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, special tokens as the target's tokenizer adds them."""

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids, for people to read; no figure is computed from it."""

    @abstractmethod
    def generate(
        self, cell: Cell, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, seeds: Sequence[int]
    ) -> list[Generation]:
        """Continue a batch of prompts (token ids) with the cell's method, k, temperature and options; one Generation a
        prompt.

        seeds: one a prompt, for temperatures above 0. Raises EngineError where the engine fails.
        """

    @classmethod
    def build(cls, options: Mapping[str, Any]) -> str:
        """Which build of the engine runs with these options; empty where all builds compute the same."""
        return ""

    @classmethod
    def precision(cls, pair: PairFiles) -> str:
        """What the engine computes in: the pair's dtype, or the type of the weights that it runs instead."""
        return pair.dtype

    def environment(self) -> dict[str, Any]:
        """What the report needs to know about the engine; it goes into the job's environment.json, beside the machine's
        description.
        """
        options = self.options.model_dump(mode="json")
        known = {
            "name": self.name,
            "build": self.build(options),
            "options": options,
            "precision": self.precision(self.pair),
        }
        return {"engine": known | {"untested": self.untested, "differences": dict(self.differences)}}

    def reset_peak_memory(self) -> None:
        """Start measuring the peak of memory anew, where the system can do that (Linux: proc(5), clear_refs)."""
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def peak_memory_mb(self) -> float:
        """Peak memory in MiB: the device's own count since `reset_peak_memory` where there is one, else this process's."""
        import resource

        # getrusage(2) counts KiB on Linux, bytes on macOS.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)

    def close(self) -> None:  # noqa: B027
        """Free memory and processes."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
