"""The command line: verbs, exit codes, and errors without tracebacks."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specrig import cli
from specrig.cli import run as run_verb
from specrig.decoding.drafters import registry
from specrig.measurement.records import RecordError
from specrig.study import load


def test_plan_lists_the_cells(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "configs/test.yaml"]) == 0
    output = capsys.readouterr().out
    assert "study test" in output
    assert "8 cells in 1 job" in output
    assert output.split()[-4:] == ["Results:", "results/test", "Report:", "reports/test/report.html"]


def test_methods_lists_the_registry(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["methods"]) == 0
    output = capsys.readouterr().out
    for name in (*registry(), "native"):
        assert name in output
    # One word in every row says less than one line below.
    assert "All are lossless" in output and "lossless" not in output.splitlines()[0]


def test_the_help_shows_what_people_type_and_stages_stand_apart(capsys: pytest.CaptureFixture[str]) -> None:
    def listed(*words: str) -> list[str]:
        assert cli.main([*words, "--help"]) == 0
        return re.findall(r"^│ ([a-z][a-z-]*)  ", capsys.readouterr().out, flags=re.M)

    assert listed() == [
        *("run", "plan", "decode", "methods", "doctor", "advise"),
        *("tune", "compare", "publish", "verify", "pin", "serve"),
    ]
    assert {"measure", "audit", "tables", "report"} <= set(listed("stage"))


@pytest.mark.parametrize(("words", "said"), [([], "here"), (["--config", "results=there"], "there"), (["-n"], "")])
def test_a_run_with_nothing_to_do_says_the_answer_again(
    words: list[str], said: str, workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, text in (("results", "here"), ("there", "there")):
        Path(folder, "test").mkdir(parents=True)
        Path(folder, "test/ending.txt").write_text(text)
    monkeypatch.setattr(run_verb, "_wait", lambda *_: (False, 0))  # Snakemake, which finds nothing to do
    assert cli.main(["run", "configs/test.yaml", *words]) == 0
    assert capsys.readouterr().out == said


def test_a_bad_study_exits_2_with_the_fix(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path("configs/test.yaml")
    path.write_text(path.read_text().replace("draft_model", "draft_modle"))
    assert cli.main(["plan", str(path)]) == 2
    error = capsys.readouterr().err
    assert "did you mean 'draft_model'?" in error
    assert "Traceback" not in error
    assert len(error.splitlines()) < 10


def test_an_unknown_verb_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["mesure"]) == 2
    assert "mesure" in capsys.readouterr().err


def test_training_what_the_study_does_not_train(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["stage", "train", "--study", "configs/test.yaml", "--pair", "other", "--model", "draft"]) == 2
    assert "it trains: tiny medusa" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["measure", "--engine", "nativ", "--pair", "tiny"], "it has: native tiny"),
        (["measure", "--engine", "native", "--pair", "other"], "it has: native tiny"),
        (
            ["audit-exact", "--engine", "vllm"],
            "it has: native",
        ),
        (["write-text", "--pair", "other"], "it trains for: tiny"),
    ],
)
def test_what_the_study_does_not_have_is_named(
    arguments: list[str], expected: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["stage", *arguments, "--study", "configs/test.yaml"]) == 2
    assert expected in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert not Path("results").exists()


@pytest.mark.parametrize("arguments", [["--device", "gpu"], ["--dtype", "fp16"]])
def test_serving_names_devices_and_precisions(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "target", "owner/name", *arguments]) == 2
    assert "is not one of" in capsys.readouterr().err


def test_a_stage_by_hand_names_the_stage_before_it(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["stage", "train", "--study", "configs/test.yaml", "--pair", "tiny", "--model", "medusa"]) == 2
    error = capsys.readouterr().err
    assert "tiny/text.safetensors" in error and "specrig stage write-text" in error, error


@pytest.mark.parametrize(
    ("error", "code", "expected"),
    [
        (KeyboardInterrupt(), 130, "Finished cells are kept"),
        (RecordError("records/a.jsonl:3: not a record"), 2, "a.jsonl:3"),
        (PermissionError(13, "Permission denied", "results/x"), 2, "results/x: Permission denied"),
        (OSError(28, "No space left on device"), 2, "No space left on device; free: "),
        (RuntimeError("I/O error: No space left on device (os error 28)"), 2, "MB in configs"),
        (RuntimeError("surprise"), 1, "SPECRIG_DEBUG=1"),
    ],
)
def test_errors_are_short(
    error: BaseException,
    code: int,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.delenv("SPECRIG_DEBUG", raising=False)
    monkeypatch.setattr(load, "load_study", fail)
    assert cli.main(["plan", "configs/test.yaml"]) == code
    output = capsys.readouterr().err
    assert expected in output
    assert "Traceback" not in output


def test_debugging_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECRIG_DEBUG", "1")
    monkeypatch.setattr(load, "load_study", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["plan", "x.yaml"])


def test_schema_writes_to_its_argument(tmp_path: Path) -> None:
    assert cli.main(["schema", "--folder", str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}.schema.json" for name in ("study", "pairs", "tasks", "reported")
    }


def test_a_process_with_a_model_starts_without_packages_that_transformers_alone_would_import() -> None:
    program = (
        "import sys; from specrig.cli import main; main(['--version']); "
        "from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM; "
        "print(*sorted({'scipy', 'sklearn'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split()[2:] == []


def test_sigterm_ends_a_verb_as_an_exit_does(tmp_path: Path) -> None:
    """Temporary copies of models are removed, and no traceback is printed."""
    code = f"""
import sys, tempfile, time
from pathlib import Path
from specrig import cli

def work(arguments):
    with tempfile.TemporaryDirectory(dir={str(tmp_path)!r}):
        Path({str(tmp_path)!r}, "ready").touch()
        time.sleep(60)

cli._run = work
sys.exit(cli.main([]))
"""
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 143 and "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["ready"]
