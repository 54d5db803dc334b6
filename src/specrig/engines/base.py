"""What every engine offers the runner. No torch here: the planner reads what engines can run."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from specrig.cell import Cell
from specrig.decoding.drafters import registry as methods
from specrig.errors import EngineError as EngineError
from specrig.heads import registry as heads
from specrig.heads.base import Foreign
from specrig.heads.layouts import CARRIED, carried
from specrig.models.chat_template import prompt_ids
from specrig.models.pair import PairFiles
from specrig.models.weights import weights_of
from specrig.settings import Settings

if TYPE_CHECKING:
    from specrig.decoding.types import Generation


@cache
def foreign(engine: str) -> dict[str, Foreign]:
    """Method -> how another engine runs it: what the method's file says, else the recipe of the head of its name."""
    found: dict[str, Foreign] = {}
    for name, drafter in methods().items():
        own, head = vars(drafter).get("foreign", {}), heads().get(name)  # not inherited: the methods differ
        if engine in own:
            found[name] = own[engine]
        elif head is not None and engine in head.foreign:
            found[name] = replace(head.foreign[engine], part=name)
    return found


def lacks(title: str, engine: str, cell: Cell) -> str | None:
    """Why an engine of this title and name cannot run the cell's method; None: it can."""
    known = foreign(engine)
    return None if cell.method in known else f"{title} has no {cell.method}; it has {', '.join(known)}"


def not_a_chain(title: str, engine: str, cell: Cell) -> str | None:
    """Why an engine that has one form of each method cannot run the cell with these options; None: it can."""
    for name, needed in foreign(engine)[cell.method].options.items():
        if cell.options.get(name, needed) != needed:
            return f"{title} runs {cell.method} only with {name}: {needed} (not {cell.options[name]})"
    return None


def lacks_layers(title: str, engine: str, method: str, config: Mapping[str, Any]) -> str | None:
    """Why an engine cannot run the method with a target of this config.json, where it drafts with the layers of the target's
    checkpoint alone; None: it can.
    """
    form = foreign(engine).get(method)
    if form is None or not form.carried or carried(config):
        return None
    return (
        f"{title} drafts for {method} with layers that the target's own checkpoint carries, and its config.json names none "
        f"({', '.join(CARRIED)}); a head that was trained for it runs in the engine native"
    )


def too_old(title: str, lacking: Iterable[str]) -> EngineError:
    """What is raised where the installed version of an engine lacks an option."""
    names = ", ".join(sorted(lacking))
    return EngineError(
        f"the {title} installed here has no {names}: leave it out of `engine_options`, or install a newer one"
    )


