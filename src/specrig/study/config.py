"""The keys of a study, typed: what a config (`configs/*.yaml`) may say. No torch here."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from specrig.models.endpoint import Endpoint
from specrig.settings import Settings
from specrig.study.entries import BatchSizes, MethodEntry, Names, Temperatures
from specrig.study.rows import Name, Pair, Task
from specrig.training.recipe import Recipe


class Tables(Settings):
    """Files with one row a pair, one row a task, one row a reported figure."""

    pairs: Path = Path("configs/pairs.tsv")
    """File with one row a pair of models."""
    tasks: Path = Path("configs/tasks.tsv")
    """File with one row a task."""
    reported: Path | None = Path("configs/reported.csv")
    """File with one row a reported figure; null: hold the study against nothing."""


class Rows(Settings):
    """The rows of the tables that a study uses; `load_study` fills them in, so that a resolved study stands alone."""

    pairs: dict[str, Pair] = Field(default_factory=dict)
    """Name of a pair -> its row."""
    tasks: dict[str, Task] = Field(default_factory=dict)
    """Name of a task -> its row."""


class Config(Settings):
    """The keys of a study's config. What follows from them stands in `Study`."""

    study: Name
    """Its name: results go to results/<study>, the report to reports/<study>."""
    seed: int = 0
    """Seed of everything that is sampled while measuring; the trained models have one of their own, `training.seed`."""
    engines: Names = Field(default_factory=lambda: ["native"])
    """Engines to measure with; each runs the methods it can run."""
    engine_options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Engine -> its own options, e.g. `vllm: {eager: true}`; `specrig methods` lists them."""
    pairs: Names = Field(default_factory=list)
    """Rows of pairs.tsv; an entry of `methods` may name others for itself."""
    tasks: Names = Field(default_factory=list)
    """Rows of tasks.tsv."""
    methods: list[MethodEntry] = Field(default_factory=list)
    """Methods with their k's and options; plain decoding is measured beside each of them without being named."""
    servers: list[Endpoint] = Field(default_factory=list)
    """Servers that already run, for engines that measure by URL: one without speculation a pair, one a method and k."""
    temperatures: Temperatures = Field(default_factory=lambda: [0.0])
    """Sampling temperatures: 0 is greedy decoding, 1 the model's own distribution."""
    batch_sizes: BatchSizes = Field(default_factory=lambda: [1])
    """Prompts decoded side by side."""
    prompts: int = 8
    """Prompts a task; a batch larger than that takes as many as it holds, so that it is full."""
    max_new_tokens: int = Field(128, ge=2)
    """Longest output of a prompt, in tokens."""
    warmup: int = Field(1, ge=0)
    """Rounds of warm-up, not recorded, before each block of cells."""
    repeats: int = Field(1, ge=1)
    """Times that every prompt is measured in a row, in one process, each with a seed of its own."""
    replicates: int = Field(2, ge=1)
    """How often everything is measured: all jobs once, then all again, each by a new process. Two runs tell how far one can be trusted."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: cuda where there is a GPU."""
    threads: int | None = Field(None, ge=1)
    """CPU threads; null: all."""
    audit_samples: int = Field(20_480, ge=1_000)
    """Continuations that each method samples for the exact test of its distribution."""
    run_generated_code: bool = False
    """Let scorers (pass@1) execute the code that models wrote, in a limited subprocess. That is no sandbox: use a container."""
    training: Recipe = Field(default_factory=lambda: Recipe.model_validate({}))
    """How `trained` pairs are made."""
    tables: Tables = Tables()
    """Files that describe the pairs, the tasks and the reported figures."""
    results: Path = Path("results")
    """Folder below which each study has one of its own for what it makes, reports aside."""
    reports: Path = Path("reports")
    """Folder below which each study has one of its own for its report."""
    rows: Rows = Rows()
    """The rows of those files that the study uses; filled in when it is read, never by its author."""
