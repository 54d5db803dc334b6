"""Makes the prompts of a task from rows of data, whose fields may have any names. No torch here: planning uses it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

from specrig.tasks.shapes import IDS, Chat, Message, chat_of, is_messages, listed, messages_of
from specrig.tasks.sources import PromptError, Row, read_rows

_MISSING = object()
PROMPT, ID = "prompt", "id"
"""The fields with prompt and id, where a task's row names none."""
REFERENCE = "reference"
"""The field with the reference, where a task's row names none."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt with its id; `reference` is empty if the data have none.

    turns: of a conversation, what the user says in each turn, the first of which is `text`; else empty. before: the
    messages in front of it.
    """

    id: str
    text: str
    reference: str = ""
    turns: tuple[str, ...] = ()
    before: tuple[Message, ...] = ()

    def asks(self) -> tuple[str, ...]:
        """All that the user says."""
        return self.turns or (self.text,)


def read_prompts(
    path: Path | str,
    *,
    sha256: str | None = None,
    encoding: str = "utf-8",
    limit: int | None = None,
    **mapping: Any,
) -> list[Prompt]:
    """Read the prompts of a file, in the file's order; `mapping` are keyword arguments of `map_prompts`.

    Every row is checked, even those beyond `limit`. Raises PromptError if the file cannot be read or has another
    SHA-256, and for whatever `map_prompts` raises it.
    """
    return map_prompts(read_rows(Path(path), sha256, encoding), str(path), **mapping)[:limit]


def map_prompts(
    rows: Iterable[Row],
    source: str,
    *,
    prompt_field: str = PROMPT,
    reference_field: str | None = REFERENCE,
    id_field: str | None = ID,
    where: Mapping[str, Any] | None = None,
    prompt_template: str = "",
    reference_template: str = "",
    turns: int = 1,
    limit: int | None = None,
    left_out: Counter[str] | None = None,
) -> list[Prompt]:
    """Turn rows into prompts, in their order, until there are `limit` of them.

    A field is a path: names and list indices joined by dots, e.g. `turns.0` for the first turn of a Spec-Bench
    question. A name that itself holds dots is found too. `where` keeps only the rows whose fields have one of the given
    values, e.g. `{"category": "writing|roleplay"}`. A template replaces its field: in it `{field}` stands for the value
    at a path (the items of a list on separate lines) and `{field:.900}` for its first 900 characters. If `id_field` is
    None, a row's number is its id. If a row has no reference, the reference is empty. If `turns` is above 1,
    `prompt_field` is a list with what the user says in each turn. Later turns than `turns` are left out, and so are rows
    with fewer. Where a row has no `prompt`, a chat is recognised by its shape (`shapes.chat_of`).

    Rows that are empty or repeat an earlier prompt are left out and counted in `left_out`. Raises PromptError for a
    missing prompt, a missing field of a template, a duplicate id, images and tools, and if there is no prompt.
    """
    where = dict(where or {})
    prompts: list[Prompt] = []
    line_of: dict[str, int] = {}
    seen_values: dict[str, set[str]] = {field: set() for field in where}
    without_reference = reference_field if reference_field != REFERENCE and not reference_template else None
    count, counts = 0, Counter[str]() if left_out is None else left_out
    asked: set[tuple[tuple[Message, ...], tuple[str, ...]]] = set()
    for number, location, row in rows:
        count += 1
        found = {field: _get(row, field) for field in where}
        for field, value in found.items():
            if value is not _MISSING:
                seen_values[field].add(str(value))
        if without_reference is not None:
            without_reference = without_reference if _get(row, without_reference) is _MISSING else None
            offered = _offer(row, "reference_field")
        if any(_differs(found[field], value) for field, value in where.items()):
            continue
        before: tuple[Message, ...] = ()
        chat = None if prompt_template else _chat(row, prompt_field, location)
        if chat is not None:
            before, texts = chat.asked(turns)
        elif turns > 1:
            texts = _turns(row, prompt_field, location)
        elif prompt_template:
            texts = (_fill(prompt_template, row, location, "prompt_template"),)
        else:
            texts = (_prompt(row, prompt_field, location),)
        texts = texts[:turns]
        if turns > 1 and len(texts) < turns:
            continue
        if not texts or not all(text.strip() for text in texts):
            counts["empty"] += 1
            continue
        if (before, texts) in asked:
            counts["repeated"] += 1
            continue
        asked.add((before, texts))
        key = str(number)
        if id_field == ID and not prompts:
            id_field = next((name for name in IDS if _get(row, name) is not _MISSING), None)
        if id_field is not None:
            value = _get(row, id_field)
            if value is _MISSING or value is None or value == "":
                raise PromptError(f"{location}: no field {id_field!r}; {_offer(row, 'id_field')} (# numbers the rows)")
            key = str(value)
        if key in line_of:
            raise PromptError(
                f"{location}: field {id_field!r}: the id {key!r} is already in line {line_of[key]}; ids must differ "
                "(id_field # numbers the rows)"
            )
        line_of[key] = number
        if reference_template:
            reference: Any = _fill(reference_template, row, location, "reference_template")
        else:
            reference = _MISSING if reference_field is None else _get(row, reference_field)
        said = [*(text for _, text in before), *texts]
        for what, value in (*(("prompt", text) for text in said), ("reference", reference)):
            if isinstance(value, str) and (at := lone_surrogate(value)) is not None:
                raise PromptError(f"{location}: the {what} has half a character (a lone surrogate) at {at}; remove it")
        prompts.append(
            Prompt(
                key,
                texts[0],
                "" if reference is _MISSING or reference is None else _text(reference),
                texts if turns > 1 else (),
                before,
            )
        )
        if len(prompts) == limit:
            break
    if not count or (not prompts and counts["empty"]):
        raise PromptError(f"{source}: the file holds no prompts; write one JSON object a line")
    if prompts and without_reference is not None:
        raise PromptError(f"{source}: none of its rows has the field {without_reference!r}; {offered}")
    if not prompts and turns > 1 and not where:
        raise PromptError(f"{source}: none of its {count} rows has {turns} turns in {prompt_field!r}; lower `turns`")
    if not prompts:
        seen = "; ".join(
            f"{field!r} is {', '.join(sorted(values)[:12]) or 'nowhere set'}" for field, values in seen_values.items()
        )
        raise PromptError(f"{source}: none of its {count} rows has {where}; in this file {seen}")
    return prompts


