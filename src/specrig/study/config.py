"""The keys that a study's config (`configs/*.yaml`) may have, with their types and defaults. No torch here."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from specrig.models.endpoint import Endpoint
from specrig.settings import AnyPath, Settings
from specrig.study.entries import BatchSizes, MethodEntry, Names, Temperatures
from specrig.study.rows import Name, Pair, Task
from specrig.training.recipe import Recipe


class Tables(Settings):
    """The three tables that a study reads: pairs, tasks and reported figures, each with one row an entry."""

    pairs: AnyPath = Path("configs/pairs.tsv")
    """File with one row a pair of models."""
    tasks: AnyPath = Path("configs/tasks.tsv")
    """File with one row a task."""
    reported: AnyPath | None = Path("configs/reported.csv")
    """File with one row a reported figure; null: the study is compared with no reported figures."""


class Rows(Settings):
    """Copies of the table rows that a study uses. `load_study` fills them in, so that a resolved study needs no tables."""

    pairs: dict[str, Pair] = Field(default_factory=dict)
    """Name of a pair -> its row."""
    tasks: dict[str, Task] = Field(default_factory=dict)
    """Name of a task -> its row."""


class Config(Settings):
    """The keys of a study's config. `Study` adds what is computed from them."""

    study: Name
    """Name of the study: results go to results/<study>, the report to reports/<study>."""
    seed: int = 0
    """Seed of everything that is sampled while measuring; training uses `training.seed` instead."""
    engines: Names = Field(default_factory=lambda: ["native"])
    """Engines to measure with; each runs the methods it can run."""
    engine_options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Engine -> its own options, e.g. `vllm: {eager: true}`; `specrig methods` lists them."""
    pairs: Names = Field(default_factory=list)
    """Pairs to measure, by their names in pairs.tsv; an entry of `methods` may name other pairs for itself."""
    tasks: Names = Field(default_factory=list)
    """Tasks to measure, by their names in tasks.tsv."""
    methods: list[MethodEntry] = Field(default_factory=list)
    """Methods with their k's and options; plain decoding is measured beside each of them without being named."""
    servers: list[Endpoint] = Field(default_factory=list)
    """Running servers for engines that measure by URL: for each pair one without speculation, and one for each method
    and k.
    """
    temperatures: Temperatures = Field(default_factory=lambda: [0.0])
    """Sampling temperatures: 0 is greedy decoding, 1 the model's own distribution."""
    batch_sizes: BatchSizes = Field(default_factory=lambda: [1])
    """Batch sizes: how many prompts are decoded side by side."""
    prompts: int = 8
    """Prompts of each task that are measured; a larger batch size takes more prompts, so that one batch is full."""
    max_new_tokens: int = Field(128, ge=2)
    """Most tokens that are generated for a prompt."""
    warmup: int = Field(1, ge=0)
    """Generations before each block of cells that warm up the machine and are not recorded."""
    repeats: int = Field(1, ge=1)
    """How many times one process measures every prompt, each time with another seed."""
    replicates: int = Field(2, ge=1)
    """How often everything is measured: all jobs once, then all again, each in a new process, which shows how far runs
    differ.
    """
    jobs: Literal["pair", "method"] = "pair"
    """What one process measures: all methods of an engine and pair, which then share the loading and the runs of the
    baseline; or one method each, for clusters and for GPUs that have no room for all drafts and heads at once. Engines
    that cannot alternate always measure method by method."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device that jobs run on; auto: cuda where there is a GPU, else cpu."""
    threads: int | None = Field(None, ge=1)
    """CPU threads of a job; null: all."""
    audit_samples: int = Field(20_480, ge=1_000)
    """Continuations that each method samples when its distribution is tested against an exactly known one."""
    run_generated_code: bool = False
    """Let scorers (pass@1) execute the code that models wrote, in a limited subprocess. That is no sandbox: use a
    container.
    """
    training: Recipe = Field(default_factory=lambda: Recipe.model_validate({}))
    """How the models of `trained` pairs are trained."""
    tables: Tables = Tables()
    """Files that describe the pairs, the tasks and the reported figures."""
    results: AnyPath = Path("results")
    """Folder in which each study has a folder for everything it makes except its report."""
    reports: AnyPath = Path("reports")
    """Folder in which each study has a folder for its report."""
    rows: Rows = Rows()
    """The table rows that the study uses; filled in when the study is read, never written by its author."""
