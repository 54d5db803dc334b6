"""The least that a pass must read, against real tensors and arithmetic by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from synthetic import TARGET_PASS_S, cell_records, write_study
from transformers import AutoConfig, AutoModelForCausalLM

from specrig.analysis.floor import floor
from specrig.cell import Cell
from specrig.provenance import bandwidth
from specrig.results.floors import floor_notes
from specrig.results.study_data import read_study

SHAPE = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 128, "vocab_size": 512, "max_position_embeddings": 256, "tie_word_embeddings": True,
}  # fmt: skip
CELL = Cell(engine="native", pair="p", method="draft_model", k=2, task="t", temperature=0)


def environment(
    precision: str = "float32", gb_s: float | None = 2.0, cache: int | None = None, **shape: Any
) -> dict[str, Any]:
    return {
        "memory": {"copy_gb_s": gb_s, "last_level_cache": cache},
        "models": {"target": {"shape": {**SHAPE, **shape}, "precision": precision}},
    }


@pytest.mark.parametrize(("precision", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
@pytest.mark.parametrize("tied", [True, False])
def test_the_weights_are_those_of_the_model(precision: str, dtype: torch.dtype, tied: bool) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**{**SHAPE, "tie_word_embeddings": tied}), dtype=dtype
        )
    tensors = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    table = 0 if tied else model.get_input_embeddings().weight.numel() * dtype.itemsize  # of which a pass reads a row
    found = floor(cell_records(CELL, alpha=0.7), environment(precision, tie_word_embeddings=tied))
    assert found is not None and found.weight_bytes == tensors - table


def test_cache_and_bandwidth_by_hand() -> None:
    records = cell_records(CELL, alpha=0.7, prompts=5, length=64)
    found = floor(records, environment())
    assert found is not None
    context = 20 + 64 / 2  # prompts of 20 tokens
    assert found.read_bytes - found.weight_bytes == pytest.approx(context * 3 * 2 * (2 * 16) * 4)
    assert found.floor_s == pytest.approx(found.read_bytes / 2e9)
    assert found.pass_s == pytest.approx(TARGET_PASS_S, rel=0.05)
    assert found.share == pytest.approx(found.floor_s / found.pass_s)


@pytest.mark.parametrize(("alone", "rows"), [(False, 4), (True, 1)])
def test_a_batch_reads_the_weights_once_and_each_rows_cache(alone: bool, rows: int) -> None:
    single = cell_records(CELL, alpha=0.7, prompts=4)
    batch = [record.model_copy(update={"group": 0, "baseline_alone": alone}) for record in single]
    one, all_rows = floor(single, environment()), floor(batch, environment())
    assert one is not None and all_rows is not None
    assert all_rows.weight_bytes == one.weight_bytes
    assert all_rows.read_bytes - all_rows.weight_bytes == pytest.approx(rows * (one.read_bytes - one.weight_bytes))


@pytest.mark.parametrize(
    "unknown", [{}, environment(gb_s=None), environment("exl2"), {**environment(), "models": {"target": {"shape": {"model_type": "x"}, "precision": "float32"}}}]
)  # fmt: skip
def test_what_is_not_known_gives_no_floor(unknown: dict[str, Any]) -> None:
    assert floor(cell_records(CELL, alpha=0.7), unknown) is None


def test_the_report_says_it_and_warns_of_a_model_that_fits_the_cache(
    tmp_path: Path, report_text: Callable[[Path], str]
) -> None:
    study = write_study(tmp_path / "s", methods=("draft_model",), ks=(2,), tasks=("code",))
    before = read_study(study)
    assert floor_notes(before.cells.values(), before.environments) == [] and "floor_ms" not in before.table
    path = study / "records/native/embedded/draft_model/environment.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | environment(cache=32 << 20)))
    data = read_study(study)
    (note,) = floor_notes(data.cells.values(), data.environments)
    assert note.startswith("Baseline of embedded in native: a bare one-token pass takes ") and "copies 2.0 GB/s" in note
    assert "smaller than the processor's last-level cache (33.6 MB)" in note
    assert data.table["floor_share"].iloc[0] == pytest.approx(
        data.table["floor_ms"].iloc[0] / data.table["target_pass_ms"].iloc[0]
    )
    report = report_text(study)
    assert "a bare one-token pass takes" in report and "of it reached" in report
    path.write_text(json.dumps(json.loads(path.read_text()) | environment(cache=100)))
    data = read_study(study)
    assert "last-level" not in floor_notes(data.cells.values(), data.environments)[0]


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
