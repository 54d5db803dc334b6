"""The keys that a study's config (`configs/*.yaml`) may have, with their types and defaults. No torch here."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, NaiveDatetime, TypeAdapter, ValidationError, model_validator

from specrig.decoding.drafters import registry as methods
from specrig.decoding.types import Temperature
from specrig.models.chat_template import CLOCK
from specrig.models.endpoint import Endpoint
from specrig.settings import Settings, listed, once, some
from specrig.study.learning_curve import LearningPoint
from specrig.study.rows import Name, Pair, ShippedPath, Task, UserPath
from specrig.study.traffic import Traffic
from specrig.training.recipe import Recipe

Names = Annotated[list[str], listed, once]
Temperatures = Annotated[list[Temperature], listed, once, some]
BatchSizes = Annotated[list[Annotated[int, Field(ge=1)]], listed, once, some]


class MethodEntry(Settings):
    """One entry of `methods:`: a method with its k's and options. A list of values for an option is a sweep."""

    method: str
    """Name of the method; `specrig methods` lists them."""
    k: Annotated[list[Annotated[int, Field(ge=1, le=16)]], listed, once, some] = Field(default_factory=lambda: [4])
    """k, or a list of them: how many tokens are drafted in a round, 1 to 16. Methods that use no k ignore it."""
    label: Annotated[str, Field(min_length=1, max_length=24)] | None = None
    """What figures and tables call the entry; without one a short name is derived. No two entries may share it."""
    temperatures: Temperatures | None = None
    """Sampling temperatures of this entry, instead of the study's."""
    tasks: Annotated[Names | None, some] = None
    """Tasks of this entry, instead of the study's."""
    pairs: Annotated[Names | None, some] = None
    """Pairs of this entry, instead of the study's."""
    batch_sizes: BatchSizes | None = None
    """Batch sizes of this entry, instead of the study's."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The method's options (`specrig methods NAME` lists them); they may also stand beside `k`."""

    @model_validator(mode="before")
    @classmethod
    def _gather_options(cls, value: Any) -> Any:
        """Move keys that are not the entry's own into `options`; `study.config_checks` checks their names."""
        if isinstance(value, str):
            return {"method": value}
        if not isinstance(value, dict):
            return value
        own = {key: item for key, item in value.items() if key in cls.model_fields}
        rest = {key: item for key, item in value.items() if key not in cls.model_fields}
        return {**own, "options": {**(own.get("options") or {}), **rest}} if rest else own

    @property
    def ks(self) -> list[int]:
        """The values of k in the entry's cells; [0] for a method that uses no k."""
        return self.k if methods()[self.method].uses_k else [0]

    @property
    def needs(self) -> set[str]:
        """Trained parts besides the target that some of its cells need."""
        method = methods()[self.method]
        return {part for _, options in self.variants() for part in method.parts(method.Options.model_validate(options))}

    def labels(self) -> dict[tuple[str, str], str]:
        """(method, variant) -> the entry's label, with the values of swept options behind it; empty without a label."""
        if self.label is None:
            return {}
        names = [name for name, _ in self.variants()]
        return {(self.method, name): f"{self.label}, {name}" if len(names) > 1 else self.label for name in names}

    def variants(self) -> list[tuple[str, dict[str, Any]]]:
        """Return (label, all options) for every combination of the swept values.

        The label names the options that are swept or differ from their default. So it does not change when a value is
        added to a sweep, and measured cells keep their names.
        """
        kind = methods()[self.method].Options
        swept = {name: value for name, value in self.options.items() if is_sweep(kind, name, value)}
        result = []
        for values in product(*swept.values()):
            chosen = {**self.options, **dict(zip(swept, values, strict=True))}
            options = kind.model_validate(chosen)
            defaults = {name: info.get_default(call_default_factory=True) for name, info in kind.model_fields.items()}
            named = [name for name in chosen if name in swept or getattr(options, name) != defaults[name]]
            label = "-".join(_label(name, getattr(options, name)) for name in sorted(named))
            result.append((label, options.model_dump(mode="json")))
        return result


def is_sweep(kind: type[BaseModel], name: str, value: Any) -> bool:
    """Whether `value` is a list of values to sweep. For an option whose type is a list, a plain list is one value."""
    if not isinstance(value, list) or name not in kind.model_fields:
        return False
    try:
        TypeAdapter[Any](kind.model_fields[name].annotation or Any).validate_python(value)
    except ValidationError:
        return True
    return False


def _label(name: str, value: Any) -> str:
    if isinstance(value, list | tuple):
        value = "_".join(map(str, value))
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return name + re.sub(r"[^A-Za-z0-9.]+", "_", text)


class Tables(Settings):
    """The three tables that a study reads: pairs, tasks and reported figures, each with one row an entry."""

    pairs: ShippedPath = Field(Path("configs/pairs.tsv"), validate_default=True)
    """File with one row a pair of models."""
    tasks: ShippedPath = Field(Path("configs/tasks.tsv"), validate_default=True)
    """File with one row a task."""
    reported: ShippedPath | None = Field(Path("configs/reported.csv"), validate_default=True)
    """File with one row a reported figure; null: the study is compared with no reported figures."""


