"""Joules and clocks: the accounting against a device whose power is known, and what happens where no device tells any."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from synthetic import cell_records

from runs import own_study
from specrig.analysis.cells import cells_table
from specrig.analysis.energy import COLUMNS
from specrig.cell import Cell
from specrig.engines.native import Native
from specrig.measurement import runner
from specrig.measurement.energy import Meter, NvmlMeter, metered
from specrig.measurement.records import DeviceState, Record, RecordError, read_records, study_records, write_records
from specrig.models.pair import ModelError
from specrig.provenance.gpu import gpu_handles
from specrig.report.table_files import write_tables
from specrig.study.load import load_study


class FakeNvml:
    """Two GPUs in slot order, as NVML has them; what is in `silent` is not supported."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2

    class NVMLError(Exception):
        pass

    def __init__(self, *silent: str) -> None:
        self.silent, self.closed = silent, False
        self.millijoules = {"slot 0": 5_000, "slot 1": 70_000}
        self.uuids = {"GPU-aaa": "slot 0", "GPU-bbb": "slot 1", "MIG-ccc": "slice"}
        self.reasons = {"slot 0": 0x1, "slot 1": 0x1 | 0x4 | 0x40}

    def _tell(self, name: str, value: int) -> int:
        if name in self.silent:
            raise self.NVMLError("not supported")
        return value

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid not in self.uuids:
            raise self.NVMLError("not found")
        return self.uuids[uuid]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:  # noqa: N802
        return self._tell("energy", self.millijoules[handle])

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:  # noqa: N802
        return self._tell(
            f"clock {kind}", {"slot 0": 1980, "slot 1": 1410}[handle] if kind == self.NVML_CLOCK_SM else 2619
        )

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:  # noqa: N802
        return self._tell("reasons", self.reasons[handle])

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.closed = True


def test_the_counter_of_each_gpu_is_read_and_added_up() -> None:
    nvml = FakeNvml()
    meter = NvmlMeter(nvml, ["slot 0", "slot 1"])
    before = meter.joules()
    nvml.millijoules["slot 0"] += 1_500
    nvml.millijoules["slot 1"] += 40_000
    assert (before, meter.since(before), meter.source) == (75.0, 41.5, "NVML energy counter")
    assert meter.state() == DeviceState(
        sm_mhz=1410, memory_mhz=2619, throttled=["software power cap", "hardware thermal"]
    )
    assert NvmlMeter(nvml, ["slot 0"]).state().throttled == []  # idling is no throttling
    meter.close()
    assert nvml.closed


def test_what_a_gpu_does_not_tell_is_not_known() -> None:
    meter = NvmlMeter(FakeNvml("clock 2", "reasons"), ["slot 0"])
    assert meter.state() == DeviceState(sm_mhz=1980, memory_mhz=None, throttled=[])
    with pytest.raises(FakeNvml.NVMLError):
        NvmlMeter(FakeNvml("energy"), ["slot 0"])


def test_the_gpu_is_the_one_that_torch_sees() -> None:
    """CUDA_VISIBLE_DEVICES=1: torch's first is NVML's second."""
    assert gpu_handles(FakeNvml(), ["bbb"]) == ["slot 1"]
    assert gpu_handles(FakeNvml(), ["GPU-bbb", "aaa", "ccc"]) == ["slot 1", "slot 0", "slice"]
    with pytest.raises(FakeNvml.NVMLError):
        gpu_handles(FakeNvml(), ["ddd"])


def test_without_a_driver_a_measurement_goes_on_without_joules(capsys: pytest.CaptureFixture[str]) -> None:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        pass
    else:
        pynvml.nvmlShutdown()
        pytest.skip("this machine has the driver")
    with metered("cuda") as meter:
        before = meter.joules()
        assert (before, meter.since(before), meter.state(), meter.source) == (None, None, None, "")
    assert "energy is not measured: NVMLError" in capsys.readouterr().err


class Counting(Meter):
    """Two joules a generation; refuses to be asked while one runs."""

    source = "a test's counter"

    def __init__(self) -> None:
        self.total, self.running = 0.0, False

    def joules(self) -> float:
        assert not self.running, "asked inside the timed region"
        return self.total

    def state(self) -> DeviceState:
        assert not self.running, "asked inside the timed region"
        return DeviceState(
            sm_mhz=1000 + int(self.total), memory_mhz=2000, throttled=["power brake"] if self.total > 8 else []
        )


SHAPE = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 300, "max_position_embeddings": 256, "tie_word_embeddings": True,
}  # fmt: skip


