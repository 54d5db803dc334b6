"""Plain decoding is held against transformers' own generate: a mask that is wrong in baseline and method alike is
found.
"""

from __future__ import annotations

import gc
import json
import shutil
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml
from synthetic import write_study
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, MistralConfig, MistralForCausalLM, Phi3Config, PreTrainedTokenizerFast

from runs import own_study
from specrig.audit import reference
from specrig.audit.multiple_testing import LLAMA_CPP, REFERENCE, UNIFORMITY
from specrig.audit.reference import BaselineCheck, Request, check_baseline
from specrig.audit.references import Output
from specrig.audit.run import COLUMNS, AuditTarget, audit_records
from specrig.dag.ending import ending, failed_cells
from specrig.measurement.records import Record, study_records
from specrig.measurement.runner import measure
from specrig.models import gate
from specrig.models.pair import PairFiles
from specrig.planning.measured import usable_cells
from specrig.report.audit_tables import baseline_warning, identity, sentence, summary_grid, verdict_grid
from specrig.report.documents.contents import contents
from specrig.report.study_data import read_study
from specrig.report.study_results import StudyResults
from specrig.report.summary import audit_failures
from specrig.report.table_files import write_tables
from specrig.runtime import agreement
from specrig.runtime.attention import FULL
from specrig.runtime.llama_model import LlamaModel
from specrig.study.load import load_study
from specrig.study.problems import Positions, Problems
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


def test_a_right_baseline_has_rows_of_its_own(windowed: Path) -> None:
    audit = audited(load_study(windowed))
    assert REFERENCE == "baseline against transformers' generate"
    assert audit["test"].tolist() == [REFERENCE] * 3 + ["token identity"]
    assert audit["passed"].all() and audit["method"].tolist() == ["autoregressive"] * 3 + ["draft_model"]
    short, long, across = (finding.split("; first-token logits within")[0] for finding in audit["finding"][:3])
    assert short == "0: the same 24 tokens after 16 of prompt"
    assert long == "1: the same 24 tokens after 26 of prompt"
    assert across == "1, cut or repeated: the same 32 tokens after 1 of prompt", "its output crosses the window's 8"
    assert "gives the same output as transformers' own generate" in sentence(audit)
    assert baseline_warning(audit) == ""


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
    study = load_study(windowed)
    audit = audited(study)
    *baselines, identity = audit.to_dict("records")
    assert identity["passed"] and "2 of 2 outputs identical (100 %)" in identity["finding"], (
        "the method agrees with the wrong baseline"
    )
    assert not any(row["passed"] for row in baselines[:2])
    assert all("first-token logits differ" in row["finding"] for row in baselines[:2]), "prompts beyond the window"
    assert "first-token logits within" in baselines[2]["finding"], "one token is within the window"
    assert audit_failures(cells(), audit).tolist() == [True], (
        "all that was measured against it, whatever variant and temperature"
    )
    assert audit_failures(cells(pair="other"), audit).tolist() == [False]
    assert "native/tiny" in sentence(audit) and "struck through" in sentence(audit)
    equal = "outputs of speculative methods equal plain decoding's, token by token."
    assert f"At temperature 0 all 2 {equal}" in sentence(audit)
    warning = baseline_warning(audit)
    assert warning.startswith("Plain decoding itself failed the audit") and "native/tiny" in warning
    parted = audit.assign(identical=[None, None, None, 1])
    equal = equal.replace(" of", " (50 %) of", 1)
    assert f"1 of 2 {equal} The others differ first at a numerical tie." in sentence(parted)
    assert f"1 of 2 {equal} A test passes where" in sentence(parted.assign(passed=False))
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
    assert audit["test"].tolist() == [REFERENCE] * 3 + ["per-position uniformity"]
    assert not audit["passed"][:2].any() and audit["temperature"].tolist() == [0.0] * 3 + [1.0]


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
    assert "Plain decoding has no independent reference (server/tiny). The table says why." in sentence(audit)
    assert {row[-2].text for row in verdict_grid(audit).rows} == {"not judged", "passed, 100 % identical"}
    assert {row[-1].text for row in summary_grid(audit.assign(p_value=1e-15)).rows} == {"< 1e-12"}
    files = replace(study.paths.pair_files("tiny", study.root).only(()), quantization="awq")
    native = AuditTarget(study, "tiny", study.root)
    (made,) = reference.check_baselines(study_records(study.root / "records"), study, files, study.root, native)
    assert made.passed is None and "quantized as awq" in made.finding


