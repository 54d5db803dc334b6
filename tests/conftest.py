"""Shared by all tests: where the repository is, a study folder to run in, and one in which the test study has run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

# The models of the tests are so small that a second thread costs more than it saves; read when torch is imported, here
# and in jobs.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

from runs import REPOSITORY, furnish, imported, run
from warm.short_probes import shorten

# A busy machine fails no test: what is timed belongs into a benchmark.
settings.register_profile("specrig", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("specrig")
shorten()


def pytest_configure(config: pytest.Config) -> None:
    """One server for the jobs of all studies; it imports nothing before the first."""
    if "SPECRIG_TESTS_SERVER" in os.environ or sys.platform != "linux":
        return
    folder = tempfile.TemporaryDirectory(prefix="specrig-tests-")  # the name of a socket is short
    os.environ["SPECRIG_TESTS_SERVER"] = address = f"{folder.name}/server"
    command = [sys.executable, str(REPOSITORY / "tests/warm/server.py"), address]
    server = subprocess.Popen(command, env=imported(), stdin=subprocess.PIPE)

    def stop() -> None:
        server.kill()
        server.wait()
        folder.cleanup()

    config.add_cleanup(stop)


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
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # the processes' own folders lie in it

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
            code = run(folder, env=os.environ | secrets, stdout=message).returncode
        assert code == 0, (folder / "output.txt").read_text()

    return once("study", build)


SUMS = {
    "vocabulary": 300,
    "target": {"layers": 3, "hidden": 32, "heads": 2, "intermediate": 48, "context": 64},
    "draft": {"layers": 1, "hidden": 32, "heads": 2, "intermediate": 48, "context": 64},
    "target_training": {"steps": 20, "batch": 4, "sequence": 32, "evaluations": 1},
    "draft_training": {"steps": 20, "batch": 4, "sequence": 32, "evaluations": 1},
    "text": {"sequences": 8, "sequence": 32, "heldout_sequences": 8},
}


@pytest.fixture(scope="session")
def sums(once: Once) -> tuple[Any, Path]:
    """A pair for heads to learn from, barely trained, on sums: corpus/, target, draft and the target's text."""

    from specrig.training.recipe import Recipe

    recipe = Recipe.model_validate(SUMS)

    def build(folder: Path) -> None:
        from specrig.corpus.example import TASKS
        from specrig.training.distil import train_draft
        from specrig.training.language_model import train_target
        from specrig.training.target_text import write_text

        rows = [
            {
                "task": TASKS[n % 4],
                "prompt": f"{n} and {n + 7} make",
                "completion": f" {2 * n + 7}, more than {n}",
                "instruction": f"Add {n} and {n + 7}",
            }
            for n in range(400)
        ]
        (folder / "corpus").mkdir()
        for name, part in (("train", rows[:360]), ("heldout", rows[360:])):
            lines = [
                json.dumps({**row, "text": row["prompt"] + row["completion"], "source": "-"}) + "\n" for row in part
            ]
            (folder / "corpus" / f"{name}.jsonl").write_text("".join(lines))
        train_target(recipe, folder / "corpus", folder / "target", progress=False)
        write_text(recipe, folder / "corpus", folder, folder / "target")
        train_draft(recipe, folder / "corpus", folder, folder / "target", progress=False)

    return recipe, once("sums", build)
