"""Turns a config into a checked `Study`, and reports at once every problem that can be seen before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from specrig.study.claims import read_claims
from specrig.study.config import Rows
from specrig.study.config_checks import (
    check_engine_options,
    check_entry,
    check_folders,
    check_names,
    check_servers,
    check_traffic,
)
from specrig.study.learning_curve import learning_curves
from specrig.study.problems import Positions, Problems, mistake, parsed, read_config
from specrig.study.rows import Pair, Task, read_rows
from specrig.study.study import Study
from specrig.study.table_checks import (
    check_cells,
    check_initial_checkpoints,
    check_pairs,
    check_refusals,
    check_tasks,
    check_text_length,
    check_trained,
)
from specrig.tasks.variants import variants

_EVALUATIONS = "remove the line: what is trained is measured halfway and at the end"
_CORPUS = "remove the line: the target learns nothing, and its draft and heads learn from what it writes"
_HEADS = ("medusa", "hydra", "eagle", "eagle3", "p_eagle", "dflash", "pard")
RETIRED = {
    **{f"training.{block}.evaluations": _EVALUATIONS for block in (*_HEADS, "draft_training")},
    **{f"training.{head}.corpus_sequences": _CORPUS for head in _HEADS},
    **{f"training.{key}": _CORPUS for key in ("corpus", "vocabulary", "target", "target_training")},
    "training.distillation.generated_share": _CORPUS,
    **{f"training.draft_training.{key}": "remove the line" for key in ("growth", "accumulate", "compile")},
    "training.draft_training.sequence": "remove the line: texts are as long as training.text.sequence",
    "training.text.shards": "remove the line: the target's text lies in one file a source, to which runs append",
    "training.own_requests.article": "remove the line: a target asks for no articles",
    "price_per_hour": "divide the tokens of an hour (3600 × tokens_per_s) by its price",
}
"""Keys that configs had once -> what to do instead. A resolved study that still has them is read as before."""


def load_study(config: dict[str, Any] | Path, files: Sequence[Path] = ()) -> Study:
    """Read and check a study: a config file, a resolved study.json, or a config already read from `files`.

    Raises StudyError, whose message lists every problem with its file, its row and the fix.
    """
    file = config if isinstance(config, Path) else None
    if isinstance(config, Path):
        files, config = [config], read_config(config)
    else:
        for file in files:
            parsed(file)
    problems = Problems(Positions(files))
    draft, broken = validated(config, problems)
    resolved = bool(config.get("rows"))
    if resolved:
        problems.stop()
        return draft if file is None else draft.lying_in(file.parent)
    pairs = read_rows(draft.tables.pairs, Pair, problems)
    tasks = read_rows(draft.tables.tasks, Task, problems)
    if draft.tables.reported is not None:
        read_claims(draft.tables.reported, problems)
    check_names(draft, pairs, tasks, broken, problems)
    check_engine_options(draft, problems)
    for index, entry in enumerate(draft.methods):
        check_entry(draft, index, entry, pairs, problems)
    check_servers(draft, problems)
    check_traffic(draft, problems)
    problems.stop()
    used = dict.fromkeys([*draft.pairs, *(name for entry in draft.methods for name in entry.pairs or ())])
    used |= dict.fromkeys(other for name in used for other in pairs[name].depends_on if other in pairs)
    rows = {name: pairs[name] for name in used}
    needs = {
        name: {need for entry in draft.methods if name in (entry.pairs or draft.pairs) for need in entry.needs}
        for name in rows
    }
    curves = learning_curves(rows, needs, problems)
    study = Study.model_validate(_expanded(draft, Rows(pairs=rows, learning_curves=curves), tasks))
    check_cells(study, problems)
    check_pairs(study, problems)
    check_trained(study, problems)
    check_initial_checkpoints(study, problems)
    check_text_length(study, problems)
    check_tasks(study, problems)
    check_folders(study, problems)
    problems.stop()
    check_refusals(study, problems)
    problems.stop()
    return study


def _expanded(draft: Study, rows: Rows, tasks: dict[str, Task]) -> dict[str, Any]:
    """The study with the rows that it uses, and with the variants of its tasks in their place."""
    named = {name: variants(name, tasks[name].turns, draft.contexts) for name in draft.tasks}
    found = draft.model_dump()
    for block in (found, *found["methods"]):
        if block["tasks"] is not None:
            block["tasks"] = [each for name in block["tasks"] for each in named[name]]
    used = {each: tasks[name] for name, own in named.items() for each in (name, *own)}
    return found | {"rows": rows.model_copy(update={"tasks": used})}


def validated(config: dict[str, Any], problems: Problems) -> tuple[Study, set[str]]:
    """Return a Study made of the valid parts of `config`, and the top-level keys that hold invalid ones (added to
    `problems`).

    Invalid parts are left out, so that the later checks still see the rest. Raises StudyError if no valid study is
    left.
    """
    config = _own(config, (), problems)
    _refuse_retired(config, problems)
    if not config.get("study"):
        problems.key(["study"], "the study has no name", "add `study: <name>`")
        config["study"] = "unnamed"
    try:
        return Study.model_validate(config), set()
    except ValidationError as error:
        issues = error.errors()
    # Names of union members and validators, which pydantic adds to a place, are no part of the config.
    paths = [_inside(config, issue["loc"]) for issue in issues]
    for issue, path in zip(issues, paths, strict=True):
        if issue["type"] == "extra_forbidden":
            problems.unknown(path, "key", path[-1], _fields(path[:-1]))
        else:
            problems.key(path, *mistake(issue))
    # Items are cut from the end of a list, so that the ones before them still hold.
    for place in sorted({tuple(path) for path in paths}, reverse=True):
        _cut(config, place)
    try:
        return Study.model_validate(config), {str(path[0]) for path in paths}
    except ValidationError:  # what is left leans on what was cut
        problems.stop()
        raise


def _refuse_retired(config: dict[str, Any], problems: Problems) -> None:
    """Take the keys in `RETIRED` out of a config, and add a problem for each that its author wrote.

    A resolved study, such as a published one, may have been written by an earlier version. Nothing is trained from it, so
    that a `training` block with such keys is left out whole.
    """
    resolved = bool(config.get("rows"))
    for name, fix in RETIRED.items():
        *blocks, key = path = name.split(".")
        block: Any = config
        for step in blocks:
            block = block.get(step) if isinstance(block, dict) else None
        if not isinstance(block, dict) or key not in block:
            continue
        del block[key]
        if not resolved:
            problems.key(path, "this key was removed", fix)
        elif blocks:
            config.pop(blocks[0])


def _own(value: Any, path: tuple[str | int, ...], problems: Problems) -> Any:
    """A copy of a config in which no two keys share a list or block, as they do behind YAML's aliases: one may be
    cut.

    Numbers beyond 64 bits, which no stage can compute with, become 1 and are added to `problems`.
    """
    if isinstance(value, dict):
        return {key: _own(item, (*path, key), problems) for key, item in value.items()}
    if isinstance(value, list):
        return [_own(item, (*path, index), problems) for index, item in enumerate(value)]
    if isinstance(value, int) and abs(value) >= 1 << 63:
        problems.key(path, "a number beyond 64 bits", "give one below 2^63")
        return 1
    return value


def _inside(config: Any, path: Sequence[str | int]) -> list[str | int]:
    """The leading steps of an error's location that exist in the config; at least the first step."""
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
    """Names of the keys that the block at `path` may have."""
    model: Any = Study
    is_name = False  # of a row: a step into a mapping
    for step in path:
        if is_name or isinstance(step, int):
            is_name = False
            continue
        kind = model.model_fields[str(step)].annotation
        is_name = get_origin(kind) is dict
        model = get_args(kind)[-1] if is_name else next(iter(get_args(kind)), kind)  # the items of a list
    assert issubclass(model, BaseModel)
    return (name for name in model.model_fields if name != "rows")
