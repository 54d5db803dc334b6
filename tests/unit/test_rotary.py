"""Rotary tables that depend on the length of the text: one side of the switch equals `generate`, what crosses is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from model_folders import language_model

from specrig.cell import Cell
from specrig.engines.native import Native
from specrig.models.gate import rotary_switch
from specrig.models.pair import PairFiles
from specrig.runtime.rotary import crossing, switch_of
from specrig.runtime.transformers_model import cached_model
from specrig.runtime.types import DecodingError
from specrig.tasks.lengths import fitting
from specrig.tasks.prompts import Prompt
from specrig.tasks.sources import PromptError

SWITCH = 32
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [1.0, 2.0, 4.0, 8.0],
    "original_max_position_embeddings": SWITCH,
}
FIXED = {
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 64},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "rope_theta": 10000.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "dynamic": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0},
}


def made(folder: Path, kind: str = "phi3", **config: Any) -> Any:
    if kind == "phi3":
        config |= {"original_max_position_embeddings": SWITCH}
    return language_model(folder, 258, kind=kind, eos_token_id=None, **config)


@pytest.fixture(scope="module")
def longrope(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """Models with the switch, through their own forward pass (Phi-3) and through ours (Llama)."""
    root = tmp_path_factory.mktemp("longrope")
    return {kind: (root / kind, made(root / kind, kind, rope_parameters=LONGROPE)) for kind in ("phi3", "llama")}


def generated(model: Any, prompt: list[int], new: int) -> list[int]:
    found = model.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), max_new_tokens=new, do_sample=False
    )
    return [int(token) for token in found[0, len(prompt) :]]


@pytest.mark.parametrize(
    ("kind", "length", "new"), [("phi3", 5, 28), ("phi3", 33, 20), ("llama", 4, 8), ("llama", 5, 28), ("llama", 60, 20)]
)
def test_each_side_of_the_switch_equals_generate(
    kind: str, length: int, new: int, longrope: dict[str, tuple[Path, Any]]
) -> None:
    """Drafts reach beyond the switch where the text does not. One engine decodes on both sides, one after the other."""
    folder, model = longrope[kind]
    prompt = [(7 * at + 3) % 256 for at in range(length)]
    expected = generated(model, prompt, new)
    with Native(PairFiles("p", str(folder), str(folder)), threads=1) as engine:
        engine.eos = frozenset()  # the tokenizer names one
        for other in (50, 5):  # what was decoded before leaves nothing behind
            engine.generate(cell("autoregressive", 0), [[1] * other], max_new_tokens=3, seeds=[0])
            for method, k, options in (
                ("autoregressive", 0, {}),
                ("draft_model", 6, {}),
                ("tree", 3, {"branching": [2, 2, 1]}),
                ("ngram", 8, {}),
                ("layer_skip", 4, {"skip": (1,)}),
            ):
                (found,) = engine.generate(cell(method, k, **options), [prompt], max_new_tokens=new, seeds=[0])
                assert found.tokens == expected, method


def cell(method: str, k: int, **options: Any) -> Cell:
    from specrig.decoding.drafters import registry

    chosen = registry()[method].Options.model_validate(options).model_dump()
    return Cell(engine="native", pair="p", method=method, k=k, task="t", temperature=0.0, batch_size=1, options=chosen)


def test_what_crosses_the_switch_is_refused(longrope: dict[str, tuple[Path, Any]]) -> None:
    pair = PairFiles("p", str(longrope["phi3"][0]))
    assert rotary_switch(pair) == SWITCH
    fitting([Prompt(id="a", text="x" * 20)], "t", pair, 13)
    fitting([Prompt(id="a", text="x" * 33)], "t", pair, 90)
    with pytest.raises(PromptError, match="'a' of task 't': a prompt of 20 tokens and 14 new ones cross position 32"):
        fitting([Prompt(id="a", text="x" * 20)], "t", pair, 14)
    with Native(pair, threads=1) as engine:
        plain = cell("autoregressive", 0)
        with pytest.raises(DecodingError, match="lower max_new_tokens to 13, or take prompts of more than 32 tokens"):
            engine.generate(plain, [[5] * 20], max_new_tokens=14, seeds=[0])
        with pytest.raises(DecodingError, match="lie on both sides of position 32"):
            engine.generate(plain, [[5] * 20, [5] * 40], max_new_tokens=4, seeds=[0, 1])


@pytest.mark.parametrize("scaling", FIXED)
def test_fixed_tables_run_up_to_the_end_of_the_context(scaling: str, tmp_path: Path) -> None:
    model = made(tmp_path, "llama", rope_parameters=FIXED[scaling])
    assert switch_of(model.config.to_dict()) is None
    prompt = [(7 * at + 3) % 256 for at in range(200)]
    with Native(PairFiles("p", str(tmp_path)), threads=1) as engine:
        engine.eos = frozenset()
        (found,) = engine.generate(cell("ngram", 4), [prompt], max_new_tokens=56, seeds=[0])
    assert found.tokens == generated(model, prompt, 56)


def test_the_check_at_loading_looks_across_the_switch(
    longrope: dict[str, tuple[Path, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model whose long table is another one over our cache than by itself."""
    from specrig.runtime import rotary

    def wrong(self: Any, *, long: bool) -> None:
        hold(self, long=False)
        self.long = long

    hold = rotary.HeldTables._hold
    monkeypatch.setattr(rotary.HeldTables, "_hold", wrong)
    with pytest.raises(DecodingError, match="its logits are not its own"):
        cached_model(longrope["phi3"][1])


def test_a_switch_in_a_models_own_code_is_refused(tmp_path: Path) -> None:
    scaling = LONGROPE | {"short_mscale": 1.0, "long_mscale": 1.5, "short_factor": [1.0] * 4}
    model = language_model(
        tmp_path, 258, kind="phimoe", rope_parameters=scaling, num_local_experts=2, num_experts_per_tok=1
    )
    with pytest.raises(DecodingError, match="changes at position 32 in its own way"):
        cached_model(model)


@pytest.mark.parametrize(
    ("config", "at"),
    [
        ({}, None),
        ({"rope_scaling": None}, None),
        ({"max_position_embeddings": 99, "rope_scaling": {"type": "su"}, "original_max_position_embeddings": 9}, 9),
        (
            {"max_position_embeddings": 9, "rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 9},
            None,
        ),
        ({"max_position_embeddings": 99, "rope_parameters": {"full_attention": LONGROPE}}, SWITCH),
        # Phi-3's first files call it YaRN, and transformers takes the model's length before the scaling's.
        ({"max_position_embeddings": 99, "rope_scaling": LONGROPE | {"rope_type": "yarn"}}, SWITCH),
        ({"max_position_embeddings": 99, "rope_parameters": LONGROPE, "original_max_position_embeddings": 9}, 9),
    ],
)
def test_the_switch_is_read_off_a_config(config: dict[str, Any], at: int | None) -> None:
    assert switch_of(config) == at
    assert (crossing(at, 5, 40) is None) == (at is None)
