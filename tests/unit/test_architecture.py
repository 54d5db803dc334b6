"""Imports run one way (docs: the house), and planning is quick: no torch before something is trained or measured."""

from __future__ import annotations

import ast
import subprocess
import sys
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
    "reporting": {"analysis", "audit", "cell", "decoding", "measurement", "models", "study"},
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


@pytest.mark.parametrize("heavy", [["torch", "transformers", "pandas", "mlflow", "matplotlib"]])
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


def test_digests_follow_imports_and_ignore_prose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "specrig"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "a.py").write_text("def f():\n    from specrig import b\n    return b\n")
    (package / "b.py").write_text('"""Prose."""\nx = 1\n')
    (package / "c.py").write_text("x = 1\n")
    monkeypatch.setattr(digests, "ROOT", package)

    def fresh() -> str:
        for function in (digests.code_digest, digests.closure, digests.imports, digests._tree, digests._content):
            function.cache_clear()
        return digests.code_digest("specrig.a")

    try:
        first = fresh()
        assert digests.closure("specrig.a") == ("specrig.a", "specrig.b")
        (package / "b.py").write_text('"""Other prose."""\nx = 1  # and a remark\n')
        (package / "c.py").write_text("x = 2\n")
        assert fresh() == first
        (package / "b.py").write_text("x = 2\n")
        assert fresh() != first
        with pytest.raises(ValueError, match=r"specrig\.d: no module"):
            digests.code_digest("specrig.d")
    finally:
        monkeypatch.undo()
        for function in (digests.code_digest, digests.closure, digests.imports, digests._tree, digests._content):
            function.cache_clear()


def test_a_wrapped_drafter_is_part_of_the_digest() -> None:
    assert "specrig.decoding.drafters.ngram" in digests.closure("specrig.decoding.drafters.adaptive_k")


def test_files_stay_short() -> None:
    long = {path.name: count for path in PACKAGE.rglob("*.py") if (count := len(path.read_text().splitlines())) > 300}
    assert not long
