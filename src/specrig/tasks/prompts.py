"""Prompts of a task, read from a JSONL file whose fields may have any names. No torch here: used while a study is planned."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MISSING = object()


class PromptError(ValueError):
    """A prompt file that cannot be used; names the file, the line, the field and the fix."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt. `reference` is empty where the file has none."""

    id: str
    text: str
    reference: str = ""


def read_prompts(
    path: Path | str,
    prompt_field: str = "prompt",
    reference_field: str | None = "reference",
    id_field: str | None = "id",
    where: Mapping[str, Any] | None = None,
) -> list[Prompt]:
    """Read the prompts of a JSONL file, in the file's order.

    A field is a path: names and list indices joined by dots, e.g. `turns.0` for the first turn of a Spec-Bench question. A
    name that itself holds dots is found too. `where` keeps the rows whose fields have exactly these values,
    e.g. `{"category": "translation"}`. Without `id_field` the line number is the id; a missing reference is empty.

    Raises PromptError for a missing file, a line that is no JSON object, a missing or empty prompt, a duplicate id, and
    when no prompt is left.
    """
    path, where = Path(path), dict(where or {})
    prompts: list[Prompt] = []
    lines: dict[str, int] = {}
    seen_values: dict[str, set[str]] = {field: set() for field in where}
    rows = 0
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        row = _parse(line, place)
        rows += 1
        found = {field: _get(row, field) for field in where}
        for field, value in found.items():
            if value is not _MISSING:
                seen_values[field].add(str(value))
        if any(_differs(found[field], value) for field, value in where.items()):
            continue
        text = _get(row, prompt_field)
        if text is _MISSING:
            raise PromptError(f"{place}: no field {prompt_field!r}; {_offer(row, 'prompt_field')}")
        if not isinstance(text, str):
            raise PromptError(
                f"{place}: field {prompt_field!r} is not a text but {_kind(text)}; name the text inside it, "
                f"e.g. {prompt_field + '.0'!r}" if isinstance(text, list) else
                f"{place}: field {prompt_field!r} is not a text but {_kind(text)}; {_offer(row, 'prompt_field')}"
            )  # fmt: skip
        if not text.strip():
            raise PromptError(f"{place}: field {prompt_field!r} is empty; give the prompt a text or delete the line")
        key = str(number)
        if id_field is not None:
            value = _get(row, id_field)
            if value is _MISSING or value is None or value == "":
                raise PromptError(f"{place}: no field {id_field!r}; {_offer(row, 'id_field')}")
            key = str(value)
        if key in lines:
            raise PromptError(f"{place}: field {id_field!r}: the id {key!r} already stands in line {lines[key]}; ids must differ")
        lines[key] = number
        reference = _MISSING if reference_field is None else _get(row, reference_field)
        prompts.append(Prompt(key, text, "" if reference is _MISSING or reference is None else _text(reference)))
    if not rows:
        raise PromptError(f"{path}: the file holds no prompts; write one JSON object a line")
    if not prompts:
        seen = "; ".join(
            f"{field!r} is {', '.join(sorted(values)[:12]) or 'nowhere set'}" for field, values in seen_values.items()
        )
        raise PromptError(f"{path}: none of its {rows} rows has {where}; in this file {seen}")
    return prompts


def _lines(path: Path) -> list[str]:
    """The file's lines (not str.splitlines: JSON texts may hold U+2028). Raises PromptError for what cannot be read."""
    try:
        return path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise PromptError(f"{path}: no such file of prompts; correct the task's path") from None
    except UnicodeDecodeError as error:
        raise PromptError(f"{path}: not UTF-8 at byte {error.start}; save the file as UTF-8") from None
    except OSError as error:
        raise PromptError(f"{path}: cannot be read ({error.strerror}); give the path of a readable file") from None


def _parse(line: str, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise PromptError(f"{place}: not JSON ({error.msg} at column {error.colno}); each line must be one JSON object") from None
    if not isinstance(row, dict):
        raise PromptError(f'{place}: {_kind(row)} where a JSON object is needed, e.g. {{"id": 1, "prompt": "…"}}')
    return row


def _get(row: Any, field: str) -> Any:
    """The value at a path of names and indices, or `_MISSING`."""
    if isinstance(row, dict) and field in row:
        return row[field]
    value = row
    for part in field.split("."):
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return _MISSING
    return value


def _differs(found: Any, wanted: Any) -> bool:
    """Whether a row is left out: values compare as JSON values, and as texts, so that `81` in a TSV cell finds 81."""
    return found is _MISSING or (found != wanted and str(found) != str(wanted))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _kind(value: Any) -> str:
    names = {list: "a list", dict: "an object", str: "a text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


def _offer(row: dict[str, Any], setting: str) -> str:
    return f"the row has {', '.join(map(repr, row)) or 'no fields'}; set {setting} to one of them"
