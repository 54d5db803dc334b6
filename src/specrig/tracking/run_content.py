"""The content of one run in MLflow, and what runs of all kinds have in common: tags, times, hashes of models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from specrig.cell import digest
from specrig.measurement.records import Record
from specrig.report.machine import flatten

NOTE = "mlflow.note.content"
"""The name of the tag that MLflow shows as a run's description; its value is Markdown."""
ENVIRONMENT_TAGS = {
    "measured": "captured", "cpu": "cpu.model", "gpu": "gpus.0.name", "device": "device", "threads": "torch.threads",
    "torch": "torch.version", "transformers": "packages.transformers",
}  # fmt: skip
"""Tag -> its key in environment.json. The whole file is an artifact of the methods' runs."""


@dataclass(frozen=True, slots=True)
class PromptDataset:
    """The prompts of a task, as MLflow lists data sets; never their texts.

    source: the task's row in the table of tasks, as JSON. digest: changes with that row, the chosen prompts and their
    file.
    """

    task: str
    digest: str
    source: str
    count: int


@dataclass(slots=True)
class RunContent:
    """The content of one run in MLflow.

    key: the run's tag `cell`. name: shown in the list of runs. sha: of the files and runs that it is made from.
    children: runs below it. series: metric -> its (step, value) pairs; a step is a prompt, a k or a second of training.
    measured: begin and end of measuring in milliseconds since 1970; None where the records do not state them.
    """

    key: str
    name: str
    sha: str
    tags: dict[str, str] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    series: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    artifacts: list[Path] = field(default_factory=list)
    children: list[RunContent] = field(default_factory=list)
    measured: tuple[int, int] | None = None
    datasets: list[PromptDataset] = field(default_factory=list)

    @property
    def record_sha(self) -> str:
        """The run's tag `record_sha`. It holds the metrics too, because other cells can change those of one cell, and the
        lines, which another version may draw otherwise.
        """
        return digest([self.sha, repr(sorted(self.metrics.items())), repr(sorted(self.series.items()))])


def time_measured(records: Iterable[Record]) -> tuple[int, int] | None:
    """When the first and the last of `records` were measured, in milliseconds since 1970."""
    times = [int(1000 * datetime.fromisoformat(record.when).timestamp()) for record in records if record.when]
    return (min(times), max(times)) if times else None


def time_span(runs: Iterable[RunContent]) -> tuple[int, int] | None:
    """From the earliest begin to the latest end of measuring of any of these."""
    times = [run.measured for run in runs if run.measured]
    return (min(begin for begin, _ in times), max(end for _, end in times)) if times else None


def environment_tags(environment: dict[str, Any]) -> dict[str, str]:
    """Tags that name machine, versions and commit."""
    known = dict(flatten(environment))
    tags = {tag: known[key] for tag, key in ENVIRONMENT_TAGS.items() if key in known}
    commit = (environment.get("git") or {}).get("commit")
    tags |= {"mlflow.source.name": "specrig", "mlflow.source.type": "LOCAL"}
    return tags | ({"mlflow.source.git.commit": str(commit)} if commit else {})


def model_hashes(environment: dict[str, Any], *parts: str) -> dict[str, str]:
    """Params that name the models by their SHA-256. parts: of the pair; none given: all."""
    models = environment.get("models") or {}
    return {
        f"{name}_sha256": str(model["sha256"])
        for name, model in models.items()
        if model.get("sha256") and (not parts or name in parts)
    }


def setting_names(temperature: float, batch_size: int) -> list[str]:
    """The parts of a setting that a name states: none for greedy decoding of single prompts."""
    return [*([f"T = {temperature:g}"] if temperature else []), *([f"batch {batch_size}"] if batch_size > 1 else [])]
