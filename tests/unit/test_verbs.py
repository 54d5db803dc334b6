"""What every verb of the command line has: a help with examples that parse, JSON where a script may read, completion."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
import yaml

from specrig import cli
from specrig.cli import doctor
from specrig.cli.examples import EXAMPLES
from specrig.dag.ending import ENDING
from specrig.planning.estimate import size_text, time_text
from specrig.study.load import load_study
from specrig.study.problems import read_config


def verbs() -> dict[str, object]:
    """Verb -> its command, those of a group with the group's name before them."""
    commands = dict(typer.main.get_command(cli.app).commands)  # type: ignore[attr-defined]
    for group in ("serve", "stage"):
        commands |= {f"{group} {name}": command for name, command in commands.pop(group).commands.items()}
    return commands


def test_every_verb_has_examples_and_every_example_has_a_verb() -> None:
    assert verbs().keys() == EXAMPLES.keys()


@pytest.mark.parametrize("verb", sorted(EXAMPLES))
def test_the_examples_parse_and_stand_in_the_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, words = verbs()[verb], verb.split()
    for line in EXAMPLES[verb]:
        arguments = shlex.split(line.partition(" | ")[0].partition(" < ")[0])
        assert arguments[: len(words) + 1] == ["specrig", *words], line
        context = command.make_context(verb, arguments[len(words) + 1 :])  # type: ignore[attr-defined]
        assert not context.args, f"{line}: {context.args} are no arguments of {verb}"
    assert cli.main([*words, "--help"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "Examples:" in output and EXAMPLES[verb][0].split()[1] in output.partition("Examples:")[2]


def printed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict:
    assert cli.main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_plan_and_methods_as_json(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = printed(["plan", "configs/test.yaml"], capsys)
    assert plan["cells"] == 8 == sum(job["cells"] for job in plan["jobs"])
    assert {job["pair"] for job in plan["jobs"]} == {"tiny"} and 0 < plan["hours"] < 1
    assert {entry["model"] for entry in plan["trains"]} == {"medusa"}
    assert all(pair["memory_bytes"] > 0 for pair in plan["pairs"])
    assert (plan["report"], plan["results"]) == ("reports/test/report.html", "results/test")
    methods = printed(["methods"], capsys)
    assert methods["methods"]["draft_model"]["needs"] == ["draft"] and methods["methods"]["medusa"]["options"]
    assert methods["engines"]["native"]["missing"] is None


def test_advice_knows_the_sizes_of_trained_pairs(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = printed(["advise", "smollm2_135m"], capsys)
    assert any("times smaller" in finding["text"] for finding in found["findings"])
    assert {entry["method"] for entry in found["predictions"]} >= {"draft_model"}
    # By the recipe of the study that is named, and by that of a study which has run.
    recipe = yaml.safe_load(Path("configs/smollm2_train.yaml").read_text())
    recipe["training"] = {
        **recipe.get("training", {}),
        "draft": {"layers": 1, "hidden": 32, "heads": 1, "intermediate": 32, "context": 8192},
    }
    Path("configs/own.yaml").write_text(yaml.safe_dump(recipe))
    other = printed(["advise", "smollm2_135m", "--trained-by", "configs/own.yaml"], capsys)
    ratio, smaller = (
        float(one["findings"][0]["text"].split("the draft is ")[1].split(" ")[0]) for one in (found, other)
    )
    assert smaller > 1.5 * ratio


def test_tiny_sizes_print_as_what_they_are(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [size_text(amount) for amount in (40, 53e6, 999.6e6, 18.5e9, 1.2e13)] == [
        "40 bytes",
        "53 MB",
        "1.0 GB",
        "18.5 GB",
        "12,000.0 GB",
    ]
    assert [time_text(seconds) for seconds in (4, 59.8, 130, 7200)] == [
        "4 seconds",
        "1 minute",
        "2 minutes",
        "2.0 hours",
    ]
    assert cli.main(["plan", "configs/smollm2.yaml"]) == 0
    output = capsys.readouterr().out
    assert not re.search(r"\b0\.0\b", output), output


def test_tables_figures_and_report_are_of_the_default_study(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb in ("tables", "figures", "report"):
        assert cli.main(["stage", verb]) == 2
        assert "results/quick" in capsys.readouterr().err


def test_completion_completes_verbs_and_methods(repository: Path) -> None:
    def completed(line: str) -> list[str]:
        words = line.split(" ")
        environment = {"_SPECRIG_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
        code = "import sys; sys.argv = ['specrig']; from specrig.cli import main; sys.exit(main())"
        result = subprocess.run(
            [sys.executable, "-c", code],
            cwd=repository,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return result.stdout.split()

    assert completed("specrig dec") == ["decode"]
    assert completed("specrig decode --method eag") == ["eagle", "eagle2", "eagle3"]


def test_doctor_names_what_is_there_and_what_is_missing(
    workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    found = printed(["doctor", "configs/test.yaml"], capsys)
    by_topic: dict[str, list[dict]] = {}
    for check in found:  # type: ignore[assignment]
        by_topic.setdefault(check["topic"], []).append(check)  # type: ignore[index]
    assert {"SpecRig", "torch", "GPU", "kernels", "engines", "hub", "disk", "cost"} <= by_topic.keys()
    assert torch.__version__ in by_topic["torch"][0]["text"]
    assert by_topic["hub"][0]["good"] is None and "cannot be reached" in by_topic["hub"][0]["text"]
    assert any("native: ready" in check["text"] for check in by_topic["engines"])
    assert "test here: training at least" in by_topic["cost"][0]["text"]
    monkeypatch.setattr(
        "specrig.engines.transformers.Transformers.missing", classmethod(lambda cls: "gone: pip install 'x[y]'")
    )
    monkeypatch.setattr("specrig.cli.doctor.shutil.disk_usage", lambda _: SimpleNamespace(free=1e6))
    assert cli.main(["doctor", "configs/test.yaml"]) == 1
    output = " ".join(capsys.readouterr().out.split())
    assert "· engines transformers: gone → pip install 'x[y]'" in output
    assert "✗ disk 1 MB free" in output and "free some" in output


def test_the_default_study_needs_no_hub_before_its_first_run(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its model comes out of a package and is converted by the run, its head lies in the repository."""
    monkeypatch.chdir(repository)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    config = Path("configs/quick.yaml")
    study = load_study(read_config(config) | {"results": str(tmp_path)}, [config])
    found = doctor.hub(study)
    assert found.good is None and "this study does not need it" in found.text
    assert doctor.hub(load_study(Path("configs/hub.yaml"))).good is False


FAKE = """
import sys
print("snakemake", *sys.argv[1:])
sys.exit(7 if "--fail" in sys.argv else 0)
"""


def test_run_hands_its_arguments_to_snakemake(
    workplace: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specrig.cli.run.PROFILES", Path("profiles"))  # else that of the checkout
    Path("Snakefile").touch()
    for name in ("default", "slurm"):
        Path("profiles", name).mkdir(parents=True)
        Path("profiles", name, "profile.yaml").touch()
    # A module of that name stands first on the path, so that what it is given can be seen.
    Path("own").mkdir()
    Path("own/snakemake.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", f"{Path('own').resolve()}:{os.environ.get('PYTHONPATH', '')}")
    config = Path("configs/test.yaml").resolve()
    assert cli.main(["run", "configs/test.yaml"]) == 0
    said = [f"snakemake --snakefile Snakefile --configfile {config}"]
    assert capfd.readouterr().out.splitlines() == said, "the workflow says the rest"
    ending = Path("results/test", ENDING)
    ending.parent.mkdir(parents=True)
    ending.write_text("Report: report.html\n")
    os.utime(ending, (1, 1))
    assert cli.main(["run", "configs/test.yaml"]) == 0
    assert capfd.readouterr().out.splitlines() == [*said, "Report: report.html"], "there was nothing to do"
    assert cli.main(["run", "configs/test.yaml", "--profile", "slurm", "-n", "--config", "prompts=4"]) == 0
    assert capfd.readouterr().out.split("\n")[0] == (
        f"snakemake --snakefile Snakefile --workflow-profile profiles/slurm -n --config prompts=4 --configfile {config}"
    )
    monkeypatch.setenv("SPECRIG_PROFILE", "slurm")
    assert cli.main(["run", "configs/test.yaml", "--fail"]) == 7
    assert "profiles/slurm --fail" in capfd.readouterr().out
    assert cli.main(["run", "--profile", "slrum"]) == 2
    assert "known profiles: default, slurm" in " ".join(capfd.readouterr().err.replace("│", " ").split())
    assert cli.main(["run", "configs/nowhere.yaml"]) == 2
    assert "no such config" in capfd.readouterr().err
    Path("configs/broken.yaml").write_text("study: broken\nmethods: [a\nk: {b\n")
    assert cli.main(["run", "configs/broken.yaml"]) == 2
    output = capfd.readouterr()
    assert "configs/broken.yaml:3: not valid YAML" in output.err and "snakemake" not in output.out


STUBBORN = """
import pathlib, signal, sys, time
def stop(*_):
    pathlib.Path("stopped").touch()
    sys.exit(5)
signal.signal(signal.SIGTERM, stop)
pathlib.Path("ready").touch()
time.sleep(60)
"""


def test_run_lets_snakemake_stop_its_jobs_itself(workplace: Path) -> None:
    Path("Snakefile").touch()
    Path("snakemake.py").write_text(STUBBORN)  # `python -m` finds what lies in the working directory
    process = subprocess.Popen([sys.executable, "-m", "specrig", "run", "configs/test.yaml"])
    while not Path("ready").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    assert process.wait() == 5 and Path("stopped").exists()


def test_jobs_keep_what_they_compile(workplace: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an image says: else every job compiles all of torch."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    Path("Snakefile").touch()
    Path("snakemake.py").write_text("import sys\nsys.exit(5 if sys.dont_write_bytecode else 0)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")])))
    assert cli.main(["run", "configs/test.yaml"]) == 0
    shown = '--eval=shown: ; @echo "[$${PYTHONDONTWRITEBYTECODE:-}]"'
    make = ["make", "--no-print-directory", "-f", repository / "Makefile", shown, "shown"]
    assert subprocess.run(make, capture_output=True, text=True, check=True).stdout == "[]\n"
