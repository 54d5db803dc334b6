"""Problems of a study as a user reads them: the place, the mistake, the nearest valid name and the fix."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from specrig.errors import first_line


class StudyError(ValueError):
    """A study that cannot run. The message lists every problem found, each with its file, its row and the fix."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        listed = [str(problem) for problem in problems[:MOST]]
        more = [f"  … and {len(problems) - MOST} more"] if len(problems) > MOST else []
        super().__init__("\n".join([f"{count} in the study:", *listed, *more]))


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake. `where` is the file and line or row, `key` the key or column, `fix` what to write instead."""

    where: str
    key: str
    reason: str
    fix: str

    def __str__(self) -> str:
        location = ": ".join(part for part in (self.where, self.key) if part)
        return f"  {location}: {self.reason}\n    → {self.fix}"


LONGEST = 200
"""Characters of what a user gave that a message repeats."""
MOST = 20
"""Problems that a message lists; more are counted."""


def shortened(value: Any) -> str:
    """`repr(value)`, cut in the middle where it is long: a message must fit on a screen."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 40]} … {text[-30:]} ({len(text):,} characters)"


def decoded(file: Path) -> str:
    """The text of a file. Raises StudyError for one that is not UTF-8, as spreadsheets like to save tables."""
    content = file.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        kind = "UTF-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "not UTF-8"
        where = f"{_shown(file)}:{content[: error.start].count(10) + 1}"
        raise StudyError([Problem(where, "", f"the file is {kind}", "save it as UTF-8 text")]) from error


def parsed(file: Path) -> yaml.Node | None:
    """What a YAML or JSON file holds, with the line of each key; None where it is empty. PyYAML's safe loader says what
    a value is, as in Snakemake; of a key that stands twice it would silently take the last.

    Raises StudyError with the line for what does not parse, and for a key that stands twice.
    """
    text = decoded(file)
    try:
        root = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{_shown(file)}:{mark.line + 1}" if mark else _shown(file)
        reason = getattr(error, "problem", None) or first_line(error)
        fix = "correct the line; indent with spaces"
        raise StudyError([Problem(where, "", f"not valid YAML ({reason})", fix)]) from error
    except RecursionError:
        fix = "a config nests a few levels"
        raise StudyError([Problem(_shown(file), "", "brackets are nested too deeply", fix)]) from None
    twice = list(dict.fromkeys(_repeated_keys(root, set())))
    if twice:
        fix = "keep one of the two"
        raise StudyError([Problem(f"{_shown(file)}:{line}", name, "the key occurs twice", fix) for line, name in twice])
    return root


def _repeated_keys(node: yaml.Node | None, seen: set[int]) -> Iterator[tuple[int, str]]:
    """Yield (line, key) of each key that its mapping has already. seen: nodes that are checked, which aliases repeat."""
    if node is None or isinstance(node, yaml.ScalarNode) or id(node) in seen:
        return
    seen.add(id(node))
    names: set[str] = set()
    for item in node.value:
        key, value = item if isinstance(node, yaml.MappingNode) else (None, item)
        if isinstance(key, yaml.ScalarNode):
            if key.value in names:
                yield key.start_mark.line + 1, key.value
            names.add(key.value)
        yield from _repeated_keys(value, seen)


def read_config(file: Path) -> dict[str, Any]:
    """Read a YAML or JSON config as it stands. Raises StudyError for a file that is missing or does not parse."""
    if not file.is_file():
        folder = file.parent
        others = [str(path) for path in sorted(folder.glob("*.yaml"))] if folder.is_dir() else []
        raise StudyError([Problem(str(file), "", "no such config", nearest(str(file), others, what="configs there"))])
    is_json, text = file.suffix == ".json", decoded(file)
    if not is_json:
        parsed(file)
    try:
        content = json.loads(text) if is_json else yaml.safe_load(text)
    except RecursionError:
        raise StudyError(
            [Problem(_shown(file), "", "brackets are nested too deeply", "a config nests a few levels")]
        ) from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:  # a date or number that is none
        mark = getattr(error, "problem_mark", None)
        where = f"{_shown(file)}:{mark.line + 1}" if mark else _shown(file)
        reason = getattr(error, "problem", None) or first_line(error)
        kind = "JSON" if is_json else "YAML"
        raise StudyError([Problem(where, "", f"not valid {kind} ({reason})", "put text in quotes")]) from error
    if not isinstance(content, dict):
        raise StudyError([Problem(str(file), "", "the file has no keys", "start from configs/quick.yaml")])
    return content


