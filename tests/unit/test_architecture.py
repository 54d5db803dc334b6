"""Imports run one way (docs/architecture.md), and planning is quick: no torch before something is trained or measured."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from specrig.provenance import digests

PACKAGE = Path(digests.ROOT)


def linted(root: Path) -> subprocess.CompletedProcess[str]:
    """The contracts of pyproject.toml held against the package in `root`/src."""
    code = (
        "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports('pyproject.toml', no_cache=True))"
    )
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    return subprocess.run([sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True)


def test_imports_run_one_way(repository: Path) -> None:
    result = linted(repository)
    assert result.returncode == 0, result.stdout


def test_imports_against_the_layers_are_named(repository: Path, tmp_path: Path) -> None:
    root = tmp_path / "src" / "specrig"
    shutil.copytree(repository / "src" / "specrig", root, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(repository / "pyproject.toml", tmp_path)
    for module, line in [
        ("decoding/sampling.py", "from specrig.engines import registry"),
        ("decoding/types.py", "from specrig.decoding import verify_tree"),
        ("analysis/statistics.py", "import torch"),
        ("new_module.py", "x = 1"),
    ]:
        with (root / module).open("a") as file:
            file.write(f"\n{line}\n")
    result = linted(tmp_path)
    assert result.returncode == 1
    for message in [
        "Each layer imports only those below it BROKEN",
        "specrig.decoding is not allowed to import specrig.engines",
        "import each other in a circle BROKEN",
        "Records, analysis and reports need no torch BROKEN",
        "new_module",
    ]:
        assert message in result.stdout


@pytest.mark.parametrize("heavy", [["torch", "transformers", "pandas", "mlflow", "matplotlib", "requests"]])
def test_planning_loads_nothing_heavy(repository: Path, heavy: list[str]) -> None:
    code = (
        "import sys; from pathlib import Path; import specrig.cli, specrig.planning.plan, "
        "specrig.planning.methods_view\nimport specrig.dag.rules; from specrig.dag.code import STAGES, "
        "stage_digest\nfrom specrig.measurement.plan import job_digest; from specrig.study.load import "
        "load_study\nstudy = load_study(Path('configs/embedded.yaml'))\n[job_digest(cell.engine, cell.method) for cell "
        f"in study.grid.cells]\n[stage_digest(stage) for stage in STAGES]\nprint([name for name in {heavy!r} if name "
        "in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of three modules in the place of this one, and an empty memory."""
    folder = tmp_path / "specrig"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "a.py").write_text("def f():\n    from specrig import b\n    return b\n")
    (folder / "b.py").write_text('"""Prose."""\nx = 1\n')
    (folder / "c.py").write_text("x = 1\n")
    monkeypatch.setattr(digests, "ROOT", folder)
    monkeypatch.setattr(digests, "MEMORY", tmp_path / "memory" / "digests.json")
    yield folder
    monkeypatch.undo()
    forget()


def forget() -> None:
    """Be a new process."""
    for function in (
        digests.code_digest,
        digests.closure,
        digests.imports,
        digests._source,
        digests._data,
        digests._memory,
    ):
        function.cache_clear()


def fresh() -> str:
    forget()
    return digests.code_digest("specrig.a")


def test_digests_follow_imports_and_ignore_prose(package: Path) -> None:
    first = fresh()
    assert digests.closure("specrig.a") == ("specrig.a", "specrig.b")
    (package / "b.py").write_text('"""Other prose."""\nx = 1  # and a remark\n')
    (package / "c.py").write_text("x = 2\n")
    assert fresh() == first
    (package / "b.py").write_text("x = 2\n")
    second = fresh()
    assert second != first
    seen = {first, second}
    for name, text in (("facts.csv", "a,b"), ("facts.csv", "a,c"), ("sums.c", "int a;"), ("sums.c", "int b;")):
        (package / name).write_text(text)
        seen.add(fresh())
    assert len(seen) == 6
    with pytest.raises(ValueError, match=r"specrig\.d: no module"):
        digests.code_digest("specrig.d")


def test_what_is_remembered_of_a_text_hides_no_edit(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one of the same size at the same time, nor one of how texts are read."""
    first, stat = fresh(), (package / "b.py").stat()
    with monkeypatch.context() as patch:
        patch.setattr(digests.ast, "parse", lambda *_, **__: pytest.fail("it was parsed before"))
        assert fresh() == first
    (package / "b.py").write_text('"""Prose."""\nx = 2\n')
    os.utime(package / "b.py", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (package / "b.py").stat().st_size == stat.st_size
    assert fresh() != first
    (package / "b.py").write_text("from specrig import c\nx = 2\n")
    forget()
    assert "specrig.c" in digests.closure("specrig.a")
    parsed: list[str] = []
    parse = digests.ast.parse
    monkeypatch.setattr(
        digests.ast, "parse", lambda text, **names: parsed.append(names["filename"]) or parse(text, **names)
    )
    monkeypatch.setattr(digests, "_own_text", lambda: b"another way to read")
    fresh()
    assert len(parsed) == 3


@pytest.mark.parametrize("content", ["", "[1", '{"cut": '])
def test_a_memory_that_is_broken_or_cannot_be_kept_changes_nothing(package: Path, content: str) -> None:
    first = fresh()
    digests.MEMORY.write_text(content)
    assert fresh() == first
    digests.MEMORY.unlink()
    digests.MEMORY.mkdir()  # nothing can be written there, whoever asks
    assert fresh() == first == fresh()
    assert [path.name for path in digests.MEMORY.parent.iterdir()] == [digests.MEMORY.name], "no half of one is left"


def test_a_wrapped_drafter_is_part_of_the_digest() -> None:
    assert "specrig.decoding.drafters.ngram" in digests.closure("specrig.decoding.drafters.adaptive_k")


def test_files_stay_short() -> None:
    """About 300 lines; a file that is one thing may have more. The report's outline is a list, longer by what it lists."""
    lines = {path.name: len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    long = {name: count for name, count in lines.items() if count > (700 if name == "outline.py" else 500)}
    assert not long
