"""Imports run one way (docs: the house), and planning is quick: no torch before something is trained or measured."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specrig.provenance import digests

PACKAGE = Path(digests.ROOT)


def linted(root: Path) -> subprocess.CompletedProcess[str]:
    """The contracts of pyproject.toml held against the package in `root`/src."""
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports('pyproject.toml', no_cache=True))"
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    return subprocess.run([sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True)


def test_imports_run_one_way(repository: Path) -> None:
    result = linted(repository)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("module", "line", "said"),
    [
        ("decoding/sampling.py", "from specrig.engines import registry", "Each floor imports only those below it BROKEN"),
        ("decoding/types.py", "from specrig.decoding import verify_tree", "import each other in a circle BROKEN"),
        ("analysis/statistics.py", "import torch", "Records, analysis and reports need no torch BROKEN"),
        ("new_module.py", "x = 1", "new_module"),
    ],
)
def test_an_import_against_the_stream_is_named(repository: Path, tmp_path: Path, module: str, line: str, said: str) -> None:
    shutil.copytree(repository / "src" / "specrig", tmp_path / "src" / "specrig", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(repository / "pyproject.toml", tmp_path)
    with (tmp_path / "src" / "specrig" / module).open("a") as file:
        file.write(f"\n{line}\n")
    result = linted(tmp_path)
    assert result.returncode == 1 and said in result.stdout


@pytest.mark.parametrize("heavy", [["torch", "transformers", "pandas", "mlflow", "matplotlib"]])
def test_planning_loads_nothing_heavy(repository: Path, heavy: list[str]) -> None:
    code = (
        "import sys; from pathlib import Path; import specrig.cli, specrig.planning.plan_view, specrig.planning.methods_view\n"
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
