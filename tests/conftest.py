"""Shared by all tests: where the repository is, and a study folder to run in."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

# The models of the tests are so small that a second thread costs more than it saves; read when torch is imported, here and in jobs.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

# A busy machine fails no test: what is timed belongs into a benchmark.
settings.register_profile("specrig", deadline=None)
settings.load_profile("specrig")

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with a copy of `configs/`, to be edited and run in."""
    shutil.copytree(REPOSITORY / "configs", tmp_path / "configs")
    monkeypatch.chdir(tmp_path)
    return tmp_path
