"""The least that a pass must read, against real tensors and arithmetic by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from synthetic import cell_records, write_study
from transformers import AutoConfig, AutoModelForCausalLM

from specrig.analysis.cost_model import floor_share, pass_bytes, size_of_shape
from specrig.cell import Cell
from specrig.models import facts
from specrig.provenance import bandwidth
from specrig.report.study_data import read_study

SHAPE = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 128, "vocab_size": 512, "max_position_embeddings": 256, "tie_word_embeddings": True,
}  # fmt: skip
CELL = Cell(engine="native", pair="p", method="draft_model", k=2, task="t", temperature=0)


def environment(precision: str = "float32", gb_s: float | None = 2.0) -> dict[str, Any]:
    return {"memory": {"copy_gb_s": gb_s}, "models": {"target": {"shape": SHAPE, "precision": precision}}}


@pytest.mark.parametrize(("precision", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
@pytest.mark.parametrize("tied", [True, False])
def test_the_weights_are_those_of_the_model(precision: str, dtype: torch.dtype, tied: bool) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**{**SHAPE, "tie_word_embeddings": tied}), dtype=dtype
        )
    tensors = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    table = 0 if tied else model.get_input_embeddings().weight.numel() * dtype.itemsize  # of which a pass reads a row
    shape = facts.shape_of({**SHAPE, "tie_word_embeddings": tied})
    assert shape is not None and pass_bytes(size_of_shape(shape), precision) == tensors - table


WEIGHTS = 4 * (512 * 64 + 3 * (64 * 64 * 2 + 64 * 32 * 2 + 64 * 128 * 3 + 2 * 64) + 64)
CACHE = 4 * 3 * 2 * (2 * 16) * (20 + 64 / 2)
"""Bytes of a row's keys and values: prompts of 20 tokens, outputs of 64."""


@pytest.mark.parametrize(("batched", "alone", "rows"), [(False, False, 1), (True, False, 4), (True, True, 1)])
def test_cache_and_bandwidth_by_hand(batched: bool, alone: bool, rows: int) -> None:
    """A batch reads the weights once, and the cache of each row."""
    records = cell_records(CELL, alpha=0.7, prompts=4, length=64)
    if batched:
        records = [record.model_copy(update={"group": 0, "baseline_alone": alone}) for record in records]
    calls = [record.baseline.target_passes[1] for record in (records if alone or not batched else records[:1])]
    pass_s = sum(seconds for _, seconds in calls) / sum(count for count, _ in calls)
    assert floor_share(records, environment()) == pytest.approx((WEIGHTS + rows * CACHE) / 2e9 / pass_s)


@pytest.mark.parametrize(
    "unknown", [{}, environment(gb_s=None), environment("exl2"), {**environment(), "models": {"target": {"shape": {"model_type": "x"}, "precision": "float32"}}}]
)  # fmt: skip
def test_what_is_not_known_gives_no_floor(unknown: dict[str, Any]) -> None:
    assert math.isnan(floor_share(cell_records(CELL, alpha=0.7), unknown))


def test_cells_have_the_floor_where_the_job_knows_it(tmp_path: Path) -> None:
    study = write_study(tmp_path / "s", methods=("draft_model",), ks=(2,), tasks=("code",))
    assert "floor_share" not in read_study(study).table
    path = study / "records/native/tiny/draft_model/environment.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | environment()))
    assert (read_study(study).table["floor_share"] > 0).all()


def test_copying_counts_read_and_written_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that gives every burst one second, the rate is the bytes."""
    ticks = iter(range(1000))
    monkeypatch.setattr(bandwidth.time, "perf_counter", lambda: float(next(ticks)))
    monkeypatch.setattr(bandwidth, "LEAST", 1 << 20)
    monkeypatch.setattr(bandwidth, "MOST", 1 << 20)
    assert bandwidth.copy_gb_s("cpu") == pytest.approx(2 * bandwidth.BURST["cpu"] * (1 << 20) / 1e9)
    monkeypatch.setattr(bandwidth.psutil, "virtual_memory", lambda: type("Memory", (), {"available": 1 << 10})())
    assert bandwidth.copy_gb_s("cpu") is None


def test_the_largest_cache_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "CACHES", tmp_path)
    assert bandwidth.last_level_cache() is None
    for number, size in enumerate(["32K", "1024K", "32M"]):
        (tmp_path / f"index{number}").mkdir()
        (tmp_path / f"index{number}" / "size").write_text(f"{size}\n")
    assert bandwidth.last_level_cache() == 32 << 20
