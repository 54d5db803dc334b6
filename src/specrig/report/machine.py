"""Describe what a study ran on, from the environment.json files of its jobs and the files of its models."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from specrig.report.damage import reading
from specrig.report.grid import Grid, GridEntry, number
from specrig.report.study_data import MeasuredJob, StudyData

MOVING = ("captured", "load_1min", "mhz", "sm_mhz", "memory_mhz", "copy_gb_s")
"""The last parts of keys that differ between any two jobs. Only the full list shows them; no warning is given."""


def flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted key, text) for each value of a nested mapping or list; None is left out."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from flatten(inner, f"{prefix}.{number}")
    elif value is not None:
        yield prefix, str(value)


def environment_rows(jobs: list[MeasuredJob]) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """(key, [(value, names of the jobs with this value)]) for each key; the names are left out where all jobs agree."""
    found: dict[str, dict[str, list[str]]] = {}
    measured = [job for job in jobs if job.environment]
    for job in measured:
        for key, text in flatten(job.environment):
            found.setdefault(key, {}).setdefault(text, []).append(job.name)
    return [
        (key, [(text, [] if len(users) == len(measured) else users) for text, users in values.items()])
        for key, values in found.items()
    ]


def environment_grid(jobs: list[MeasuredJob]) -> Grid | None:
    """`environment_rows` as a table, one line a value; None where nothing was recorded."""
    rows = [
        [GridEntry(key if first else ""), GridEntry(text, f"({', '.join(users)})" if users else "")]
        for key, values in environment_rows(jobs)
        for first, (text, users) in zip([True, *[False] * len(values)], values, strict=False)
    ]
    caption = "What jobs recorded of their environment; in brackets the jobs, where not all agree."
    return Grid(["key", "value"], rows, labels=2, caption=caption) if rows else None


def models_grid(study: StudyData) -> Grid | None:
    """The models that a study made or stored, with their sizes; None without models."""
    rows = [
        [GridEntry(row["pair"]), GridEntry(row["name"]), GridEntry(_millions(row["parameters"]))]
        for row in model_rows(study.folder)
    ]
    header, caption = ["pair", "model", "parameters (millions)"], "Models made or stored by the study."
    return Grid(header, rows, labels=2, caption=caption, label=f"tab:{study.name}-models") if rows else None


def _millions(parameters: int | None) -> str:
    return number(parameters / 1e6, 1 if parameters >= 1e6 else 3) if parameters else "–"


def differing(jobs: list[MeasuredJob]) -> list[str]:
    """The keys whose value is not the same in all jobs, so that their cells should be compared with care."""
    rows = environment_rows(jobs)
    return [
        key
        for key, values in rows
        if len(values) > 1 and key.rsplit(".", 1)[-1] not in MOVING and not key.startswith(("models.", "engine."))
    ]


def processor_name(cpu: Mapping[str, Any]) -> str | None:
    """A processor's model, with its generation where recorded: many processors share one name."""
    model, generation = cpu.get("model"), cpu.get("generation")
    return f"{model} ({generation})" if model and generation else model


def device(environment: dict[str, Any]) -> str:
    """The GPUs or the processor by name; empty where not recorded."""
    cpu = environment.get("cpu") or {}
    gpus = [str(gpu.get("name", gpu)) if isinstance(gpu, dict) else str(gpu) for gpu in environment.get("gpus") or []]
    return ", ".join(gpus) or str((processor_name(cpu) if isinstance(cpu, dict) else cpu) or "")


def machine(environment: dict[str, Any]) -> str:
    """One line of text: GPU or processor, cores, threads, torch's version. Parts that are not known are left out."""
    cpu, torch = environment.get("cpu") or {}, environment.get("torch") or {}
    cores = cpu.get("logical_cores") or cpu.get("cores") if isinstance(cpu, dict) else None
    threads = torch.get("threads") if isinstance(torch, dict) else None
    version = (environment.get("packages") or {}).get("torch")
    parts = [
        device(environment),
        f"{cores} logical cores" if cores else None,
        f"{threads} thread{'s' if threads != 1 else ''}" if threads else None,
        f"torch {version}" if version else None,
    ]
    return ", ".join(str(part) for part in parts if part)


def engine_notes(jobs: list[MeasuredJob], cells: pd.DataFrame) -> list[str]:
    """One sentence for each engine that recorded its build, its options or that cannot alternate."""
    notes = []
    for name in dict.fromkeys(job.engine for job in jobs):
        engine: dict[str, Any] = next(
            (job.environment["engine"] for job in jobs if job.engine == name and "engine" in job.environment), {}
        )
        options = ", ".join(f"{key} {value}" for key, value in (engine.get("options") or {}).items())
        weights = ", ".join(f"{kind} ({pair})" for pair, kind in precisions(jobs).get(name, {}).items())
        parts = [
            engine.get("build"),
            f"weights: {weights}" if weights else None,
            f"options: {options}" if options else None,
            None if engine.get("paired", True) else "its baseline ran before and after each job's methods",
        ]
        if any(parts):
            notes.append(f"Engine {name}: {'; '.join(filter(None, parts))}.")
    return notes


def precisions(jobs: list[MeasuredJob]) -> dict[str, dict[str, str]]:
    """Engine -> pair -> what the target's weights were stored as; of records without it nothing is said."""
    found: dict[str, dict[str, str]] = {}
    for job in jobs:
        if precision := (job.environment.get("engine") or {}).get("precision"):
            found.setdefault(job.engine, {})[job.pair] = str(precision)
    return found


def energy_note(jobs: list[MeasuredJob]) -> str | None:
    """Sentences on how the energy in the tables was measured; None where it was not."""
    sources = dict.fromkeys(str(job.environment["energy"]) for job in jobs if job.environment.get("energy"))
    if not sources:
        return None
    return (
        f"Energy: {', '.join(sources)}; joules of the whole device over each generation, prefill included, read before "
        "and after it. The counters step some ten times a second, so a cell's sum counts, not a single prompt's."
    )


def commit(environment: dict[str, Any]) -> str:
    """The first 12 digits of the git commit, with a remark on uncommitted changes; empty when unknown."""
    git = environment.get("git") or {}
    if not isinstance(git, dict) or not git.get("commit"):
        return ""
    return f"{str(git['commit'])[:12]}{' with uncommitted changes' if git.get('dirty') else ''}"


def model_rows(study: Path) -> list[dict[str, Any]]:
    """The models that a study made or stored, as rows with pair, name and parameters (None where they cannot be read).

    A published study lists them in `models.json`.
    """
    listed = study / "models.json"
    if listed.is_file():
        with reading(listed):
            rows = json.loads(listed.read_text(encoding="utf-8"))
            return [{name: row[name] for name in ("pair", "name", "parameters")} for row in rows]
    folders = sorted((study / "models").glob("*/[!.]*/"))  # a training at work hides its folder
    rows = [{"pair": folder.parent.name, "name": folder.name, "parameters": parameters(folder)} for folder in folders]
    return sorted(rows, key=lambda row: (row["pair"], row["name"] != "target", row["name"]))


def parameters(model: Path) -> int | None:
    """The parameters of the model in a folder, from its safetensors headers; None if not readable."""
    total = 0
    for path in sorted(model.glob("*.safetensors")):
        try:
            with path.open("rb") as file:
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            total += sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, MemoryError, RecursionError):
            return None
    return total or None
