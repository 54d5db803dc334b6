"""Pairs that can never work are refused from their small files, with the reason; no weights are there to be loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from model_folders import stand_in
from tokenizers import Tokenizer, models
from transformers import BartConfig, MambaConfig, PreTrainedTokenizerFast

from specrig.models import needs
from specrig.models.gate import _json, check_decoder, check_pair, check_vocabulary
from specrig.models.pair import ModelError, PairFiles
from specrig.models.weights import PretrainedWeights, RandomWeights


@pytest.fixture(autouse=True)
def _fresh() -> None:
    _json.cache_clear()


def folder(path: Path, config: dict[str, Any], vocabulary: dict[str, int] | None = None) -> str:
    stand_in(path, **config)
    if vocabulary is not None:
        (path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": []}))
    return str(path)


LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "encoder"),
        ({"model_type": "distilbert", "architectures": ["DistilBertForMaskedLM"]}, "encoder"),
        ({"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]}, "reads more than text"),
        (
            {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True},
            "encoder-decoder",
        ),
    ],
)
def test_models_that_cannot_decode_are_refused(tmp_path: Path, config: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        check_decoder(folder(tmp_path / "model", config))


def test_the_same_vocabulary_passes(tmp_path: Path) -> None:
    words = {"a": 0, "b": 1, "c": 2}
    target, draft = (
        folder(tmp_path / "t", LLAMA, words),
        folder(tmp_path / "d", {**LLAMA, "architectures": ["GPT2LMHeadModel"]}, words),
    )
    check_pair(PairFiles("p", target, draft))


def test_another_vocabulary_is_refused_with_an_example(tmp_path: Path) -> None:
    target = folder(tmp_path / "t", LLAMA, {"a": 0, "b": 1, "c": 2})
    draft = folder(tmp_path / "d", LLAMA, {"a": 0, "b": 2, "c": 1, "d": 3})
    with pytest.raises(ModelError, match=r"'b' is 1 in the target and 2 in the draft") as caught:
        check_vocabulary(target, draft)
    assert "ngram" in str(caught.value)
    check_pair(PairFiles("p", target, draft))  # a method can still draft from it


def test_a_folder_without_config_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="empty is empty"):
        check_decoder(str(tmp_path / "empty"))


SIZED = {"vocab_size": 60, "hidden_size": 32, "num_attention_heads": 4, "max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, None),
        (SIZED, None),
        ({**SIZED, "layer_types": ["sliding_attention", "full_attention"], "mamba_d_state": 4}, None),
        ({**SIZED, "layer_types": ["attention", "mamba"]}, "layers of type mamba"),
        ({**SIZED, "hybrid_override_pattern": "M-*"}, "layers of type M"),
        ({**SIZED, "mamba_d_state": 4}, "mamba_d_state in its config"),
        ({"text_config": {**SIZED, "linear_num_value_heads": 2}}, "linear_num_value_heads in its config"),
        ({**SIZED, "num_attention_heads": None}, "no attention heads in its config"),
        ({**SIZED, "alibi": True}, "ALiBi"),
        ({**SIZED, "alibi": False}, None),
        ({**SIZED, "attn_config": {"alibi": True}}, "ALiBi"),
        ({key: value for key, value in SIZED.items() if "position" not in key}, "names no positions"),
        ({**SIZED, "attention_types": [[["global", "local"], 12]]}, "local attention"),
        ({**SIZED, "kv_lora_rank": 16}, None),
    ],
)
def test_needs_are_read_off_a_config(config: dict[str, Any], reason: str | None) -> None:
    found = needs.unmet(config)
    assert found is None if reason is None else reason in (found or "")


def test_a_rotary_scaling_that_transformers_does_not_know_is_refused_before_weights_are_read() -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    assert ROPE_INIT_FUNCTIONS.keys() | {"default"} <= needs.rotary_types()
    for kind in ROPE_INIT_FUNCTIONS:
        assert needs.unreadable({"model_type": "llama", "rope_scaling": {"type": kind}}) is None
    assert needs.unreadable({"model_type": "llama", "rope_scaling": {"type": None, "rope_type": None}}) is None
    assert "'foo', which" in (needs.unreadable({"model_type": "llama", "rope_parameters": {"rope_type": "foo"}}) or "")
    old = {"model_type": "phi3", "rope_scaling": {"type": "su", "long_factor": [1.0]}}
    assert "su is an old name of longrope" in (needs.unreadable(old) or "")


def test_weights_of_torch_that_are_cut_short_are_refused_before_they_are_read(tmp_path: Path) -> None:
    from specrig.models.weight_files import check_files

    file = tmp_path / "pytorch_model.bin"
    for old in (False, True):
        torch.save({"x": torch.zeros(99)}, file, _use_new_zipfile_serialization=not old)
        check_files(tmp_path)
    torch.save({"x": torch.zeros(99)}, file)
    for content in (file.read_bytes()[:-50], b"<html>Not found</html>", b""):
        file.write_bytes(content)
        with pytest.raises(ModelError, match=r"pytorch_model\.bin: cut short, or no file of torch's; fetch it again"):
            check_files(tmp_path)


def test_a_model_that_cannot_be_rolled_back_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    """No weights are there; the second says nothing in its config, its class does."""
    mamba, bart = tmp_path / "mamba", tmp_path / "bart"
    for path, config in (
        (mamba, MambaConfig()),
        (bart, BartConfig(is_encoder_decoder=False, architectures=["BartForCausalLM"])),
    ):
        stand_in(path)
        config.save_pretrained(path)
        tokenizer().save_pretrained(path)
    for path, reason in ((mamba, "more than keys and values"), (bart, "takes no positions")):
        with pytest.raises(ModelError, match=rf"{path.name}: the native engine cannot decode with it: .*{reason}"):
            PretrainedWeights(PairFiles("p", str(path))).cached("target", "cpu")


def test_random_weights_of_an_architecture_that_needs_more_are_refused_too(tmp_path: Path) -> None:
    pair = PairFiles(
        "p",
        folder(tmp_path / "t", {**SIZED, "model_type": "jamba", "mamba_d_state": 4}),
        random_weights=True,
        simulated_acceptance=0.7,
    )
    with pytest.raises(ModelError, match=r"pair p, target: the native engine cannot decode with it: .*mamba_d_state"):
        RandomWeights(pair).cached("target", "cpu")
    unknown = PairFiles(
        "p", folder(tmp_path / "u", {**SIZED, "model_type": "nobody"}), random_weights=True, simulated_acceptance=0.7
    )
    with pytest.raises(ModelError, match="nobody"):
        RandomWeights(unknown).cached("target", "cpu")


def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")), unk_token="a"
    )
