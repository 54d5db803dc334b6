"""A target whose layers lie on several devices says what it says on one, and what it needs is asked for before anything
is loaded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from specrig.audit.toy_pair import build
from specrig.engines import registry
from specrig.engines.vllm import Vllm
from specrig.engines.vllm.arguments import arguments
from specrig.measurement.plan import gpus_used
from specrig.models import split
from specrig.models.pair import ModelError, PairFiles

HERE = Path(__file__).parent
SPLIT = PairFiles("large", "some/target", tensor_parallel=2)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Scene -> what differs (`split_scenes`). Its devices are PyTorch's for a whole process, so it is another one."""
    paths = [str(HERE), str(HERE.parent / "contract"), *filter(None, sys.path)]
    command = [sys.executable, str(HERE / "split_scenes.py"), str(tmp_path_factory.mktemp("toy_pair"))]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_split_target_says_the_same_whatever_drafts(outcomes: dict[str, str]) -> None:
    decoded = {name: outcome for name, outcome in outcomes.items() if " at " in name}
    assert {"autoregressive at 0", "draft_model at 1", "eagle at 0", "layer_skip at 1", "tree at 1"} <= decoded.keys()
    assert {name: outcome for name, outcome in decoded.items() if outcome} == {}


def test_layers_and_their_caches_lie_on_both_devices_and_a_misplaced_index_is_noticed(outcomes: dict[str, str]) -> None:
    assert outcomes["placed"] == ""
    assert outcomes["misplaced"] == ""


def test_other_architectures_and_loaders(outcomes: dict[str, str]) -> None:
    others = {name: outcome for name, outcome in outcomes.items() if " at " not in name}
    assert {"architecture gemma4_text", "architecture gpt2", "random weights", "transformers"} <= others.keys()
    assert {name: outcome for name, outcome in others.items() if outcome} == {}


def test_what_a_split_target_needs_is_asked_for_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert split.devices_of(SPLIT, "cpu") == ["cpu"]  # there the column changes nothing
    assert split.devices_of(PairFiles("small", "some/target"), "cuda") == ["cuda"]
    monkeypatch.setattr(split, "gpus_here", lambda: 1)
    with pytest.raises(ModelError, match=r"pair large: .* 2 GPUs .* sees 1; lower the number"):
        split.devices_of(SPLIT, "cuda")
    monkeypatch.setattr(split, "gpus_here", lambda: 4)
    assert split.devices_of(SPLIT, "cuda") == ["cuda:0", "cuda:1"]
    monkeypatch.setattr(split, "find_spec", lambda _: None)
    with pytest.raises(ModelError, match=r"needs accelerate: `pip install 'specrig\[split\]'`"):
        split.devices_of(SPLIT, "cuda")


def test_engines_that_split_take_as_many_gpus() -> None:
    assert {name: gpus_used(engine, 4) for name, engine in registry().items()} == {
        "llamacpp": 1, "native": 4, "server": 1, "sglang": 4, "transformers": 4, "vllm": 4, "vllm_server": 4,
    }  # fmt: skip


@pytest.mark.parametrize(("device", "parts"), [("cuda", 2), ("cpu", 1)])
def test_vllm_splits_a_pair_over_gpus_alone(tmp_path: Path, device: str, parts: int) -> None:
    pair = replace(build(tmp_path), tensor_parallel=2)
    assert (
        arguments((engine := Vllm(pair, device=device)).pair, engine.options, device)["tensor_parallel_size"] == parts
    )


@pytest.mark.parametrize(
    ("sizes", "first", "parts", "expected"),
    [
        pytest.param([1] * 8, 0, 2, [4, 4], id="even"),
        pytest.param([1] * 8, 2, 2, [3, 5], id="embedding first"),
        pytest.param([1] * 8, 20, 3, [0, 4, 4], id="first is full"),
        pytest.param([5, 1, 1, 1], 0, 2, [1, 3], id="layers of two sizes"),
        pytest.param([1] * 10, 1, 4, [2, 3, 3, 2], id="rests go on"),
        pytest.param([1], 0, 2, [1, 0], id="more GPUs than layers"),
    ],
)
def test_shares(sizes: list[int], first: int, parts: int, expected: list[int]) -> None:
    assert split.shares(sizes, first, parts) == expected


def test_only_layers_leave_the_first_gpu_and_nothing_is_forgotten() -> None:
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "vocab_size": 60,
    }
    model = split.empty(AutoConfig.for_model("llama", **sizes), torch.float32)
    assert {weight.device.type for weight in model.parameters()} == {"meta"}
    found = split.device_map(model, ["cuda:0", "cuda:1"], beside=20_000)
    assert all(any(f"{name}.".startswith(f"{above}.") for above in found) for name in model.state_dict())
    layers = {name: place.index for name, place in found.items() if name.startswith("model.layers.")}
    assert list(layers) == [f"model.layers.{index}" for index in range(6)]
    assert list(layers.values()) == sorted(layers.values()) and set(layers.values()) == {0, 1}
    assert {place.index for name, place in found.items() if name not in layers} == {0}
    with pytest.raises(ModelError, match="in no list"):
        model.config.num_hidden_layers = 5
        split.device_map(model, ["cuda:0", "cuda:1"])
