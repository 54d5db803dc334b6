"""Resolving a config into a Study: every problem that can be seen before anything runs is found, all at once."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from specrig.study import checks
from specrig.study.claims import read_claims
from specrig.study.problems import Positions, Problem, Problems, StudyError, nearest, reason_of
from specrig.study.rows import Pair, Task, read_rows
from specrig.study.study import Study


def load_study(config: dict[str, Any] | Path, files: Sequence[Path] = ()) -> Study:
    """Read and check a study: a config file, a resolved study.json, or a config already read from `files`.

    Raises StudyError, whose message lists every problem with its place and the fix.
    """
    if isinstance(config, Path):
        files, config = [config], read_config(config)
    problems = Problems(Positions(files))
    draft, broken = validated(config, problems)
    resolved = bool(config.get("rows"))
    if resolved:
        problems.stop()
        return draft
    pairs = read_rows(draft.tables.pairs, Pair, problems)
    tasks = read_rows(draft.tables.tasks, Task, problems)
    if draft.tables.reported is not None:
        read_claims(draft.tables.reported, problems)
    checks.check_names(draft, pairs, tasks, broken, problems)
    checks.check_engine_options(draft, problems)
    for index, entry in enumerate(draft.methods):
        checks.check_entry(draft, index, entry, pairs, problems)
    checks.check_servers(draft, problems)
    problems.stop()
    used = dict.fromkeys([*draft.pairs, *(name for entry in draft.methods for name in entry.pairs or ())])
    used |= dict.fromkeys(base for name in used if (base := pairs[name].base) in pairs)
    rows = {"pairs": {name: pairs[name] for name in used}, "tasks": {name: tasks[name] for name in draft.tasks}}
    study = Study.model_validate({**draft.model_dump(), "rows": rows})
    checks.check_cells(study, problems)
    checks.check_pairs(study, problems)
    checks.check_tasks(study, problems)
    checks.check_folders(study, problems)
    problems.stop()
    checks.check_refusals(study, problems)
    problems.stop()
    return study


def read_config(file: Path) -> dict[str, Any]:
    """A YAML or JSON config. Raises StudyError for a file that is missing or does not parse."""
    if not file.is_file():
        folder = file.parent
        others = [str(path) for path in sorted(folder.glob("*.yaml"))] if folder.is_dir() else []
        raise StudyError([Problem(str(file), "", "no such config", nearest(str(file), others, what="configs there"))])
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1}" if mark else str(file)
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise StudyError([Problem(where, "", f"not valid YAML ({reason})", "correct the line; indent with spaces")]) from error
    if not isinstance(content, dict):
        raise StudyError([Problem(str(file), "", "the file holds no keys", "start from configs/quick.yaml")])
    return content


def validated(config: dict[str, Any], problems: Problems) -> tuple[Study, set[str]]:
    """A Study from the sound parts of `config`, and the top-level keys that were not sound (they are in `problems`).

    What is broken is cut out, so that the checks that follow still see the rest.
    """
    rest: dict[str, Any] = copy.deepcopy(config)
    broken: set[str] = set()
    if not rest.get("study"):
        problems.key(["study"], "the study has no name", "add `study: <name>`")
        rest["study"] = "unnamed"
    for _ in range(5):
        try:
            return Study.model_validate(rest), broken
        except ValidationError as error:
            for issue in reversed(error.errors()):
                # Names of union members and validators are no part of the config.
                path = _inside(rest, issue["loc"])
                broken.add(str(path[0]))
                if issue["type"] == "extra_forbidden":
                    problems.unknown(path, "key", path[-1], _fields(path[:-1]))
                else:
                    problems.key(path, reason_of(issue), f"you gave {issue['input']!r}" if "input" in issue else "")
                _cut(rest, path)
    problems.stop()
    raise AssertionError("validation neither succeeds nor says why")


def _inside(config: Any, path: Sequence[str | int]) -> list[str | int]:
    """The part of an error's location that is a path in the config (at least its first step)."""
    found: list[str | int] = []
    for step in path:
        if found and not (
            (isinstance(config, dict) and step in config)
            or (isinstance(config, list) and isinstance(step, int) and step < len(config))
        ):
            break
        config = config.get(step) if isinstance(config, dict) else config[int(step)]
        found.append(step)
    return found


def _cut(config: Any, path: Sequence[str | int]) -> None:
    for step in path[:-1]:
        config = config[step]
    if isinstance(config, list):
        del config[int(path[-1])]
    else:
        config.pop(path[-1], None)


def _fields(path: Sequence[str | int]) -> Iterable[str]:
    """Names of the keys that may stand at `path`."""
    model: Any = Study
    for step in path:
        if isinstance(step, int):
            continue
        kind = model.model_fields[str(step)].annotation
        model = next(iter(get_args(kind)), kind)  # the items of a list
    assert issubclass(model, BaseModel)
    return (name for name in model.model_fields if name != "rows")
