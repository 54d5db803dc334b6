"""What jobs ask a cluster for: memory and minutes follow from the pair's row and the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from specrig.planning.estimate import (
    MARGIN,
    STARTING,
    Demand,
    auditing_demand,
    conversion_demand,
    hours,
    measuring_demand,
    pair_sizes,
    traffic_demand,
    traffic_seconds,
    training_demand,
)
from specrig.study.load import load_study
from specrig.study.study import Study
from specrig.training.budget import training_flop


def study(**changes: object) -> Study:
    config = yaml.safe_load(Path("configs/test.yaml").read_text()) | changes
    Path("configs/own.yaml").write_text(yaml.safe_dump(config))
    return load_study(Path("configs/own.yaml"))


def test_a_measuring_job_asks_for_its_pairs_memory_and_its_cells_time(workplace: Path) -> None:
    methods = [{"method": "draft_model", "k": [2, 4]}, {"method": "ngram", "k": 3}]
    both = study(
        methods=methods,
        pairs=["llama31_8b", "tiny"],
        device="cuda",
        jobs="method",
        prompts=8,
        max_new_tokens=256,
        repeats={"least": 64, "most": 64},
    )
    sizes = {size.pair: size for size in pair_sizes(both)}
    demands = {process: measuring_demand(both, process, sizes[process[1]]) for process in both.grid.jobs}
    assert len(demands) == 4
    draft_model, ngram = (demands["native", "llama31_8b", method] for method in ("draft_model", "ngram"))
    assert draft_model.memory_mb == ngram.memory_mb == pytest.approx(sizes["llama31_8b"].memory_bytes / 1e6, abs=1)
    assert draft_model.memory_mb > 18_000 > 2_000 > demands["native", "tiny", "ngram"].memory_mb
    # Two cells and their baseline a task against one: 3 against 2 of 8 × 64 × 256 passes.
    assert (draft_model.minutes - STARTING) / (ngram.minutes - STARTING) == pytest.approx(3 / 2, rel=0.05)
    together = sum(each.minutes - STARTING for each in demands.values())
    assert together == pytest.approx(MARGIN * 60 * hours(both, list(sizes.values()))[0], abs=4)


def test_contexts_are_read_and_held(workplace: Path) -> None:
    keys = {"pairs": ["llama31_8b"], "methods": [{"method": "ngram", "k": 4}], "prompts": 8, "max_new_tokens": 16}
    short, long = study(**keys, contexts=[512]), study(**keys, contexts=[512, 32768])
    sizes = {number: pair_sizes(each) for number, each in enumerate((short, long))}
    assert sizes[1][0].tokens == 32768 and sizes[1][0].memory_bytes > sizes[0][0].memory_bytes
    (spent, _), (more, text) = hours(short, sizes[0]), hours(long, sizes[1])
    # 8 prompts of each of the tasks, by the method and its baseline, at 0.15 TFLOP/s.
    generations = 2 * 8 * len(short.tasks)
    flop = 2 * 8.03e9 * 32768 + 2 * 32 * 4096 * 32768**2
    assert 3600 * (more - spent) > 0.99 * generations * flop / 1.5e11
    assert "prompts read at 0.15 TFLOP/s" in text


def test_load_is_counted(workplace: Path) -> None:
    keys: dict[str, Any] = {
        "engines": ["llamacpp"],
        "pairs": ["smollm2_135m_shipped"],
        "tasks": ["code"],
        "methods": [{"method": "ngram", "k": 4}],
    }
    plain, loaded = (
        study(**keys),
        study(**keys, traffic={"concurrency": [1, 4], "rate": [2], "requests": 300, "prompts": 8}),
    )
    (size,), (job,) = pair_sizes(loaded), loaded.grid.points
    seconds = traffic_seconds(loaded, job, size)
    assert 3600 * (hours(loaded, [size])[0] - hours(plain, [size])[0]) == pytest.approx(seconds)
    assert seconds > 2 * 300 / 2 + 2 * 600 * loaded.max_new_tokens * 0.01
    demand = traffic_demand(loaded, job, size)
    assert demand.minutes - STARTING == pytest.approx(MARGIN * seconds / 60, abs=1)
    assert demand.memory_mb == pytest.approx(2 * size.memory_bytes / 1e6, abs=1)


def test_the_audit_and_a_conversion_ask_for_their_copies_of_the_weights(workplace: Path) -> None:
    both = study(pairs=["llama31_8b", "tiny"], methods=[{"method": "ngram", "k": 4}])
    sizes = {size.pair: size for size in pair_sizes(both)}
    large, weights = sizes["llama31_8b"], sizes["llama31_8b"].target.parameters
    assert large.dtype == "bfloat16"
    demand = auditing_demand(both, sizes)
    once = large.memory_bytes - (large.copies - 1) * large.weight_bytes
    assert demand.memory_mb > weights * (2 + 4) / 1e6 > 1.5 * once / 1e6
    assert large.memory_bytes > 2.25 * weights * 2, "compiled code reads a copy"
    assert demand.minutes == max(measuring_demand(both, job, sizes[job[1]]).minutes for job in both.grid.jobs)
    small = sizes["tiny"]
    assert small.audit_bytes - small.memory_bytes == small.target.parameters * (4 + 4) - small.weight_bytes
    assert conversion_demand(large.target).memory_mb > 3 * weights * 4 / 1e6 and conversion_demand(None) == Demand()


def test_a_training_asks_for_what_it_learns(workplace: Path) -> None:
    own = study(training={"draft_training": {"steps": 10_000_000}, "medusa": {"draft_vocabulary": 10}})
    draft, medusa = (training_demand(own, "tiny", model) for model in ("draft", "medusa"))
    assert draft.memory_mb > medusa.memory_mb > 1_500
    flop = training_flop(own.training, ["draft"], pair_sizes(own)[0].target)
    assert draft.minutes - STARTING == pytest.approx(MARGIN * flop / 1.5e11 / 60, abs=1)
    assert draft.minutes > 1_000


def test_what_is_not_known_gets_a_fixed_measure(workplace: Path) -> None:
    rows = Path("configs/pairs.tsv")
    rows.write_text(rows.read_text() + "mine\tnobody/knows\tnobody/either\t\t\tfloat32\t\t\t\t\n")
    own = study(pairs=["mine"], methods=[{"method": "ngram", "k": 3}])
    [process] = own.grid.jobs
    assert measuring_demand(own, process, *pair_sizes(own)) == Demand()
