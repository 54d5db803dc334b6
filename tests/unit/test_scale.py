"""Planning takes time in proportion to the cells: counted in calls, which no other process disturbs."""

from __future__ import annotations

import cProfile
import pstats
from pathlib import Path

import pytest
from synthetic import write_grid

from specrig.planning.plan import plan_of
from specrig.study.load import load_study


def calls(config: Path) -> int:
    """How many functions are called to read, check and plan a study."""
    profile = cProfile.Profile()
    assert profile.runcall(lambda: plan_of(load_study(config)))["jobs"]
    return pstats.Stats(profile).total_calls


@pytest.mark.parametrize("growing", ["pairs", "tasks"])
def test_twice_the_cells_cost_twice_the_calls(growing: str, tmp_path: Path) -> None:
    configs = [
        write_grid(tmp_path / str(count), **{"pairs": 1, "tasks": 1} | {growing: count}) for count in (16, 32, 64)
    ]
    calls(configs[0])  # what is read once in a process
    few, more, most = map(calls, configs)
    assert most - more < 2.3 * (more - few)
