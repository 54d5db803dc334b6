"""Problems of a study as a user reads them: the place, the mistake, the nearest valid name and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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
MOST_REPEATED = 100_000
"""Values that the aliases of a YAML file may repeat altogether."""


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


class OnceOnly(yaml.SafeLoader):
    """YAML in which a key is a text that stands once: where it stands twice, PyYAML (and so Snakemake) would silently
    take the last.

    What is repeated by aliases is bounded, so that a short file does not fill the memory. Every error knows its line.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._sizes: dict[
            int, int
        ] = {}  # of each finished node, how many values it holds, those behind aliases included
        self._repeated = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """The next node. Raises ComposerError for an alias inside of what it names, or that repeats too much."""
        alias = self.peek_event() if self.check_event(yaml.AliasEvent) else None
        node: yaml.Node | None = super().compose_node(parent, index)
        if node is None:
            return None
        if alias is not None:
            if id(node) not in self._sizes:
                raise _mistake(f"the alias *{alias.anchor} is inside the value that it names", alias)
            self._repeated += self._sizes[id(node)]
            if self._repeated > MOST_REPEATED:
                raise _mistake(f"aliases repeat more than {MOST_REPEATED:,} values", alias)
            return node
        parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        below = 0 if isinstance(node, yaml.ScalarNode) else sum(self._sizes[id(part)] for part in parts)
        self._sizes[id(node)] = 1 + below
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """The node of a mapping. Raises ComposerError for a key that is there already or is no text."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            if not isinstance(key, yaml.ScalarNode):
                raise _mistake("a list or a mapping is used as a key", key)
            if key.tag != "tag:yaml.org,2002:str":
                raise _mistake(f"the key {shortened(key.value)} is not text: put it in quotes", key)
            if key.value in seen:
                raise _mistake(f"the key {shortened(key.value)} occurs twice", key)
            seen.add(key.value)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of a node. Raises ConstructorError for what looks like a date or number but is none."""
        try:
            return super().construct_object(node, deep)
        except (
            ValueError,
            KeyError,
            IndexError,
            AttributeError,
        ) as error:  # what PyYAML's constructors of scalars raise
            if not isinstance(node, yaml.ScalarNode):
                raise
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"{shortened(node.value)} cannot be read as {kind}; put text in quotes", node.start_mark
            ) from error


def _mistake(reason: str, at: Any) -> yaml.YAMLError:
    """The error with the line of `at`, a node or an event."""
    return yaml.composer.ComposerError(None, None, reason, at.start_mark)


@contextmanager
def parsing(file: Path) -> Iterator[None]:
    """Turn what PyYAML says of a config into a StudyError with the file, the line and the fix."""
    try:
        yield
    except RecursionError:
        raise StudyError(
            [Problem(str(file), "", "brackets are nested too deeply", "a config nests a few levels")]
        ) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1}" if mark else str(file)
        reason = getattr(error, "problem", None) or first_line(error)
        raise StudyError(
            [Problem(where, "", f"not valid YAML ({reason})", "correct the line; indent with spaces")]
        ) from error


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
        self._roots: list[tuple[Path, yaml.Node]] = []
        for file in self.files:
            with parsing(file):
                root = yaml.compose(decoded(file), OnceOnly) if file.is_file() else None
            if root is not None:
                self._roots.append((file, root))

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