class Rows(Settings):
    """Copies of the table rows that a study uses, so that a resolved study needs no tables; by `load_study`."""

    pairs: dict[str, Pair] = Field(default_factory=dict)
    """Name of a pair -> its row."""
    tasks: dict[str, Task] = Field(default_factory=dict)
    """Name of a task -> its row."""
    learning_curves: dict[str, dict[str, list[LearningPoint]]] = Field(default_factory=dict)
    """Name of a pair -> its draft or head -> the rows of the learning curve beside the weights."""


class Repeats(Settings):
    """How often every prompt is measured: what is not settled is repeated; the least time of each round counts."""

    least: Annotated[int, Field(ge=1)] = 2
    """Repeats of every prompt; 3 is good for results that are published."""
    most: Annotated[int, Field(ge=1)] = 5
    """Repeats of a prompt whose times do not settle. What never settles is used as it is, and named in the report."""
    agree: Annotated[float, Field(gt=0, lt=1)] = 0.02
    """A prompt is settled, for a method and for plain decoding each by itself, where its last repeat lowered the decode
    time by less than this share."""

    @model_validator(mode="after")
    def _ordered(self) -> Repeats:
        if self.most < self.least:
            raise ValueError(f"most is {self.most}, less than least, which is {self.least}: raise most, or lower least")
        return self


class Config(Settings):
    """The keys of a study's config. `Study` adds what is computed from them."""

    study: Name
    """Name of the study: results go to results/<study>, the report to reports/<study>."""
    seed: int = 0
    """Seed of everything that is sampled while measuring; training uses `training.seed` instead."""
    clock: NaiveDatetime = CLOCK
    """The moment that chat templates which write the date or time are given, in every run: e.g. `2026-07-01` or
    `2026-07-01 09:30`."""
    engines: Names = Field(default_factory=lambda: ["native"])
    """Engines to measure with; each runs the methods it can run."""
    engine_options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Engine -> its own options, e.g. `vllm: {eager: true}`; `specrig methods NAME` lists them."""
    pairs: Names = Field(default_factory=list)
    """Pairs to measure, by their names in pairs.tsv; an entry of `methods` may name other pairs for itself."""
    tasks: Names = Field(default_factory=list)
    """Tasks to measure, by their names in tasks.tsv."""
    contexts: Annotated[list[Annotated[int, Field(ge=16)]], listed, once] = Field(default_factory=list)
    """Context lengths in tokens, prompt and output together. Each task is measured at each length as a task
    `<task>@<tokens>`; text of `context_text` precedes its requests. Empty: the tasks as they are."""
    context_text: ShippedPath = Field(Path("configs/contexts.jsonl"), validate_default=True)
    """JSONL file whose prompts are the text that precedes requests in `contexts`."""
    methods: list[MethodEntry] = Field(default_factory=list)
    """Methods with their k's and options; plain decoding is measured beside each of them without being named."""
    servers: list[Endpoint] = Field(default_factory=list)
    """Running servers for engines that measure by URL: for each pair one baseline, and one for each method and k."""
    temperatures: Temperatures = Field(default_factory=lambda: [0.0])
    """Sampling temperatures: 0 is greedy decoding, 1 the model's own distribution."""
    batch_sizes: BatchSizes = Field(default_factory=lambda: [1])
    """Batch sizes: how many prompts are decoded side by side."""
    prompts: int = Field(8, ge=1)
    """Prompts of each task that are measured; a larger batch size takes more prompts, so that one batch is full."""
    max_new_tokens: int = Field(128, ge=2)
    """Maximum number of new tokens for a prompt."""
    warmup: int = Field(1, ge=0)
    """Generations before each block of cells that warm up the machine and are not recorded."""
    repeats: Repeats = Repeats()
    """How often every prompt is measured with the same seed: until the times settle."""
    jobs: Literal["pair", "method"] = "pair"
    """What one process measures: all methods of an engine and pair, which then share the loading and the runs of the
    baseline; or one method each, for clusters and for GPUs that have no room for all drafts and heads at once. Engines
    that cannot alternate always measure method by method."""
    traffic: Traffic | None = None
    """Load under which engines that serve are also measured: requests in flight at once, or arriving per second."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device that jobs run on; auto: cuda where there is a GPU, else cpu."""
    threads: int | None = Field(None, ge=1)
    """CPU threads of a job; null: all."""
    audit_samples: int = Field(20_480, ge=1_000)
    """Continuations that each method samples when its distribution is tested against an exactly known one."""
    run_generated_code: bool = False
    """Let scorers (pass@1) run the code that models wrote, in a limited subprocess: no sandbox, use a container."""
    training: Recipe = Field(default_factory=lambda: Recipe.model_validate({}))
    """How the drafts and heads of `trained` pairs are trained."""
    tables: Tables = Field(default_factory=lambda: Tables.model_validate({}))
    """Files that describe the pairs, the tasks and the reported figures."""
    results: UserPath = Path("results")
    """Folder in which each study has a folder for everything it makes except its report."""
    reports: UserPath = Path("reports")
    """Folder in which each study has a folder for its report."""
    rows: Rows = Rows()
    """The table rows that the study uses; filled in when the study is read, never written by its author."""

    def uses_gpu(self) -> bool:
        """Whether jobs use a GPU: `device` says so or, for `auto`, there is an NVIDIA driver. Imports no torch."""
        return self.device == "cuda" or (self.device == "auto" and Path("/proc/driver/nvidia/version").exists())
