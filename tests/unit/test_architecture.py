"""Imports run one way (docs/architecture.md), and planning is quick: no torch before something is trained or measured."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import grimp
import pytest

from specrig.dag.code import STAGES, stage_digest
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


def test_planning_loads_nothing_heavy_and_reports_load_no_torch(repository: Path) -> None:
    heavy = ["torch", "transformers", "pandas", "mlflow", "matplotlib", "requests"]
    code = (
        "import sys; from pathlib import Path; import specrig.cli, specrig.planning.plan, "
        "specrig.planning.methods_view\nimport specrig.dag.rules; from specrig.dag.code import STAGES, "
        "stage_digest\nfrom specrig.study.load import load_study\nload_study(Path('configs/smollm2.yaml')).grid.cells\n"
        f"[stage_digest(stage) for stage in STAGES]\nprint([name for name in {heavy!r} if name in sys.modules])\n"
        "import specrig.report.table_files, specrig.report.figures.drawings, specrig.report.documents.html, "
        "specrig.report.documents.printed\nprint([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n[]\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of this package, whose digests are taken."""
    folder = tmp_path / "specrig"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(digests, "ROOT", folder)
    forget()
    yield folder
    monkeypatch.undo()
    forget()


def forget() -> None:
    """Be a new process."""
    digests._package_digest.cache_clear()


def test_a_stage_is_stale_for_the_packages_that_it_uses_and_for_no_other(package: Path) -> None:
    def codes() -> list[str]:
        forget()
        return [stage_digest("measuring"), stage_digest("training"), stage_digest("tables")]

    before = codes()
    for file, stale in {
        "runtime/compiled.c": [True, True, False],
        "measurement/blocks.py": [True, False, False],
        "analysis/speedup.py": [False, False, True],
        "decoding/drafters/new_method.py": [True, False, False],
        "cell.py": [True, False, False],
        "cli/plan.py": [False, False, False],
    }.items():
        with (package / file).open("a") as source:
            source.write("\n")
        after = codes()
        assert [one != other for one, other in zip(before, after, strict=True)] == stale, file
        before = after
    with pytest.raises(ValueError, match="nowhere: no package"):
        digests.code_digest("nowhere")


DESCRIBES = {
    "cell",
    "checkout",
    "discovery",
    "errors",
    "files",
    "provenance",
    "settings",
    "study",
    "terminal",
    "training",
}
"""Imported for what a study says, whose keys are params of their own, and what is of no stage in particular."""


@pytest.mark.parametrize(
    ("entry", "packages"),
    [
        ("measurement.runner", STAGES["measuring"]),
        ("measurement.traffic.sweep", STAGES["measuring"]),
        ("audit.run", STAGES["audit"]),
        ("training.fit", (*STAGES["training"], "decoding")),
    ],
)
def test_a_stage_names_the_packages_that_it_imports(entry: str, packages: Iterable[str]) -> None:
    imported = grimp.build_graph("specrig", cache_dir=None).find_upstream_modules(f"specrig.{entry}")
    assert {name.split(".")[1] for name in imported if "." in name} - {*packages} <= DESCRIBES


def test_files_stay_short() -> None:
    """About 300 lines; a file that is one thing may have more. The report's outline is a list, longer by what it lists."""
    lines = {path.name: len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    long = {name: count for name, count in lines.items() if count > (700 if name == "outline.py" else 500)}
    assert not long