def nearest(name: str, known: Iterable[str], *, what: str = "known") -> str:
    """The fix for an unknown name: the most similar valid name, in whatever case, if there is one, and the list of all
    valid names.
    """
    names = sorted(known)
    lower = [each.lower() for each in names]
    close = difflib.get_close_matches(str(name).lower(), lower, n=1, cutoff=0.5)  # `K` is as near to `k` as can be
    listed = f"{what}: {', '.join(names)}" if names else f"{what}: none"
    return f"did you mean {names[lower.index(close[0])]!r}? {listed}" if close else listed


class Positions:
    """Finds the lines of keys in the YAML or JSON files that a config was merged from; the last file counts."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = list(files)

    @cached_property
    def _roots(self) -> list[tuple[Path, yaml.Node]]:
        roots = ((file, parsed(file)) for file in self.files if file.is_file())
        return [(file, root) for file, root in roots if root is not None]

    def __call__(self, path: Sequence[str | int]) -> str:
        """`file:line` of the deepest part of `path` that a file holds; all files' names if none holds any."""
        best: tuple[int, str] | None = None
        for file, root in self._roots:
            depth, node = _descend(root, path)
            if node is not None and (best is None or depth >= best[0]):
                best = depth, f"{_shown(file)}:{node.start_mark.line + 1}"
        if best is not None:
            return best[1]
        return ", ".join(map(_shown, self.files))


def _descend(node: yaml.Node, path: Sequence[str | int]) -> tuple[int, yaml.Node | None]:
    """Return how many steps of `path` exist below `node`, and the key or item node of the last existing step."""
    found: yaml.Node | None = None
    for depth, step in enumerate(path):
        below: yaml.Node | None = None
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(step):
                    found, below = key, value
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            found = below = node.value[step]
        if below is None:
            return depth, found
        node = below
    return len(path), found


def _shown(file: Path) -> str:
    """The path as the user may have typed it: relative if the file lies below the working directory."""
    try:
        return str(file.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(file)


def dotted(path: Sequence[str | int]) -> str:
    """A path in a config as text: ("methods", 1, "k") becomes `methods[1].k`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text


def reason_of(issue: Any) -> str:
    """What pydantic found wrong, or what is allowed instead, in this project's words."""
    text = str(issue["msg"]).removeprefix("Value error, ")
    text = text.replace("Input should be", "it should be")
    return text[:1].lower() + text[1:]


def mistake(issue: Any, *, whole: str = "") -> tuple[str, str]:
    """An error of pydantic as (what is wrong, what to write instead). whole: what the error is about, if not one value."""
    if issue["type"] == "missing":
        return "nothing is given", "give a value"
    if whole:
        return reason_of(issue), f"correct the {whole}"
    if issue["type"] == "invalid_key":
        return "a key that is no text to YAML", "put it in quotes"
    if issue["type"] in ("string_type", "not_allowed") and isinstance(issue["input"], bool | int | float | date):
        return f"{shortened(issue['input'])} is no text to YAML", "put it in quotes as it is written: names are text"
    return f"you gave {shortened(issue['input'])}", reason_of(issue)


@dataclass
class Problems:
    """Collects problems, so that one error can report all of them."""

    positions: Positions
    found: list[Problem] = field(default_factory=list)

    def key(self, path: Sequence[str | int], reason: str, fix: str) -> None:
        """Add a problem with the key of the config at `path`."""
        self.found.append(Problem(self.positions(path), dotted(path), reason, fix))

    def option(self, name: str, reason: str, fix: str) -> None:
        """Add a problem with an option of the command line, e.g. `--pair`."""
        self.found.append(Problem("", name, reason, fix))

    def row(self, file: Path, line: int | None, column: str, reason: str, fix: str) -> None:
        """Add a problem with a row of a table; `line` None stands for no particular line."""
        self.found.append(Problem(f"{_shown(file)}:{line}" if line else _shown(file), column, reason, fix))

    def unknown(self, path: Sequence[str | int], what: str, name: Any, known: Iterable[str], hint: str = "") -> None:
        """Add a problem with an unknown name of kind `what`. The fix lists the `known` names and the `hint`."""
        self.key(path, f"unknown {what} {shortened(name)}", "; ".join(filter(None, (nearest(name, known), hint))))

    def stop(self) -> None:
        """Raise StudyError if any problem was added."""
        if self.found:
            raise StudyError(list(dict.fromkeys(self.found)))
