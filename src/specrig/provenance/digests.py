"""Digests of code: which source decides a stage's result. Changing it makes the stage's outputs stale.

The digest covers the modules that a stage's module imports, directly or not, anywhere in their files, within this package.
Docstrings and comments do not count, nor do imports for type checkers: only what runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path

PACKAGE = "specrig"
ROOT = Path(__file__).parents[1]
DATA = ("templates/**/*", "*.csv", "*.json")
"""What counts as source besides Python: templates, and tables of facts."""

STAGES = {
    "corpus": "specrig.corpus.gather",
    "prompts": "specrig.measurement.prompts",
    "audit": "specrig.audit.run",
    "tables": "specrig.reporting.tables",
    "quality": "specrig.reporting.quality",
    "figures": "specrig.reporting.figures",
    "track": "specrig.tracking",
    "report": "specrig.reporting.document",
}


def stage_digest(stage: str) -> str:
    """Digest of the code of a stage of the DAG (measuring depends on the job: see `job_digest`)."""
    return code_digest(STAGES[stage])


def job_digest(engine: str, method: str) -> str:
    """Digest of the code that measures with `engine` and `method`; a drafter that the method wraps counts if it is imported."""
    return code_digest(f"specrig.engines.{engine}", "specrig.measurement.runner", f"specrig.decoding.drafters.{method}")


def audit_digest(engine: str, method: str) -> str:
    """Digest of the code of the exact test of `method` in `engine`."""
    return code_digest(
        "specrig.audit.exact", "specrig.audit.run", f"specrig.engines.{engine}", f"specrig.decoding.drafters.{method}"
    )


@cache
def code_digest(*modules: str) -> str:
    """First 16 hex digits of the SHA-256 over the sources of `modules` and all that they import of this package.

    `DATA` beside a module counts as its source. Raises ValueError for a name that is no module of the package.
    """
    total = sha256()
    for module in closure(*modules):
        total.update(module.encode() + b"\0" + _content(module))
    return total.hexdigest()[:16]


@cache
def closure(*modules: str) -> tuple[str, ...]:
    """`modules` and every module of the package that they import, sorted."""
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
    """Modules of the package that `module` itself imports at run time, in functions too; its parent packages included."""
    found = {name for name in imported(_tree(module)) if source(name) is not None}
    parents = module.split(".")[1:-1]
    found |= {".".join([PACKAGE, *parents[:depth]]) for depth in range(1, len(parents) + 1)}
    return frozenset(found - {PACKAGE, module})


def source(module: str) -> Path | None:
    """The module's file, None if the package has no such module."""
    parts = module.split(".")
    if parts[0] != PACKAGE:
        return None
    base = ROOT.joinpath(*parts[1:])
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


@cache
def _tree(module: str) -> ast.Module:
    path = source(module)
    if path is None:
        raise ValueError(f"{module}: no module of {PACKAGE}")
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported(node: ast.AST) -> Iterator[str]:
    """Names that the code at `node` imports when it runs, in functions too; imports for type checkers are passed over."""
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
def _content(module: str) -> bytes:
    """What runs of a module's source, and the bytes of the data beside it."""
    path = source(module)
    assert path is not None  # `closure` has parsed it
    tree = _tree(module)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [statement for statement in node.body if not _is_text(statement)]
    files = [file for pattern in DATA for file in sorted(path.parent.glob(pattern))]
    return ast.dump(tree).encode() + b"".join(file.read_bytes() for file in files if file.is_file())


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