class Engine(ABC):
    """Loads one pair and generates with any of the engine's methods. A context manager: exit frees memory and
    processes.
    """

    name: ClassVar[str]
    paired: ClassVar[bool] = True
    """Whether baseline and method can alternate prompt by prompt."""
    in_process: ClassVar[bool] = True
    """Whether this process runs the models, not children of it."""
    loads_pairs: ClassVar[bool] = True
    """False for an engine that runs no model itself and only measures servers that a study names."""
    untested: ClassVar[str | None] = None
    """What has not run on real hardware yet, shown beside the engine's figures; None where everything has."""
    differences: ClassVar[Mapping[str, str]] = {}
    """Method -> how this engine's version differs from the native one, as far as it changes acceptance."""
    one_by_one_samples: ClassVar[int] = 2_048
    """How many samples the exact audit takes of a method that this engine runs one prompt at a time."""
    audit_options: ClassVar[Mapping[str, Any]] = {}
    """Options with which the exact audit starts the engine faster; none changes how it samples."""
    serves: ClassVar[bool] = False
    """Whether it sends requests to servers, which can be measured under load (`traffic:`)."""
    splits: ClassVar[bool] = False
    """Whether it splits a pair over as many GPUs as its row says (`tensor_parallel`)."""
    makes_weights: ClassVar[bool] = False
    """Whether it runs pairs of random weights, from their shapes."""
    simulates: ClassVar[bool] = False
    """Whether it accepts drafted tokens with the probability that a pair declares."""

    class Options(Settings):
        """No options. An engine's own parameters have defaults; unknown names are refused."""

    def __init__(self, pair: PairFiles, *, device: str, threads: int | None) -> None:
        self.pair = pair
        self.device = device
        self.threads = threads
        self.options: Any = self.Options.model_validate(pair.engine_options.get(self.name, {}))

    def thread_count(self) -> int:
        """Threads of an engine in its own processes: as many as torch takes. vLLM's and llama.cpp's defaults differ."""
        import torch

        return self.threads or torch.get_num_threads()

    @classmethod
    def missing(cls) -> str | None:
        """None, or the command that installs what this engine lacks here."""
        return None

    @classmethod
    @abstractmethod
    def refuses(cls, cell: Cell) -> str | None:
        """Why this engine cannot run `cell`; None if it can. Called while the DAG is planned: it must not load
        anything.
        """

    @classmethod
    def refuses_model(cls, method: str, config: dict[str, Any]) -> str | None:
        """Why this engine cannot run `method` with a model of this config.json; None if nothing in it says so."""
        return None

    @classmethod
    def refuses_other_vocabulary(cls, cell: Cell) -> str | None:
        """Why this engine cannot run the cell with a draft of another vocabulary than the target's; None if it can."""
        return f"{cls.name} takes drafts of the target's vocabulary alone"

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, with the special tokens that the target's tokenizer puts in front."""

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids, for people to read; no figure is computed from it."""

    def ready(self, cell: Cell) -> None:  # noqa: B027
        """Load what `generate` would load for the cell, outside of what is measured."""

    @abstractmethod
    def generate(
        self, cell: Cell, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, seeds: Sequence[int]
    ) -> list[Generation]:
        """Continue a batch of prompts (token ids) as the cell says. Returns one Generation a prompt.

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

    def chosen(self, cell: Cell) -> dict[str, Any]:
        """What was chosen for the cell by timing, once for as long as the engine runs, for its records."""
        return {}

    def environment(self) -> dict[str, Any]:
        """What the report needs to know about the engine, for the job's environment.json."""
        options = self.options.model_dump(mode="json")
        known: dict[str, Any] = {
            "name": self.name,
            "build": self.build(options),
            "options": options,
            "precision": self.precision(self.pair),
        }
        known["paired"] = self.paired
        return {"engine": known | {"untested": self.untested, "differences": dict(self.differences)}}

    def reset_peak_memory(self) -> None:
        """Start measuring the peak of memory again, if the system can do that (Linux: proc(5), clear_refs)."""
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def peak_memory_mb(self) -> float:
        """Peak memory in MiB since `reset_peak_memory`: the device's own count where it has one, else this process's."""
        import resource

        # getrusage(2) counts KiB on Linux, bytes on macOS.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)

    def close(self) -> None:  # noqa: B027
        """Free memory and processes."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TokenizerEngine(Engine):
    """An engine that tokenizes in this process, with the target's tokenizer."""

    tokenizer: Any

    def encode(self, text: str) -> list[int]:
        """See `Engine`."""
        return prompt_ids(self.tokenizer, text)

    def decode(self, tokens: Sequence[int]) -> str:
        """See `Engine`."""
        text: str = self.tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text


class WeightsEngine(TokenizerEngine):
    """An engine that loads the pair's models in Python. Raises ModelError for a pair that the gate refuses (see
    `models.weights`).
    """

    def __init__(self, pair: PairFiles, *, device: str = "cpu", threads: int | None = None) -> None:
        super().__init__(pair, device=device, threads=threads)
        self.weights = weights_of(pair)
        self.tokenizer = self.weights.tokenizer
        self.eos = self.weights.eos
