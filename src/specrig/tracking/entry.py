"""The content of one run in MLflow, and what the runs of all kinds say alike: where it was measured, with which models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from specrig.cell import digest
from specrig.measurement.records import Record
from specrig.results.machine import flatten

NOTE = "mlflow.note.content"
"""The name of the tag that MLflow shows as a run's description; its value is Markdown."""
SURROUNDINGS = {
    "measured": "captured",
    "cpu": "cpu.model",
    "gpu": "gpus.0.name",
    "device": "device",
    "threads": "torch.threads",
    "torch": "torch.version",
    "transformers": "packages.transformers",
}
"""Tag -> what it holds of the environment. The whole of it is an artifact of the methods' runs."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts of a task, as MLflow lists them among datasets: what they are, never their texts.

    source: the task's row in the table of tasks, as JSON. digest: changes with that row, the chosen prompts and the
    file they are in.
    """

    task: str
    digest: str
    source: str
    count: int


@dataclass(slots=True)
class Entry:
    """The content of one run in MLflow.

    key: the run's tag `cell`. name: shown in the list of runs. sha: of the files and runs that it is made from.
    children: runs below it.
    series: metric -> its (step, value) pairs, where a step is a prompt, a k or a second of training. measured: when
    measuring began and ended, in milliseconds since 1970; None where the records do not say. prompts: what was measured
    on.
    """

    key: str
    name: str
    sha: str
    tags: dict[str, str] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    series: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    artifacts: list[Path] = field(default_factory=list)
    children: list[Entry] = field(default_factory=list)
    measured: tuple[int, int] | None = None
    prompts: list[Prompts] = field(default_factory=list)

    @property
    def content(self) -> str:
        """The run's tag `record_sha`, which changes with what the run shows: the same records may be judged otherwise
        beside others.
        """
        return digest([self.sha, repr(sorted(self.metrics.items()))])


def measured(records: Iterable[Record]) -> tuple[int, int] | None:
    """When records were measured: the first and the last probe of the machine around them, in milliseconds since 1970."""
    probes = {probe.when for record in records for probe in (record.before, record.after) if probe}
    times = [int(1000 * datetime.fromisoformat(when).timestamp()) for when in probes]
    return (min(times), max(times)) if times else None


def span(entries: Iterable[Entry]) -> tuple[int, int] | None:
    """From the earliest begin to the latest end of measuring of any of these."""
    times = [entry.measured for entry in entries if entry.measured]
    return (min(begin for begin, _ in times), max(end for _, end in times)) if times else None


def surroundings(environment: dict[str, Any]) -> dict[str, str]:
    """Tags that say where a job ran."""
    known = dict(flatten(environment))
    tags = {tag: known[key] for tag, key in SURROUNDINGS.items() if key in known}
    commit = (environment.get("git") or {}).get("commit")
    tags |= {"mlflow.source.name": "specrig", "mlflow.source.type": "LOCAL"}
    return tags | ({"mlflow.source.git.commit": str(commit)} if commit else {})


def digests(environment: dict[str, Any], *wanted: str) -> dict[str, str]:
    """Params that name the models by their digests; wanted: these parts of the pair alone, none for all."""
    models = environment.get("models") or {}
    return {
        f"{name}_sha256": str(model["sha256"])
        for name, model in models.items()
        if model.get("sha256") and (not wanted or name in wanted)
    }


def setting_names(temperature: float, batch_size: int) -> list[str]:
    """What of a setting a name should say: nothing for greedy decoding of single prompts."""
    return [*([f"T = {temperature:g}"] if temperature else []), *([f"batch {batch_size}"] if batch_size > 1 else [])]