def test_a_study_has_its_energy_and_its_floor(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real runner and engine, with a meter passed in: batches, warm-up and baseline each pay for themselves."""
    Path("shape").mkdir()
    Path("shape/config.json").write_text(json.dumps(SHAPE))
    table = "pair\ttarget\tdraft\tweights\tsimulated_acceptance\nshape\t./shape\t./shape\trandom\t0.7\n"
    prompts, methods = ["tell me " * count for count in (1, 2, 3, 4)], [{"method": "draft_model", "k": 2}]
    keys = {"max_new_tokens": 8, "batch_sizes": [2], "tables": {"reported": None}}
    study = load_study(own_study("s", table, prompts, methods=methods, **keys))
    study.root.mkdir(parents=True)
    (study.root / "study.json").write_text(study.model_dump_json())
    meter, generate = Counting(), Native.generate

    def counted(self: Native, *arguments: Any, **named: Any) -> Any:
        meter.running = True
        found = generate(self, *arguments, **named)
        meter.running = False
        meter.total += 2.0
        return found

    @contextmanager
    def given_meter(device: str, count: int = 1) -> Iterator[Meter]:
        assert (device, count) == ("cpu", 1)
        yield meter

    monkeypatch.setattr(Native, "generate", counted)
    monkeypatch.setattr(runner, "metered", given_meter)
    runner.measure(study, "native", "shape", ["draft_model"])

    records = study_records(study.root / "records")
    assert len(records) == 4 and {run.energy_j for record in records for run in (record.run, record.baseline)} == {2.0}
    row = cells_table(records).iloc[0]
    assert row["energy_per_token_j"] == pytest.approx(2 * 2.0 / 32)  # two batches, 4 × 8 tokens
    assert row["energy_ratio"] == pytest.approx(1.0)
    # After two generations of warm-up.
    assert (row["sm_mhz_low"], row["sm_mhz_high"], row["memory_mhz"]) == (1006, 1012, 2000)
    assert row["throttled"] == pytest.approx(0.5)

    environment = json.loads((study.root / "records/native/shape/draft_model/environment.json").read_text())
    assert environment["energy"] == "a test's counter"
    assert environment["memory"]["copy_gb_s"] > 0.1
    write_tables(study.root, study.root / "tables")
    table = pd.read_csv(study.root / "tables" / "simulated.csv").iloc[0]
    table_text = (study.root / "tables" / "simulated.md").read_text()
    assert "| memory floor / measured pass | J/token | energy / baseline's energy |" in table_text
    weights = 300 * 32 + 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64 + 2 * 32 + 32
    context = sum(len("tell me ") * (i + 1) + 4 for i in range(4)) / 4
    bytes_read = 4 * (weights + 2 * context * 2 * 16)  # two rows; keys and values of two heads of eight
    floor_ms = bytes_read / environment["memory"]["copy_gb_s"] / 1e6
    assert table["floor_share"] == pytest.approx(floor_ms / table["target_pass_ms"])


def test_columns_stay_away_where_nobody_knows_them() -> None:
    cell = Cell(engine="native", pair="p", method="draft_model", k=2, task="t", temperature=0)
    records = cell_records(cell, alpha=0.7)
    assert not set(COLUMNS) & set(cells_table(records))

    def with_energy(record: Record, joules: float | None) -> Record:
        runs = {name: getattr(record, name).model_copy(update={"energy_j": joules}) for name in ("run", "baseline")}
        return record.model_copy(update=runs)

    some = [with_energy(record, 3.0 if record.group else None) for record in records]
    frame = cells_table(some)
    # The group without joules lends no tokens either.
    assert frame["energy_per_token_j"].iloc[0] == pytest.approx(3.0 / 64)
    assert "sm_mhz_low" not in frame and "energy_ratio" in frame


def test_records_of_another_schema_are_refused(tmp_path: Path) -> None:
    cell = Cell(engine="native", pair="p", method="ngram", k=2, task="t", temperature=0)
    path = tmp_path / "r.jsonl"
    write_records(path, cell_records(cell, alpha=0.5, prompts=1))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 4}) + "\n")
    with pytest.raises(RecordError, match="record schema 4, this SpecRig reads 5"):
        list(read_records(path))


def test_a_servers_model_needs_no_config(monkeypatch: pytest.MonkeyPatch) -> None:
    from specrig.models.pair import PairFiles
    from specrig.provenance import environment

    def unknown(pair: PairFiles) -> Any:
        raise ModelError("not here")

    monkeypatch.setattr(environment, "config_of", unknown)
    assert environment.target_shape(PairFiles("p", "nobody/knows")) == {}
