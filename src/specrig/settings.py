"""The base class of every block of a config and of every row of a table, and the type of their paths."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from specrig.checkout import here_or_shipped

PathText = TypeVar("PathText", str, Path, str | None)
Text = TypeVar("Text", str, str | None)


def _can_be_a_path(text: PathText) -> PathText:
    """The path itself. Raises ValueError if no file could have this name, since opening it would fail later."""
    path = Path(text or "")
    if "\0" in str(path) or any(len(os.fsencode(part)) > 255 for part in path.parts):
        raise ValueError("no file can have this name: it holds a zero byte or more than 255 bytes between slashes")
    try:
        path.expanduser()
    except RuntimeError as error:
        raise ValueError(
            f"there is no user {path.parts[0].removeprefix('~')!r} here, whose home it could mean"
        ) from error
    return text


def _once(values: list[Any] | None) -> list[Any] | None:
    """The list itself. Raises ValueError for a value that it holds twice, which would repeat cells."""
    for value, count in Counter(values or ()).items():
        if count > 1:
            raise ValueError(f"{value!r} is listed {count} times: remove the repeats")
    return values


def _some(values: list[Any] | None) -> list[Any] | None:
    """The list itself. Raises ValueError for an empty one."""
    if values is not None and not values:
        raise ValueError("an empty list leaves no cells: give at least one value, or remove the key")
    return values


listed = BeforeValidator(lambda value: value if isinstance(value, list | tuple) or value is None else [value])
"""For a list: `k: 4` and `k: [4]` mean the same, so that `--config k=4` stays short."""
once, some = AfterValidator(_once), AfterValidator(_some)
"""For a list of which every value makes cells: none stands twice; there is one."""


def text_from_home(text: Text) -> Text:
    """A text that may be a path, with the home or the checkout that it means."""
    if not text or "://" in text:
        return text
    if not text.startswith("~"):
        shipped = here_or_shipped(Path(text))
        return text if shipped == Path(text) else str(shipped)
    try:
        return str(Path(text).expanduser())
    except RuntimeError as error:
        raise ValueError(f"{text}: there is no such user here") from error


as_path = AfterValidator(_can_be_a_path)
from_home = AfterValidator(text_from_home)
"""For a text that may be a path: nothing that reads the row has to know `~`, or that the checkout is elsewhere."""
AnyPath = Annotated[Path, as_path]
"""A file or folder, whether it is there or not."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """An annotation: what a message says of a value that its type refuses, in the place of pydantic's regular
    expression.
    """

    text: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The schema of the type, with this text for its errors."""
        return core_schema.custom_error_schema(handler(source), "not_allowed", custom_error_message=self.text)


class Settings(BaseModel):
    """A frozen model that refuses unknown keys. The string below a key describes it here and in the JSON schemas."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
