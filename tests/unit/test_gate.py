"""Pairs that can never work are refused from their small files, with the reason; no weights are there to be loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specrig.models.gate import _json, check_decoder, check_pair
from specrig.models.pair import ModelError, PairFiles


@pytest.fixture(autouse=True)
def _fresh() -> None:
    _json.cache_clear()


def folder(path: Path, config: dict[str, Any], vocabulary: dict[str, int] | None = None) -> str:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    if vocabulary is not None:
        (path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": []}))
    return str(path)


LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "encoder"),
        ({"model_type": "distilbert", "architectures": ["DistilBertForMaskedLM"]}, "encoder"),
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}, "encoder-decoder"),
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
        check_pair(PairFiles("p", target, draft))
    assert "ngram" in str(caught.value)


def test_a_folder_without_config_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"empty: no config\.json"):
        check_decoder(str(tmp_path / "empty"))
