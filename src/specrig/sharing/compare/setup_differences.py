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
MethodKey = tuple[str, str, str]
"""(engine, pair, method): their cells share an environment.json."""


@dataclass(frozen=True, slots=True)
class SetupDifference:
    """One thing that differs. a, b: what A and B recorded. effect: what it can change. methods: those it concerns.

    task: the only task that it concerns; empty: all of them.
    """

    what: str
    a: str
    b: str
    effect: Effect
    methods: frozenset[MethodKey] = frozenset()
    task: str = ""

    def concerns(self, task: str) -> bool:
        """Whether it can change cells of `task`."""
        return self.task in ("", task)


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


def differences(a: StudyData, b: StudyData) -> list[SetupDifference]:
    """What differs between methods that both studies measured: prompts, models, options, settings, code, machine."""
    methods = [key for key in a.environments if key in b.environments]
    every = frozenset(methods)
    found = [*_prompts(a, b), *_models(a, b, methods), *_options(a, b)]
    for key, what in SETTINGS.items():
        ours, theirs = a.config.get(key), b.config.get(key)
        if ours != theirs:
            found.append(SetupDifference(what, str(ours), str(theirs), BOTH, every))
    found += _code(a, b, methods)
    for what, effect, read in ENVIRONMENT:
        values = {key: (read(a.environments[key]), read(b.environments[key])) for key in methods}
        found += _grouped(what, effect, values)
    return found


def whole_differences(a: StudyData, b: StudyData) -> list[SetupDifference]:
    """What differs between two studies that share no cell: settings, targets, code, machine. `methods` stays empty."""
    reads: list[tuple[str, Effect, Read]] = [("targets", BOTH, _target), ("code", BOTH, _commit), *ENVIRONMENT]
    found = [(what, BOTH, str(a.config.get(key, "")), str(b.config.get(key, ""))) for key, what in SETTINGS.items()]
    found += [(what, effect, _all_values(a, read), _all_values(b, read)) for what, effect, read in reads]
    return [
        SetupDifference(what, ours, theirs, effect)
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
    """Every value that the methods of a study recorded."""
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


def _prompts(a: StudyData, b: StudyData) -> list[SetupDifference]:
    """Prompts that are not the same, task by task: their number, or ids and lengths."""
    found = []
    for task in [task for task in a.tasks if task in b.tasks]:
        ours, theirs = (_prompt_ids(study, task) for study in (a, b))
        if ours == theirs:
            continue
        same = len(ours & theirs)
        methods = frozenset(records[0].cell.method_key for records in a.cells.values() if records[0].cell.task == task)
        # More of the same prompts change no text.
        effect = NEITHER if same == min(len(ours), len(theirs)) else BOTH
        b_text = f"{len(theirs)}, {same} of them the same by id and length"
        found.append(SetupDifference(f"prompts of {task}", str(len(ours)), b_text, effect, methods, task))
    return found


def _prompt_ids(study: StudyData, task: str) -> set[tuple[str, int]]:
    return {(record.prompt_id, record.prompt_tokens) for record in study.records if record.cell.task == task}


def _models(a: StudyData, b: StudyData, methods: Sequence[MethodKey]) -> list[SetupDifference]:
    """Models whose files differ, by their digests (of a model on the hub: by name and revision)."""
    parts = {key: (a.environments[key].get("models") or {}, b.environments[key].get("models") or {}) for key in methods}
    names = dict.fromkeys(name for ours, theirs in parts.values() for name in ours if name in theirs)
    found = []
    for name in names:
        for pair in dict.fromkeys(key[1] for key in methods):
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


def _options(a: StudyData, b: StudyData) -> list[SetupDifference]:
    """Methods whose options differ although their cells have the same name, because a default was changed."""
    found: dict[tuple[str, str, str], set[MethodKey]] = {}
    for cell, other in ((a.cells[name][0].cell, b.cells[name][0].cell) for name in a.cells if name in b.cells):
        for key in dict.fromkeys([*cell.options, *other.options]):
            ours, theirs = (each.options.get(key, "no such option") for each in (cell, other))
            if ours != theirs:
                found.setdefault((f"{cell.method}: {key}", str(ours), str(theirs)), set()).add(cell.method_key)
    return [SetupDifference(*texts, BOTH, frozenset(methods)) for texts, methods in found.items()]


def _code(a: StudyData, b: StudyData, methods: Sequence[MethodKey]) -> list[SetupDifference]:
    """The commits. They can change nothing where the records have the same digest of the code that measures."""
    values = {key: (_commit(a.environments[key]), _commit(b.environments[key])) for key in methods}
    same = {key: _same_digests(a, b, key) for key in methods}
    return [
        *_grouped("code", BOTH, {key: value for key, value in values.items() if not same[key]}),
        *_grouped("code that measures nothing", NEITHER, {key: value for key, value in values.items() if same[key]}),
    ]


def _same_digests(a: StudyData, b: StudyData, method: MethodKey) -> bool:
    common = [name for name, records in a.cells.items() if records[0].cell.method_key == method and name in b.cells]
    return bool(common) and all(_digests(a.cells[name]) & _digests(b.cells[name]) for name in common)


def _digests(records: Iterable[Record]) -> set[str]:
    return {record.digest for record in records}


def _commit(environment: Mapping[str, Any]) -> str | None:
    git = environment.get("git") or {}
    return f"{str(git['commit'])[:12]}{' with changes' if git.get('dirty') else ''}" if git.get("commit") else None


def _grouped(what: str, effect: Effect, values: Mapping[MethodKey, tuple[Any, Any]]) -> list[SetupDifference]:
    """One difference for each pair of values that differ, with the methods that have it. Empty and missing values say
    nothing.
    """
    found: dict[tuple[str, str], set[MethodKey]] = {}
    for key, (ours, theirs) in values.items():
        if ours not in (None, "") and theirs not in (None, "") and ours != theirs:
            found.setdefault((str(ours), str(theirs)), set()).add(key)
    return [
        SetupDifference(what, ours, theirs, effect, frozenset(methods)) for (ours, theirs), methods in found.items()
    ]


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _joined(environment: Mapping[str, Any], *paths: tuple[str, ...]) -> str:
    return ", ".join(str(found) for path in paths if (found := _at(environment, *path)))
