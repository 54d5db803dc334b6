"""Imports run one way (docs: the house), and planning is quick: no torch before something is trained or measured."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from specrig.provenance import digests

PACKAGE = Path(digests.ROOT)
MODULES = sorted(
    ".".join(("specrig", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
)
# What a floor may import of the package besides itself. Those not named are the upper floors, which may import all.
FLOORS = {
    "settings": set(),
    "decoding": set(),
    "cell": set(),
    "models": {"cell", "decoding", "settings"},
    "provenance": {"models"},
    "tasks": {"models"},
    "corpus": {"settings"},
    "training": {"corpus", "decoding", "settings"},
    "engines": {"cell", "decoding", "models", "settings"},
    "study": {"cell", "corpus", "decoding", "engines", "models", "settings", "tasks", "training"},
    "measurement": {"cell", "decoding", "engines", "models", "provenance", "study", "tasks"},
    "audit": {"cell", "decoding", "engines", "measurement", "models", "study"},
    "analysis": {"cell", "measurement", "models", "study", "tasks"},
    "reporting": {"analysis", "cell", "decoding", "measurement", "models", "study"},
    "tracking": {"analysis", "cell", "measurement", "reporting", "study"},
}


def floor(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def external(module: str) -> set[str]:
    """Top-level packages that a module imports, in functions too, but not for type checkers."""
    tree = ast.parse(digests.source(module).read_text())
    return {name.split(".")[0] for name in digests.imported(tree)}


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_one_way(module: str) -> None:
    used = {floor(name) for name in digests.imports(module)} - {floor(module), ""}
    if floor(module) in FLOORS:
        assert used <= FLOORS[floor(module)], f"{module} reaches up to {used - FLOORS[floor(module)]}"
    assert not used & {"cli", "__main__"} or module == "specrig.__main__"
    assert "snakemake" not in external(module)


@pytest.mark.parametrize("module", [name for name in MODULES if floor(name) in {"analysis", "reporting"}])
def test_analysis_and_reporting_need_no_torch(module: str) -> None:
    for used in digests.closure(module):
        if floor(used) in {"analysis", "reporting"} or used == "specrig.measurement.records":
            assert not external(used) & {"torch", "transformers"}, f"{module} imports torch through {used}"


def test_decoding_knows_no_files_and_no_tracking() -> None:
    for module in MODULES:
        if floor(module) == "decoding":
            assert not external(module) & {"json", "yaml", "mlflow", "pandas", "pathlib"}, module


@pytest.mark.parametrize("heavy", [["torch", "transformers", "pandas", "mlflow", "matplotlib", "requests"]])
def test_planning_loads_nothing_heavy(repository: Path, heavy: list[str]) -> None:
    code = (
        "import sys; from pathlib import Path; import specrig.cli, specrig.planning.listing\n"
        "from specrig.provenance.digests import STAGES, job_digest, stage_digest; from specrig.study.load import load_study\n"
        "study = load_study(Path('configs/quick.yaml'))\n"
        "[job_digest(cell.engine, cell.method) for cell in study.grid.cells]\n"
        "[stage_digest(stage) for stage in STAGES]\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
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
    for function in (digests.code_digest, digests.closure, digests.imports, digests._source, digests._data, digests._memory):
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
    (package / "facts.csv").write_text("a,b\n")
    third = fresh()
    (package / "facts.csv").write_text("a,c\n")
    assert len({first, second, third, fresh()}) == 4
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
    monkeypatch.setattr(digests.ast, "parse", lambda text, **names: parsed.append(names["filename"]) or parse(text, **names))
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
    long = {path.name: count for path in PACKAGE.rglob("*.py") if (count := len(path.read_text().splitlines())) > 300}
    assert not long