def test_a_tie_is_told_apart(windowed: Path) -> None:
    study = load_study(windowed)
    measure(study, "native", "tiny", ["draft_model"])
    record = study_records(study.root / "records")[0]
    prompt, tokens = [1, 2], list(record.baseline.tokens)
    logits = torch.zeros(len(tokens), 26)
    logits[3, tokens[3]], other = 1e-4, (tokens[3] + 1) % 26
    request = Request(record, "0", prompt, "bc", len(tokens))

    def checked(found: list[int], *, exact: bool = True, first: Any = None) -> BaselineCheck:
        output = Output(prompt, tokens, logits, exact=exact, precision="float32")
        return check_baseline(request, found, first, output, REFERENCE, "float32")

    found = [*tokens[:3], other, *tokens[4:]]
    tie = checked(found)
    assert tie.passed and tie.finding.startswith("numerical tie") and "token 3" in tie.finding
    audit = judged(study, [record])
    same = "gives the same output as transformers' own generate"
    up_to_a_tie = same.replace(" as", " up to a numerical tie as")
    assert same in sentence(audit) and up_to_a_tie in sentence(audit.assign(finding=tie.finding))
    logits[3, tokens[3]] = 0.5
    assert checked(found).passed is False and checked(tokens[:-1]).passed is False
    logits[0] = torch.linspace(-1, 1, 26)
    gap = 0.5 / float(logits[0].std(correction=0))
    assert f"by {gap:.2g} of" in checked(found, exact=False).finding and not checked(found, exact=False).passed
    logits[3, tokens[3]] = 1e-4
    assert checked(found, exact=False).passed, "far less than the spread"
    masked = logits[0].clone().index_fill_(0, torch.tensor([25]), float("-inf"))
    assert checked(tokens, first=masked.numpy()).passed, "rows that one side masks are not compared"
    wrong = checked(tokens, first=logits[0].mul(1.01).numpy())
    assert wrong.passed is False and ": the same" not in wrong.finding and "logits differ by 0.01" in wrong.finding


def test_a_window_that_is_one_token_short_is_found(windowed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = LlamaModel.__init__

    def wrong(self: LlamaModel, model: Any, **kwargs: Any) -> None:
        whole(self, model, **kwargs)
        self.patterns = [replace(one, size=one.size - 1) if one.size else one for one in self.patterns]

    monkeypatch.setattr(LlamaModel, "__init__", wrong)
    monkeypatch.setattr(agreement, "check", lambda *_: None)
    audit = audited(load_study(windowed)).set_index("test")
    assert not audit["passed"][REFERENCE][:2].any() and audit["passed"]["token identity"]


def test_the_settings_beside_a_model_change_nothing_but_its_stop_ids(
    windowed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "repetition_penalty": 5.0,
        "no_repeat_ngram_size": 2,
        "suppress_tokens": [3, 4, 5],
        "forced_eos_token_id": 7,
        "min_new_tokens": 20,
        "do_sample": True,
        "temperature": 3.0,
        "num_beams": 2,
        "prompt_lookup_num_tokens": 3,
    }
    first = audited(load_study(windowed))
    study = load_study(windowed)
    told = study_records(study.root / "records")[0].baseline.tokens
    stop = next(token for at, token in enumerate(told) if at and token not in told[:at])
    Path("model/generation_config.json").write_text(json.dumps({**settings, "eos_token_id": [stop]}))
    gate._json.cache_clear()
    shutil.rmtree(study.root / "records")
    audit = audited(study)
    assert audit["passed"].all(), audit["finding"].tolist()
    assert audit["finding"].tolist() != first["finding"].tolist()
    shutil.rmtree(study.root / "records")
    monkeypatch.setattr("specrig.models.weights.stop_ids", lambda *_: ())
    audit = audited(study)
    assert audit["finding"][0] == f"stop ids differ: {stop} ends an output in transformers alone"
    assert not audit["passed"][0]


def test_lengths_at_which_a_model_changes(tmp_path: Path) -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    scaling = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 32, **factors}
    shape = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "max_position_embeddings": 512}
    shape["num_key_value_heads"] = 4
    phi = {
        "rope_parameters": scaling,
        "original_max_position_embeddings": 32,
        "sliding_window": None,
        "pad_token_id": 0,
    }
    Phi3Config(**shape, **phi).save_pretrained(tmp_path / "phi")
    dynamic = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    LlamaConfig(**shape, rope_parameters=dynamic).save_pretrained(tmp_path / "dynamic")
    LlamaConfig(**shape).save_pretrained(tmp_path / "plain")
    MistralConfig(**shape, sliding_window=4096).save_pretrained(tmp_path / "window")
    found = {
        name: reference.switches(PairFiles(name, str(tmp_path / name)), None)
        for name in ("phi", "dynamic", "plain", "window")
    }
    assert found == {
        "phi": {32: reference.ROTARY},
        "dynamic": {512: reference.ROTARY},
        "plain": {},
        "window": {4096: reference.WINDOW},
    }


