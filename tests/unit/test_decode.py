"""`specrig decode`: one cell through the one loop, streamed; mistakes are told before a model is loaded."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from llamas import TINY
from specrig import cli
from specrig.cell import Cell
from specrig.cli.decode_view import GenerationView, LiveGeneration
from specrig.decoding.types import Round
from specrig.engines.native import Native
from specrig.models.pair import PairFiles
from specrig.report.documents.samples import Writing


@pytest.fixture
def study(workplace: Path) -> Path:
    """A working directory with the study `test`."""
    return Path("configs/test.yaml")


def bare(folder: Path) -> Path:
    """The target without its chat template, in a folder below this one."""
    copy = Path(shutil.copytree(TINY / "target", folder / "bare"))
    (copy / "chat_template.jinja").unlink()
    return copy


def decoded(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict:
    assert cli.main(["decode", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_methods_tokens_are_told_round_by_round_as_they_are_returned() -> None:
    pair = PairFiles("p", str(TINY / "target"), str(TINY / "draft"))
    cell = Cell(engine="native", pair="p", method="draft_model", k=3, task="t", temperature=0.0, batch_size=2)
    emitted: dict[int, list[int]] = {0: [], 1: []}
    rounds: dict[int, list[Round | None]] = {0: [], 1: []}

    def callback(row: int, tokens: list[int], one: Round | None) -> None:
        emitted[row] += tokens
        rounds[row].append(one)

    with Native(pair) as engine:
        prompts = [engine.encode(text) for text in ("def area(", "Once there was")]
        found = engine.generate(cell, prompts, max_new_tokens=17, seeds=[0, 1], callback=callback)
        silent = engine.generate(cell, prompts, max_new_tokens=17, seeds=[0, 1])
    assert [emitted[0], emitted[1]] == [one.tokens for one in found] == [one.tokens for one in silent]
    assert [rounds[0], rounds[1]] == [[None, *one.rounds] for one in found]


def test_a_trained_pair_beside_plain_decoding(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = decoded(["def area(", "--study", str(study), "--tokens", "20", "--compare"], capsys)
    assert found["method"] == "draft_model" and found["plain"]["method"] == "autoregressive"
    assert found["identical"] and found["tokens"] == found["plain"]["tokens"] and len(found["tokens"]) == 20
    assert "".join(span["text"] for span in found["spans"]) == found["text"] == found["plain"]["text"]
    drafted = sum(one["drafted"] for one in found["rounds"])
    accepted = sum(one["accepted"] for one in found["rounds"])
    assert found["acceptance_rate"] == accepted / drafted and drafted == 4 * len(found["rounds"])
    assert found["plain"]["acceptance_rate"] is None and found["plain"]["acceptance_length"] == 1.0


def test_a_plain_folder_with_options_and_the_prompt_on_standard_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one two one two one"))
    target = str(bare(tmp_path))
    found = decoded(["--target", target, "--method", "ngram", "--k", "6", "--option", "n=2", "--tokens", "8"], capsys)
    assert (found["pair"], found["method"], found["k"]) == ("bare", "ngram", 6)
    assert found["options"]["n"] == 2 and found["prompt"] == "one two one two one"
    assert {one["depth"] for one in found["rounds"]} <= set(range(7))


def test_it_prints_the_text_and_what_the_colours_mean(
    study: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["decode", "def area(", "--study", str(study), "--tokens", "12", "--compare"]
    assert cli.main(arguments) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "draft_model: " in output and "12 tokens in" in output and "identical outputs" in output
    assert "drafted by" not in output, "a file has no colours"
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert cli.main(arguments) == 0
    output = capsys.readouterr().out
    assert "\x1b[32mdrafted by draft_model and accepted" in output and "\x1b[4mwritten by the target" in output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--method", "eagel"], "did you mean 'eagle'?"),
        (["--k", "40"], "Invalid value for '--k'"),
        (["--option", "nodes=3"], "--option nodes: unknown option"),
        (["--option", "acceptance=[exact, block]"], "one cell runs"),
        (["--option", "acceptance"], "not name=value"),
        (["--pair", "tinny"], "did you mean 'tiny'?"),
        (["--method", "hydra"], "does not make it"),
        (["--method", "medusa"], "the medusa of 'tiny' does not exist yet"),
        (["--draft", "x"], "--draft needs --target"),
        (["--target", "./nowhere"], "no model folder ./nowhere"),
        (["--pair", "tiny", "--target", "x/y"], "not both"),
        (["--target", "owner/name", "--method", "draft_model"], "--draft FOLDER"),
        (["--target", "models/small.gguf"], "models/small.gguf: no such file; correct the path"),
        (["--target", "owner/name", "--head", "eagle"], "not name=FOLDER"),
    ],
)
def test_mistakes_are_told_before_a_model_is_loaded(
    arguments: list[str], expected: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["decode", "text", "--study", "configs/test.yaml", *arguments]) == 2
    assert expected in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_a_pair_of_an_entry_is_made_by_its_study(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = ["--study", "configs/smollm2.yaml", "--pair", "smollm2_135m_more"]
    for method, fix in (("eagle", "`specrig run configs/smollm2.yaml` makes it"), ("dflash", "does not make it")):
        assert cli.main(["decode", "text", *own, "--method", method]) == 2
        problems = capsys.readouterr().err.split("--pair: ")
        assert fix in next(each for each in problems if f"the {method} of" in each)


def test_a_mistake_in_the_study_is_named_with_its_line(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path("configs/test.yaml")
    path.write_text("promts: 3\n" + path.read_text())
    assert cli.main(["decode", "text", "--study", str(path)]) == 2
    assert "configs/test.yaml:1: promts: unknown key 'promts'" in capsys.readouterr().err
    path.write_text(path.read_text().partition("\n")[2])
    assert (
        cli.main(
            ["decode", "text", "--study", str(path), "--method", "ngram", "--option", "n=2", "--option", "min_n=3"]
        )
        == 2
    )
    assert "  --option: you gave" in capsys.readouterr().err


def test_a_missing_folder_is_a_mistake_of_the_command_line(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("models").mkdir()
    assert cli.main(["decode", "text", "--target", "models/nope"]) == 2
    output = capsys.readouterr().err
    assert "  --target: no model folder models/nope\n    → give a folder in Hugging Face format, a hub id" in output
    assert "pairs.tsv" not in output and "`trained`" not in output


def test_a_chat_needs_a_template_and_a_prompt_has_to_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = ["--target", str(bare(tmp_path))]
    assert cli.main(["decode", "hello", *target, "--chat"]) == 2
    assert "has no chat template, which task" in capsys.readouterr().err
    assert cli.main(["decode", "hello", *target, "--tokens", "100000"]) == 2
    assert "100000 are to follow" in capsys.readouterr().err


def test_a_chat_turn_is_put_into_the_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shutil.copytree(TINY / "target", tmp_path / "chatty")
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<answer>"
    )
    found = decoded(["hi", "--target", str(folder), "--chat", "--system", "be brief", "--tokens", "4"], capsys)
    assert found["prompt"] == "<system>be brief<user>hi<answer>"


def test_arguments_are_checked_without_torch(workplace: Path) -> None:
    code = (
        "import sys; from specrig import cli\n"
        "code = cli.main(['decode', 'x', '--study', 'configs/test.yaml', '--k', '99'])\n"
        "print(code, [name for name in ('torch', 'transformers', 'pandas') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split("\n")[-2] == "2 []"


class Letters:
    """A tokenizer of letters."""

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return "".join(map(chr, ids))


def test_who_wrote_what_and_the_figures_while_it_grows() -> None:
    side = LiveGeneration("draft_model", Writing(Letters()))
    console = Console(force_terminal=True, width=60, height=10, file=io.StringIO(), record=True)
    with GenerationView(console, [side]):
        side.on_tokens(0, [ord("a")], None)
        assert side.tokens_per_s is None and side.acceptance_rate is None
        side.on_tokens(0, list(map(ord, "bcd")), Round(4, 4, 2, 3))
        side.on_tokens(0, list(map(ord, "e")), Round(4, 4, 3, 1, cut=True))  # the stop rule cut two accepted tokens off
    assert [(span.text, span.source) for span in side.writing.spans] == [
        ("a", "target"),
        ("bc", "draft"),
        ("d", "target"),
        ("e", "draft"),
    ]
    assert side.acceptance_length == 3.0 and side.acceptance_rate == 5 / 8
    assert "5 tokens in 2 passes, 3.00 a pass · 5 of 8 drafted accepted (62%)" in side.status()
    shown = console.export_text(styles=True)
    assert "\x1b[32mbc" in shown and "\x1b[4md" in shown, "as in the report"


def test_a_row_of_another_study_is_taken_too(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The pair is a row of the table, no matter which pairs the study measures; its own folders are used as they are."""
    models = "tests/data/tiny"
    table = Path("configs/pairs.tsv")
    header = table.read_text().splitlines()[0].split("\t")
    row = {"pair": "own", "target": f"./{models}/target", "draft": f"./{models}/draft"}
    table.write_text(table.read_text() + "\t".join(row.get(name, "") for name in header) + "\n")
    assert "own" not in yaml.safe_load(study.read_text())["pairs"]
    found = decoded(["x = ", "--study", str(study), "--pair", "own", "--tokens", "6"], capsys)
    assert found["pair"] == "own" and found["method"] == "draft_model" and len(found["tokens"]) == 6
