"""Plain decoding is held against transformers' own generate: a mask that is wrong in baseline and method alike is
found.
"""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import MistralConfig, MistralForCausalLM, PreTrainedTokenizerFast

from runs import own_study
from specrig.audit import reference
from specrig.audit.multiple_testing import REFERENCE, UNIFORMITY
from specrig.audit.run import AuditTarget, audit_records
from specrig.measurement.records import Record, study_records
from specrig.measurement.runner import measure
from specrig.results.audit_tables import identity, sentence, summary_grid, verdict_grid
from specrig.results.summary import audit_failures
from specrig.runtime import agreement
from specrig.runtime.attention import FULL
from specrig.runtime.llama_model import LlamaModel
from specrig.study.load import load_study
from specrig.study.study import Study

LETTERS = {chr(ord("a") + index): index for index in range(26)}


@pytest.fixture
def windowed(workplace: Path) -> Path:
    """A study of one folder: a tiny Mistral that sees eight tokens back, and prompts longer than that."""
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=26, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=256, sliding_window=8, initializer_range=0.4, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    MistralForCausalLM(config).save_pretrained("model")
    tokenizer = Tokenizer(models.WordLevel(LETTERS, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="a").save_pretrained("model")
    prompts = ["thequickbrownfox", "jumpsoverthelazydogandruns"]
    table, methods = "pair\ttarget\tdraft\ntiny\tmodel\tmodel\n", [{"method": "draft_model", "k": 3}]
    return own_study("windowed", table, prompts, methods=methods, max_new_tokens=24)


def audited(study: Study) -> pd.DataFrame:
    measure(study, "native", "tiny", ["draft_model"])
    return judged(study, study_records(study.root / "records"))


def judged(study: Study, records: list[Record]) -> pd.DataFrame:
    out = study.root / "audit" / "records.csv"
    audit_records(study, records, study.root, out)
    return pd.read_csv(out)


def cells(**values: Any) -> pd.DataFrame:
    return pd.DataFrame(
        [{"engine": "native", "pair": "tiny", "method": "draft_model", "variant": "own", "temperature": 1.0} | values]
    )


def test_a_right_baseline_has_a_row_of_its_own(windowed: Path) -> None:
    audit = audited(load_study(windowed))
    assert REFERENCE == "baseline against transformers' generate"
    assert audit["test"].tolist() == [REFERENCE, "token identity"]
    assert audit["passed"].all() and audit["method"].tolist() == ["autoregressive", "draft_model"]
    assert audit["finding"][0] == "1: the same 24 tokens after 26 of prompt", "the longest prompt"
    assert "gives the same output as transformers' own generate" in sentence(audit)


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every layer sees everything, as if it had no window, and the check at loading is off."""
    whole = LlamaModel.__init__

    def wrong(self: LlamaModel, model: Any, **kwargs: Any) -> None:
        whole(self, model, **kwargs)
        self.patterns, self.pattern_of = [FULL], [0] * self.layers

    monkeypatch.setattr(LlamaModel, "__init__", wrong)
    monkeypatch.setattr(agreement, "check", lambda *_: None)


def test_a_wrong_mask_is_identical_to_itself_and_found_all_the_same(windowed: Path, blind: None) -> None:
    audit = audited(load_study(windowed))
    baseline, identity = audit.to_dict("records")
    assert identity["passed"] and "2 of 2 outputs identical (100 %)" in identity["finding"], (
        "the method agrees with the wrong baseline"
    )
    assert not baseline["passed"]
    assert "instead of" in baseline["finding"] and "logits" in baseline["finding"]
    assert audit_failures(cells(), audit).tolist() == [True], (
        "all that was measured against it, whatever variant and temperature"
    )
    assert audit_failures(cells(pair="other"), audit).tolist() == [False]
    assert "native/tiny" in sentence(audit) and "struck through" in sentence(audit)
    equal = "outputs of speculative methods equal plain decoding's, token by token."
    assert f"At temperature 0 all 2 {equal}" in sentence(audit)
    parted = audit.assign(identical=[None, 1])
    equal = equal.replace(" of", " (50 %) of", 1)
    assert f"1 of 2 {equal} The others differ first at a numerical tie." in sentence(parted)
    assert f"1 of 2 {equal} A test passes where" in sentence(parted.assign(passed=[False, False]))
    assert "passed, 50 % identical" in {row[-2].text for row in verdict_grid(parted).rows}
    assert "identical" not in sentence(audit.drop(columns="identical")), "audits of before had no such column"


def test_an_audited_pair_is_forgotten_before_the_next_is_loaded(windowed: Path) -> None:
    study = load_study(windowed)
    target = AuditTarget(study, "tiny", study.root)
    assert target.prompts("own") is target.prompts("own") and target.scores([1, 2]) is target.scores((1, 2))
    engine = weakref.ref(target.precise)
    assert engine() is target.engine, "which is of float32 itself"
    del target
    gc.collect()
    assert engine() is None


def test_outputs_without_speculation_are_counted_apart() -> None:
    row = {"test": "token identity", "finding": "", "ks": "3", "samples": 20, "identical": 20, "passed": True}
    batched = row | {"ks": 0, "samples": 10, "identical": 6}
    lossy = row | {"identical": 1, "finding": "lossy by design; 1 of 20 outputs identical"}
    drafted = "At temperature 0 all 20 outputs of speculative methods equal plain decoding's, token by token."
    whole = identity(pd.DataFrame([row, batched, lossy]))
    assert whole == (
        f"{drafted} 4 of 10 batched outputs without speculation differ from plain decoding's at a numerical tie: a batch "
        "adds numbers in another order."
    )
    assert "tie" not in identity(pd.DataFrame([batched | {"passed": False}]))
    assert identity(pd.DataFrame([batched | {"identical": 10}])).startswith("All 10 batched outputs")
    assert identity(pd.DataFrame([lossy])) == ""


def test_where_nothing_was_decoded_greedily_the_native_baseline_is_decoded_now(windowed: Path, blind: None) -> None:
    config = yaml.safe_load(windowed.read_text()) | {"temperatures": [1.0]}
    windowed.write_text(yaml.safe_dump(config))
    audit = audited(load_study(windowed))
    assert audit["test"].tolist() == [REFERENCE, "per-position uniformity"]
    assert not audit["passed"][0] and audit["temperature"].tolist() == [0.0, 1.0]


def test_what_cannot_be_compared_is_said_and_rejects_nothing(windowed: Path) -> None:
    study = load_study(windowed)
    measure(study, "native", "tiny", ["draft_model"])
    served = [
        record.model_copy(update={"cell": record.cell.model_copy(update={"engine": "server"})})
        for record in study_records(study.root / "records")
    ]
    audit = judged(study, served)
    assert audit["passed"].isna().tolist() == [True, False]
    assert audit["finding"][0] == "not compared: the model lies with its servers"
    assert not audit_failures(cells(engine="server"), audit).any()
    assert "1 of 1 baselines. The table says why." in sentence(audit)
    assert {row[-2].text for row in verdict_grid(audit).rows} == {"not judged", "passed, 100 % identical"}
    assert {row[-1].text for row in summary_grid(audit.assign(p_value=1e-15)).rows} == {"< 1e-12"}
    files = replace(study.paths.pair_files("tiny", study.root).only(()), quantization="awq")
    (made,) = reference.check_baselines(study_records(study.root / "records"), study, files, study.root, lambda *_: [])
    assert made.passed is None and "quantized as awq" in made.finding


def test_a_tie_is_told_apart(windowed: Path) -> None:
    study = load_study(windowed)
    measure(study, "native", "tiny", ["draft_model"])
    record = study_records(study.root / "records")[0]
    prompt, tokens = [1, 2], list(record.baseline.tokens)
    logits = torch.zeros(len(tokens), 26)
    logits[3, tokens[3]], other = 1e-4, (tokens[3] + 1) % 26
    found = [*tokens[:3], other, *tokens[4:]]
    tie = reference.check_baseline(record, found, reference.ReferenceOutput(prompt, tokens, logits), "float32")
    assert tie.passed and tie.finding.startswith("numerical tie") and "token 3" in tie.finding
    audit = judged(study, [record])
    same = "gives the same output as transformers' own generate"
    up_to_a_tie = same.replace(" as", " up to a numerical tie as")
    assert same in sentence(audit) and up_to_a_tie in sentence(audit.assign(finding=[tie.finding, ""]))
    logits[3, tokens[3]] = 0.5
    assert (
        reference.check_baseline(record, found, reference.ReferenceOutput(prompt, tokens, logits), "float32").passed
        is False
    )
    assert (
        reference.check_baseline(
            record, tokens[:-1], reference.ReferenceOutput(prompt, tokens, logits), "float32"
        ).passed
        is False
    )


def test_each_k_has_a_test_of_its_own(windowed: Path) -> None:
    """A prompt has the same seed for every k, so their outputs depend on each other."""
    windowed.write_text(yaml.safe_dump(yaml.safe_load(windowed.read_text()) | {"temperatures": [1.0]}))
    study = load_study(windowed)
    measure(study, "native", "tiny", ["draft_model"])
    records = study_records(study.root / "records")
    again = [record.model_copy(update={"cell": record.cell.model_copy(update={"k": 4})}) for record in records]
    row = judged(study, [*records, *again]).set_index("test").loc[UNIFORMITY]
    assert row["ks"] == "3–4" and row["samples"] == 2 * len(records) and "in any of 2 samples" in row["finding"]