def test_a_length_that_cannot_be_reached_is_named(windowed: Path) -> None:
    config = json.loads(Path("model/config.json").read_text())
    Path("model/config.json").write_text(json.dumps(config | {"sliding_window": 250}))
    gate._json.cache_clear()
    audit = audited(load_study(windowed))
    last = audit[audit["test"] == REFERENCE].iloc[-1]
    assert pd.isna(last["passed"]) and last["finding"] == (
        "not compared: its attention reaches back 250 positions, and prompts of the audit end at 256"
    )
    assert "Not compared with it: 1 of 3 prompts." in sentence(audit)


def test_each_k_has_a_test_of_its_own(windowed: Path) -> None:
    """A prompt has the same seed for every k, so their outputs depend on each other."""
    windowed.write_text(yaml.safe_dump(yaml.safe_load(windowed.read_text()) | {"temperatures": [1.0]}))
    study = load_study(windowed)
    measure(study, "native", "tiny", ["draft_model"])
    records = study_records(study.root / "records")
    again = [record.model_copy(update={"cell": record.cell.model_copy(update={"k": 4})}) for record in records]
    row = judged(study, [*records, *again]).set_index("test").loc[UNIFORMITY]
    assert row["ks"] == "3–4" and row["samples"] == 2 * len(records) and "in any of 2 samples" in row["finding"]


def test_a_study_whose_plain_decoding_fails_names_no_winner(tmp_path: Path, report_text: Callable[[Path], str]) -> None:
    folder = write_study(tmp_path / "made_up", methods=["draft_model", "ngram"], ks=[4], tasks=["code", "translation"])

    def said() -> tuple[str, StudyResults]:
        """The terminal's last lines, the results."""
        write_tables(folder, folder / "tables")
        return ending(folder, Path("report.html"), failed_cells(folder)), StudyResults(read_study(folder))

    (folder / "audit").mkdir()
    row = f"native,tiny,autoregressive,,code,0.0,{LLAMA_CPP},0,1,,,{{}},a finding\n"
    audit = folder / "audit/records.csv"
    audit.write_text(",".join(COLUMNS) + "\n" + row.format(True))
    last, results = said()
    assert last.startswith("Fastest lossless method on tiny") and len(results.advised) == 2
    audit.write_text(",".join(COLUMNS) + "\n" + row.format(True) + row.format(False))
    last, results = said()
    page, abstract = report_text(folder), " ".join(contents(results, "print", ()).abstract)
    warning = "Plain decoding itself failed the audit: it differs from llama.cpp on the GGUF file (native/tiny)."
    assert last.startswith(warning) and "Fastest" not in last and "\nReport: report.html\n" in last
    assert abstract.startswith(warning) and "fastest lossless method is" not in abstract
    assert f'<p class="warning">{warning}' in page and page.index(warning) < page.index('class="lead"')
    assert "fastest lossless method is" not in page and results.advised.empty
    assert not any(
        entry.bold for grid in (results.speedup.formatted, results.headline) for line in grid.rows for entry in line
    )
    assert usable_cells(folder, "tiny", Problems(Positions([]))) == []
    findings = [finding.answer for finding in results.findings]
    assert findings == ["No lossless speculative method on tiny (native) passed the audit and has a speedup."]
