"""Mistakes as a new user makes them, through Snakemake: the message has the fix, on one screen, without a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

REPOSITORY = Path(__file__).parents[2]


def snakemake(*arguments: str) -> subprocess.CompletedProcess[str]:
    base = [sys.executable, "-m", "snakemake", "--snakefile", str(REPOSITORY / "Snakefile")]
    profile = ["--workflow-profile", str(REPOSITORY / "profiles/default")]
    return subprocess.run([*base, *profile, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)


def replace(file: str, old: str, new: str) -> None:
    text = Path(file).read_text()
    assert old in text
    Path(file).write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        ("configs/test.yaml", "method: ngram", "method: ngrm", "did you mean 'ngram'?"),
        ("configs/test.yaml", "k: 3", "k: 0", "outside 1 to 16"),
        ("configs/test.yaml", "prompts: 2", "prompts: 0", "leave every task without a prompt"),
        ("configs/test.yaml", "max_new_tokens", "max_tokens", "did you mean 'max_new_tokens'?"),
        ("configs/pairs.tsv", "trained\ttrained", "./models/mine\t", "no model folder ./models/mine"),
    ],
)
def test_a_bad_study_is_refused_before_anything_runs(workplace: Path, file: str, old: str, new: str, expected: str) -> None:
    replace(file, old, new)
    result = snakemake("--configfile", "configs/test.yaml")
    assert result.returncode == 1
    assert expected in result.stdout
    assert "Traceback" not in result.stdout
    assert len(result.stdout.splitlines()) < 20
    assert not Path("results").exists()


def test_unwritable_results(workplace: Path) -> None:
    Path("taken").touch()
    result = snakemake("--configfile", "configs/test.yaml", "--config", "results=taken/results")
    assert result.returncode == 1
    assert "taken is a file, no folder" in result.stdout
    assert "Traceback" not in result.stdout


def test_a_misspelt_config_file(workplace: Path) -> None:
    result = snakemake("--configfile", "configs/tset.yaml")
    assert result.returncode != 0
    assert "configs/tset.yaml" in result.stdout


def model_folder(name: str, model_type: str, architecture: str, words: list[str]) -> None:
    """The files that decide whether a pair can work; there are no weights, for none are read."""
    folder = Path("models") / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, "architectures": [architecture]}))
    vocabulary = {word: index for index, word in enumerate(words)}
    Tokenizer(WordLevel(vocabulary, unk_token=words[0])).save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize(
    ("draft", "expected"),
    [
        (("llama", "LlamaForCausalLM", ["a", "c"]), "does not share the vocabulary"),
        (("distilbert", "DistilBertForMaskedLM", ["a", "b"]), "is an encoder"),
    ],
)
def test_a_pair_that_cannot_work_is_refused_before_anything_runs(
    workplace: Path, draft: tuple[str, str, list[str]], expected: str
) -> None:
    model_folder("target", "llama", "LlamaForCausalLM", ["a", "b"])
    model_folder("draft", *draft)
    Path("prompts.jsonl").write_text(json.dumps({"id": 1, "prompt": "a b"}) + "\n")
    replace("configs/pairs.tsv", "trained\ttrained", "models/target\tmodels/draft")
    replace("configs/tasks.tsv", "code\tcorpus", "code\tprompts.jsonl")
    result = snakemake("--configfile", "configs/test.yaml", "--config", "tasks=code")
    assert result.returncode == 1
    assert expected in result.stdout
    assert "Traceback" not in result.stdout
    assert not Path("results").exists()


def test_a_job_that_fails_says_why_and_where_its_log_is(workplace: Path) -> None:
    """The files pass the gate, but there are no weights."""
    model_folder("target", "llama", "LlamaForCausalLM", ["a", "b"])
    Path("prompts.jsonl").write_text(json.dumps({"id": 1, "prompt": "a b"}) + "\n")
    replace("configs/pairs.tsv", "trained\ttrained", "models/target\tmodels/target")
    replace("configs/tasks.tsv", "code\tcorpus", "code\tprompts.jsonl")
    replace("configs/test.yaml", "  - method: draft_model\n    k: [2, 4]\n", "")
    result = snakemake("--configfile", "configs/test.yaml", "--config", "tasks=code")
    assert result.returncode == 1
    assert "Traceback" not in result.stdout
    assert "Logs: results/test/logs" in result.stdout
    assert "models/target" in Path("results/test/logs/measure/native-embedded-ngram.log").read_text()
