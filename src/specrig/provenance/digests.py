"""Digests of the source code that decides a stage's result. When a digest changes, the stage's outputs are stale.

A digest covers the stage's module and every module of this package that it imports, directly or through others, at the
top of a file or inside a function. Docstrings, comments and imports for type checkers do not count.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.util import cache_from_source
from pathlib import Path
from typing import NamedTuple

PACKAGE = "specrig"
ROOT = Path(__file__).parents[1]
DATA = ("templates/**/*", "*.bib", "*.c", "*.csv", "*.json")
"""Patterns of files that count as source besides Python: templates, references, C code, and tables of facts."""
MEMORY = Path(cache_from_source(__file__)).with_suffix(".json")
"""File that remembers what parsing found, beside the bytecode and one for each version of Python.

Its keys are SHA-256 sums of this file and of the parsed text: an edited text has another key, so no entry becomes
stale."""
MEMORY_SIZE = 2_000
"""Number of entries, about ten for each file of the package, after which the memory is emptied."""


class Source(NamedTuple):
    """What is found by parsing the text of a module."""

    names: list[str]
    """Dotted names in this package that the module imports when it runs; some name an object in a module."""
    digest: str
    """SHA-256 of the code without docstrings, comments and imports for type checkers."""


@cache
def code_digest(*modules: str) -> str:
    """First 16 hex digits of the SHA-256 over the sources of `modules` and of all modules of this package that they
    import.

    Files that match `DATA` beside a module count as its source. Raises ValueError for a name that is no module of the
    package.
    """
    known = len(_memory())
    total = sha256()
    for module in closure(*modules):
        total.update(f"{module}\0{_source(module).digest}\0{_data(_file(module).parent)}\0".encode())
    if len(_memory()) != known:
        _remember()
    return total.hexdigest()[:16]


@cache
def closure(*modules: str) -> tuple[str, ...]:
    """Return `modules` and every module of the package that they import, directly or through others, sorted."""
    found: set[str] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting.extend(imports(module))
    return tuple(sorted(found))


@cache
def imports(module: str) -> frozenset[str]:
    """Modules of the package that `module` itself imports at run time, also in functions, and its parents."""
    found = {name for name in _source(module).names if source(name) is not None}
    parents = module.split(".")[1:-1]
    found |= {".".join([PACKAGE, *parents[:depth]]) for depth in range(1, len(parents) + 1)}
    return frozenset(found - {PACKAGE, module})


def source(module: str) -> Path | None:
    """The module's file; None if the package has no such module."""
    parts = module.split(".")
    if parts[0] != PACKAGE:
        return None
    base = ROOT.joinpath(*parts[1:])
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def _file(module: str) -> Path:
    path = source(module)
    if path is None:
        raise ValueError(f"{module}: no module of {PACKAGE}")
    return path


def imported(node: ast.AST) -> Iterator[str]:
    """Yield the names that the code at `node` imports at run time, also inside functions, not for type checkers."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        # `from package import name`: a name that is no module is filtered out by the caller.
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        for child in node.orelse:
            yield from imported(child)
    else:
        for below in ast.iter_child_nodes(node):
            yield from imported(below)


@cache
def _source(module: str) -> Source:
    """Parse `module`, or take the result from the memory if the same text was parsed before."""
    path = _file(module)
    text = path.read_bytes()
    key = sha256(_own_text() + text).hexdigest()
    if key not in _memory():
        _memory()[key] = _parsed(ast.parse(text, filename=str(path)))
    return Source(*_memory()[key])


def _parsed(tree: ast.Module) -> Source:
    names = sorted({name for name in imported(tree) if name.split(".")[0] == PACKAGE})
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [statement for statement in node.body if not _is_text(statement)]
    return Source(names, sha256(ast.dump(tree).encode()).hexdigest())


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@cache
def _data(folder: Path) -> str:
    """SHA-256 of the files in a package's folder that match `DATA`."""
    files = [file for pattern in DATA for file in sorted(folder.glob(pattern)) if file.is_file()]
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


@cache
def _own_text() -> bytes:
    return Path(__file__).read_bytes()


@cache
def _memory() -> dict[str, Source]:
    try:
        found = json.loads(MEMORY.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and len(found) < MEMORY_SIZE else {}


def _remember() -> None:
    """Write the memory, whole or not at all. If its folder cannot be written, the next process parses again."""
    temporary = MEMORY.with_suffix(f".{os.getpid()}")
    try:
        MEMORY.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(_memory()), encoding="utf-8")
        temporary.replace(MEMORY)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
