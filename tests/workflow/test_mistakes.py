"""Mistakes as a new user makes them: the message has the fix, on one screen, without a traceback, before anything runs.

Two go through Snakemake, which shows that it hands on what the loader and a job say; the others ask the command line,
in this process.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM

from runs import imported, run
from specrig import cli


def replace(file: str, old: str, new: str) -> None:
    text = Path(file).read_text()
    assert old in text
    Path(file).write_text(text.replace(old, new))


def refused(capsys: pytest.CaptureFixture[str], config: str = "configs/test.yaml") -> str:
    """What the command line says of a study that it does not accept."""
    assert cli.main(["plan", config]) == 2
    return capsys.readouterr().err


def check(message: str, expected: str) -> None:
    assert expected in message
    assert "Traceback" not in message
    assert len(message.splitlines()) < 20
    assert not Path("results").exists()


def test_snakemake_hands_on_what_is_wrong_with_a_study(workplace: Path) -> None:
    replace("configs/test.yaml", "method: ngram", "method: ngrm")
    result = run(Path())
    assert result.returncode == 1
    check(result.stdout, "did you mean 'ngram'?")


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        ("configs/test.yaml", "max_new_tokens", "max_tokens", "did you mean 'max_new_tokens'?"),
        ("configs/pairs.tsv", "tests/data/tiny/target", "./models/mine", "no model folder ./models/mine"),
        ("configs/test.yaml", "study: test", "study: test\nresults: taken/results", "taken is a file, not a folder"),
    ],
)
def test_a_bad_study_is_refused_before_anything_runs(
    workplace: Path, file: str, old: str, new: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("taken").touch()
    replace(file, old, new)
    check(refused(capsys), expected)


def test_a_study_is_planned_from_a_folder_that_holds_nothing_and_takes_no_notes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name, value in imported().items():
        monkeypatch.setenv(name, value)
    Path(".snakemake").touch()  # no folder of this name can be made, as where nothing can be written
    assert cli.main(["run", "configs/test.yaml", "-n"]) == 2
    assert "cannot be written: add --config results=/a/folder" in capfd.readouterr().err
    results = tmp_path / "results"
    assert cli.main(["run", "configs/test.yaml", "-n", "--config", f"results={results}"]) == 0
    assert f"{results}/test/measured" in capfd.readouterr().out and (results / ".snakemake").is_dir()


def test_a_misspelt_config_file(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(refused(capsys, "configs/tset.yaml"), "did you mean 'configs/test.yaml'?")


def model_folder(name: str, model_type: str, architecture: str, words: list[str], fill: float = 0.0) -> None:
    """A model folder; of a Llama with weights, all of which are `fill`."""
    folder = Path("models") / name
    folder.mkdir(parents=True)
    if model_type == "llama":
        shape = LlamaConfig(
            vocab_size=len(words), hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
            bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
        model = LlamaForCausalLM(shape)
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, fill)
        model.save_pretrained(folder)
    else:
        (folder / "config.json").write_text(json.dumps({"model_type": model_type, "architectures": [architecture]}))
    vocabulary = {word: index for index, word in enumerate(words)}
    Tokenizer(WordLevel(vocabulary, unk_token=words[0])).save(str(folder / "tokenizer.json"))


def test_a_pair_that_cannot_work_is_refused_before_anything_runs(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model_folder("target", "llama", "LlamaForCausalLM", ["a", "b"])
    model_folder("draft-distilbert", "distilbert", "DistilBertForMaskedLM", ["a", "b"])
    Path("prompts.jsonl").write_text(json.dumps({"id": 1, "prompt": "a b"}) + "\n")
    replace(
        "configs/pairs.tsv", "tests/data/tiny/target\ttests/data/tiny/draft", "models/target\tmodels/draft-distilbert"
    )
    Path("configs/tasks.tsv").write_text("task\tsource\ncode\tprompts.jsonl\n")
    replace("configs/test.yaml", "[code, translation]", "[code]")
    check(refused(capsys), "is an encoder")


def test_a_job_that_fails_says_why_and_where_its_log_is(workplace: Path) -> None:
    """The files pass the gate, but the weights are no numbers."""
    model_folder("target", "llama", "LlamaForCausalLM", ["a", "b"], fill=math.nan)
    Path("prompts.jsonl").write_text(json.dumps({"id": 1, "prompt": "a b"}) + "\n")
    replace("configs/pairs.tsv", "tests/data/tiny/target\ttests/data/tiny/draft", "models/target\tmodels/target")
    Path("configs/tasks.tsv").write_text("task\tsource\ncode\tprompts.jsonl\n")
    replace("configs/test.yaml", "[code, translation]", "[code]")
    replace("configs/test.yaml", "  - method: draft_model\n    k: [2, 4]\n", "")
    replace("configs/test.yaml", "  - method: medusa\n    k: 2\n", "")
    result = run(Path(), "results/test/measured/native/tiny/together")
    assert result.returncode == 1
    assert "Traceback" not in result.stdout
    assert "Logs: results/test/logs" in result.stdout
    assert "models/target" in Path("results/test/logs/measure/native-tiny-together.log").read_text()