def lone_surrogate(text: str) -> int | None:
    """The place of the first code point that is half a character, which no tokenizer reads; None without one."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None


def _prompt(row: dict[str, Any], field: str, location: str) -> str:
    text = _get(row, field)
    if text is _MISSING:
        raise PromptError(f"{location}: no field {field!r}; {_offer(row, 'prompt_field')}")
    if text is None:
        return ""
    if not isinstance(text, str):
        fix = (
            f"name the text inside it, e.g. {field + '.0'!r}" if isinstance(text, list) else _offer(row, "prompt_field")
        )
        raise PromptError(f"{location}: field {field!r} is not a text but {_kind(text)}; {fix}")
    return text


def _chat(row: dict[str, Any], field: str, location: str) -> Chat | None:
    """The chat in a row's prompt field, or of a row without one; None for a row of another shape."""
    value = listed(_get(row, field))
    if is_messages(value):
        return Chat(messages_of(value, location), request=True)
    return chat_of(row, location) if value is _MISSING and field == PROMPT else None


def _turns(row: dict[str, Any], field: str, location: str) -> tuple[str, ...]:
    found = _get(row, field)
    if not isinstance(found, list):
        what = "is not there" if found is _MISSING else f"is not a list of turns but {_kind(found)}"
        raise PromptError(f"{location}: field {field!r} {what}; {_offer(row, 'prompt_field')}")
    return tuple(_prompt(row, f"{field}.{number}", location) for number in range(len(found)))


def _fill(template: str, row: dict[str, Any], location: str, setting: str) -> str:
    """Return the template filled with the row's values. Empty where all fields are. Raises PromptError for a missing field."""
    parts, values = [], []
    try:
        pieces = list(Formatter().parse(template))
    except ValueError as error:
        raise PromptError(
            f"{location}: {setting} does not parse ({error}); write {{{{ for a brace that is meant as one"
        ) from None
    for literal, field, spec, _ in pieces:
        parts.append(literal)
        if field is None:
            continue
        value = _get(row, field)
        if value is _MISSING:
            raise PromptError(f"{location}: no field {field!r}; {_offer(row, setting)}")
        values.append(
            "\n".join(map(_text, value)) if isinstance(value, list) else "" if value is None else _text(value)
        )
        try:
            parts.append(format(values[-1], spec or ""))
        except ValueError as error:
            raise PromptError(
                f"{location}: {setting}: {{{field}:{spec}}} is not a way to format text ({error})"
            ) from None
    return "".join(parts) if not values or any(value.strip() for value in values) else ""


def _get(row: Any, field: str) -> Any:
    """Return the value at a path of names and indices; `_MISSING` if there is none."""
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


def _differs(found: Any, expected: Any) -> bool:
    """Whether two values differ both as JSON values and as texts; so `81` in a TSV cell equals the number 81."""
    return found is _MISSING or (found != expected and str(found) not in str(expected).split("|"))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _kind(value: Any) -> str:
    names = {list: "a list", dict: "an object", str: "a text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


def _offer(row: dict[str, Any], setting: str) -> str:
    return f"the row has {', '.join(map(repr, row)) or 'no fields'}; set {setting} to one of them"
