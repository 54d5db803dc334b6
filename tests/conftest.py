"""Shared by all tests: where the repository is, a study folder to run in, and one in which the test study has run."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

# The models of the tests are so small that a second thread costs more than it saves; read when torch is imported, here
# and in jobs.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

from runs import REPOSITORY, SERVER, furnish, imported, run, server
from warm.short_probes import shorten

# A busy machine fails no test: what is timed belongs into a benchmark.
settings.register_profile("specrig", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("specrig")
shorten()


def pytest_configure(config: pytest.Config) -> None:
    """One server for the jobs of all studies; it imports nothing before the first."""
    if SERVER not in os.environ:
        stack = contextlib.ExitStack()
        os.environ.update(stack.enter_context(server(os.environ)))
        config.add_cleanup(stack.close)


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(autouse=True)
def files_read_anew() -> None:
    """Models of several tests lie in folders of the same relative name; what one test read, another must not get."""
    if (gate := sys.modules.get("specrig.models.gate")) is not None:
        gate._json.cache_clear()


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with nothing but a copy of `configs/`, to be edited and run in, and `weights/`."""
    furnish(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


Once: TypeAlias = Callable[[str, Callable[[Path], None]], Path]


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """once(name, build): the folder of that name, which `build(folder)` has filled, in this process or in one beside
    it.
    """
    base = tmp_path_factory.getbasetemp()
    if base.name.startswith("popen-"):
        base = base.parent  # pytest-xdist's processes each have a folder in it

    def made(name: str, build: Callable[[Path], None]) -> Path:
        folder = base / f"shared-{name}"
        with FileLock(base / f"{name}.lock"):
            if not folder.is_dir():
                unfinished = base / f"unfinished-{name}"
                unfinished.mkdir()
                build(unfinished)
                unfinished.rename(folder)
        return folder

    return made


@pytest.fixture(scope="session")
def finished(once: Once) -> Path:
    """A folder in which the test study has run through, with what it said in output.txt. A test that changes it takes a
    copy.
    """
    secrets = {"HF_TOKEN": "hf_plantedForThisTest", "SPECRIG_API_KEY": "key-plantedForThisTest"}

    def build(folder: Path) -> None:
        furnish(folder)
        with (folder / "output.txt").open("w") as message:
            code = run(folder, env=imported() | secrets, stdout=message).returncode
        assert code == 0, (folder / "output.txt").read_text()

    return once("study", build)


@pytest.fixture(scope="session")
def taught(once: Once) -> tuple[Any, Path]:
    """A recipe, and a folder with the pair in tests/data/tiny and what its target wrote: target, draft, its text."""
    from llamas import RECIPE, TINY
    from specrig.training.recipe import Recipe

    recipe = Recipe.model_validate(RECIPE)

    def build(folder: Path) -> None:
        from specrig.training.target_text import write_text

        for part in ("target", "draft"):
            (folder / part).symlink_to(TINY / part)
        write_text(recipe, folder, folder / "target")

    return recipe, once("taught", build)
