"""The commands that the scripts of benchmarks/ name, at small size."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"

Command = Callable[..., str]


@pytest.fixture
def command(
    benchmark: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """command("engines.py", …) runs a script with these words, and returns what it printed."""

    def run(script: str, *words: str) -> str:
        monkeypatch.setattr(sys, "argv", [script, *words])
        module = benchmark(Path(script).stem)
        monkeypatch.setattr(module, "REST_S", 0.0, raising=False)  # for times, which no test looks at
        module.main()
        return capsys.readouterr().out

    return run


def test_engines_and_their_passes(letters: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("engines.py", ".", "prompts.jsonl", "--k=2", "--tokens=8", "--engines", "transformers")
    lines = command(*words).splitlines()
    assert [line.split()[0] for line in lines[2:]] == [
        method for method in ("autoregressive", "draft_model", "ngram") for _ in ("native", "transformers")
    ]
    assert all(line.endswith("2/2") for line in lines[2:]) and "nan" not in lines[2].split("[")[0]
    out = command(
        "kernels.py", "target", "--draft=draft", "--dtype=float32", "--widths=2", "--context=8", "--repeats=1"
    )
    assert "  2 tokens, ms: floor" in out and "c, a draft pass over a target pass" in out

    tokenizer = Path("target/tokenizer_config.json")
    tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text()) | {"chat_template": TEMPLATE}))
    out = command("padded_passes.py", "target", "prompts.jsonl", "--tokens=6", "--each=1", "--dtype=float32")
    assert [line.split()[1] for line in out.splitlines()[3:]] == ["autoregressive"] * 2 + ["ngram"] * 2

    # Every answer is one token that ends it: nothing is timed, and nothing is divided by that.
    for name in ("config.json", "generation_config.json"):
        file = Path("target", name)
        file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": list(range(26))}))
    lines = command(*words).splitlines()
    assert len(lines) == 8 and all("nan" in line and line.endswith("2/2") for line in lines[2:])


def test_the_audits_levels(tmp_path: Path, command: Command) -> None:
    keep = str(tmp_path / "p_values")
    out = command("false_alarms.py", "--audits=3", "--samples=64", "--tokens=2", "--seed=1", "--keep", keep)
    assert "3 audits of 64 right samples" in out
    assert "3 audits of 64 right samples" in command("false_alarms.py", "--audits=0", "--samples=64", "--keep", keep)
    out = command("false_alarms.py", "--audits=3", "--samples=64", "--tokens=5", "--bias", "0.3")
    assert "0.3" in out
    known = tmp_path / "power.csv"
    known.write_text("seed,flaw,method,samples,p_value\n101,greedy,draft_model,512,1e-9\n")
    assert "greedy" in command("audit_power.py", "--keep", str(known), "--seeds")
