"""What differs between two studies besides their results, and what each difference can change: acceptance, speed or
both.

Acceptance follows from models, prompts, sampling and code; a machine can change it only through rounding. So if models,
prompts and code are the same, acceptance has to be the same, and a change of speed is the machine's or chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specrig.measurement.records import Record
from specrig.results.study_data import StudyData

Effect = Literal["acceptance and speed", "speed, acceptance by rounding alone", "speed", "nothing that was measured"]
BOTH: Effect = "acceptance and speed"
ROUNDING: Effect = "speed, acceptance by rounding alone"
SPEED: Effect = "speed"
NEITHER: Effect = "nothing that was measured"
JobKey = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that differs. what: its name. a, b: what A and B recorded. effect: what it can change. jobs: the jobs
    it concerns.
    """

    what: str
    a: str
    b: str
    effect: Effect
    jobs: frozenset[JobKey]


Read = Callable[[Mapping[str, Any]], Any]
ENVIRONMENT: tuple[tuple[str, Effect, Read], ...] = (
    ("processor", ROUNDING, lambda found: _joined(found, ("cpu", "model"), ("torch", "cpu_capability"))),
    ("processor's generation", ROUNDING, lambda found: _at(found, "cpu", "generation")),
    ("cores", SPEED, lambda found: _at(found, "cpu", "logical_cores")),
    ("GPU", ROUNDING, lambda found: ", ".join(str(gpu.get("name", gpu)) for gpu in found.get("gpus") or [])),
    ("device", ROUNDING, lambda found: found.get("device")),
    ("threads", ROUNDING, lambda found: _at(found, "torch", "threads")),
    ("last-level cache", SPEED, lambda found: _megabytes(_at(found, "memory", "last_level_cache"))),
    ("memory", SPEED, lambda found: f"{found['memory_gb']} GB" if found.get("memory_gb") else None),
    ("system", SPEED, lambda found: found.get("platform")),
    ("Python", SPEED, lambda found: found.get("python")),
    ("torch", ROUNDING, lambda found: _at(found, "packages", "torch")),
    ("transformers", ROUNDING, lambda found: _at(found, "packages", "transformers")),
    ("precision", BOTH, lambda found: _at(found, "models", "target", "precision")),
    ("engine's build", ROUNDING, lambda found: _at(found, "engine", "build")),
    ("engine's options", ROUNDING, lambda found: _listed(_at(found, "engine", "options"))),
    ("compiled passes", ROUNDING, lambda found: _compiled(_at(found, "engine", "kernels", "compiled"))),
)
"""(what, its effect, how environment.json tells it). A value that one of the two did not record is no difference."""
SETTINGS = {"max_new_tokens": "tokens to generate", "seed": "seed"}
"""Keys of a study's config that decide what every cell does -> their names for readers. Prompts are compared by the
records.
"""


def differences(a: StudyData, b: StudyData) -> list[Difference]:
    """What differs between the jobs that both studies measured: prompts, models, options, settings, code, machine, in
    this order.
    """
    jobs = [key for key in a.environments if key in b.environments]
    every = frozenset(jobs)
    found = [*_prompts(a, b), *_models(a, b, jobs), *_options(a, b)]
    for key, what in SETTINGS.items():
        ours, theirs = a.config.get(key), b.config.get(key)
        if ours != theirs:
            found.append(Difference(what, str(ours), str(theirs), BOTH, every))
    found += _code(a, b, jobs)
    for what, effect, read in ENVIRONMENT:
        values = {key: (read(a.environments[key]), read(b.environments[key])) for key in jobs}
        found += _grouped(what, effect, values)
    return found


def whole_differences(a: StudyData, b: StudyData) -> list[Difference]:
    """What differs between two studies that share no job: targets, settings, code, machine. `jobs` stays empty."""
    reads: list[tuple[str, Effect, Read]] = [("targets", BOTH, _target), *ENVIRONMENT]
    reads.insert(1, ("code", BOTH, _commit))
    found = []
    for key, what in SETTINGS.items():
        found.append((what, BOTH, str(a.config.get(key, "")), str(b.config.get(key, ""))))
    for what, effect, read in reads:
        ours, theirs = (_all_values(study, read) for study in (a, b))
        found.append((what, effect, ours, theirs))
    return [
        Difference(what, ours, theirs, effect, frozenset())
        for what, effect, ours, theirs in found
        if ours and theirs and ours != theirs
    ]


def unrecorded(a: StudyData, b: StudyData) -> tuple[list[str], list[str]]:
    """(what A did not record and B did, what B did not record and A did): whether these differ is not known."""
    names: tuple[list[str], list[str]] = ([], [])
    for what, _, read in ENVIRONMENT:
        known = [bool(_all_values(study, read)) for study in (a, b)]
        if known[0] != known[1]:
            names[known.index(False)].append(what)
    return names


def _all_values(study: StudyData, read: Read) -> str:
    """Every value that the jobs of a study recorded."""
    found = (read(environment) for environment in study.environments.values())
    return "; ".join(sorted({str(value) for value in found if value not in (None, "")}))


def _target(environment: Mapping[str, Any]) -> str | None:
    shape = _at(environment, "models", "target", "shape") or {}
    names = {"num_hidden_layers": "layers", "hidden_size": "wide", "vocab_size": "tokens"}
    return ", ".join(f"{shape[key]:,} {word}" for key, word in names.items() if shape.get(key)) or None


def _megabytes(size: Any) -> str | None:
    return f"{size / 1e6:,.1f} MB" if isinstance(size, int | float) and size else None


def _listed(options: Any) -> str | None:
    return (
        ", ".join(f"{key} {value}" for key, value in sorted(options.items())) if isinstance(options, Mapping) else None
    )


def _compiled(models: Any) -> str | None:
    return (", ".join(name for name, used in models.items() if used) or "none") if isinstance(models, Mapping) else None


def _prompts(a: StudyData, b: StudyData) -> list[Difference]:
    """Prompts that are not the same, task by task: their number, or ids and lengths."""
    found = []
    for task in [task for task in a.tasks if task in b.tasks]:
        ours, theirs = (_asked(study, task) for study in (a, b))
        if ours == theirs:
            continue
        same = len(ours & theirs)
        jobs = frozenset(records[0].cell.method_key for records in a.cells.values() if records[0].cell.task == task)
        found.append(
            Difference(
                f"prompts of {task}",
                f"{len(ours)}",
                f"{len(theirs)}, {same} of them the same by id and length",
                # More of the same prompts change no text.
                NEITHER if same == min(len(ours), len(theirs)) else BOTH,
                jobs,
            )
        )
    return found


def _asked(study: StudyData, task: str) -> set[tuple[str, int]]:
    return {(record.prompt_id, record.prompt_tokens) for record in study.records if record.cell.task == task}


def _models(a: StudyData, b: StudyData, jobs: Sequence[JobKey]) -> list[Difference]:
    """Models whose files differ, by their digests (of a model on the hub: by name and revision)."""
    parts = {key: (a.environments[key].get("models") or {}, b.environments[key].get("models") or {}) for key in jobs}
    names = dict.fromkeys(name for ours, theirs in parts.values() for name in ours if name in theirs)
    found = []
    for name in names:
        for pair in dict.fromkeys(key[1] for key in jobs):
            values = {
                key: (_identity(ours.get(name)), _identity(theirs.get(name)))
                for key, (ours, theirs) in parts.items()
                if key[1] == pair
            }
            found += _grouped(f"{name} of {pair}", BOTH, values)
    return found


def _identity(model: Mapping[str, Any] | None) -> str | None:
    if not model:
        return None
    if model.get("sha256"):
        return f"sha256 {str(model['sha256'])[:12]}"
    return f"{model.get('source')}@{model['revision']}" if model.get("revision") else None


def _options(a: StudyData, b: StudyData) -> list[Difference]:
    """Methods whose options differ although their cells have the same name, because a default was changed."""
    found: dict[tuple[str, str, str], set[JobKey]] = {}
    for name, records in a.cells.items():
        if name in b.cells:
            ours, theirs = records[0].cell.options, b.cells[name][0].cell.options
            for key in dict.fromkeys([*ours, *theirs]):
                one, other = ours.get(key, "no such option"), theirs.get(key, "no such option")
                if one != other:
                    found.setdefault((f"{records[0].cell.method}: {key}", str(one), str(other)), set()).add(
                        records[0].cell.method_key
                    )
    return [Difference(what, one, other, BOTH, frozenset(jobs)) for (what, one, other), jobs in found.items()]


def _code(a: StudyData, b: StudyData, jobs: Sequence[JobKey]) -> list[Difference]:
    """The commits. They can change nothing where the records have the same digest, which holds the code that measures."""
    values = {key: (_commit(a.environments[key]), _commit(b.environments[key])) for key in jobs}
    same = {key: _same_digests(a, b, key) for key in jobs}
    return [
        *_grouped("code", BOTH, {key: value for key, value in values.items() if not same[key]}),
        *_grouped("code that measures nothing", NEITHER, {key: value for key, value in values.items() if same[key]}),
    ]


def _same_digests(a: StudyData, b: StudyData, job: JobKey) -> bool:
    common = [name for name, records in a.cells.items() if records[0].cell.method_key == job and name in b.cells]
    return bool(common) and all(_digests(a.cells[name]) & _digests(b.cells[name]) for name in common)


def _digests(records: Iterable[Record]) -> set[str]:
    return {record.digest for record in records}


def _commit(environment: Mapping[str, Any]) -> str | None:
    git = environment.get("git") or {}
    return f"{str(git['commit'])[:12]}{' with changes' if git.get('dirty') else ''}" if git.get("commit") else None


def _grouped(what: str, effect: Effect, values: Mapping[JobKey, tuple[Any, Any]]) -> list[Difference]:
    """One difference for each pair of values that differ, with the jobs that have it. Empty and missing values say
    nothing.
    """
    found: dict[tuple[str, str], set[JobKey]] = {}
    for key, (ours, theirs) in values.items():
        if ours not in (None, "") and theirs not in (None, "") and ours != theirs:
            found.setdefault((str(ours), str(theirs)), set()).add(key)
    return [Difference(what, ours, theirs, effect, frozenset(jobs)) for (ours, theirs), jobs in found.items()]


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _joined(environment: Mapping[str, Any], *paths: tuple[str, ...]) -> str:
    return ", ".join(str(found) for path in paths if (found := _at(environment, *path)))
