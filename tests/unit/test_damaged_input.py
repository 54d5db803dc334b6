"""Damaged input of every kind: a sentence with the path and the fix, and never an unexpected error."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load, save
from synthetic import write_study

from specrig.cell import Cell
from specrig.cli import main
from specrig.engines.native import Native
from specrig.heads import initialise, part, registry
from specrig.models.gguf import source_file
from specrig.models.pair import ModelError, PairFiles
from specrig.report.study_data import read_study
from specrig.report.study_results import StudyResults
from specrig.runtime.types import DecodingError
from specrig.study.load import load_study
from specrig.study.traffic import Point

Damage = Callable[[bytes], bytes]


def numbers(change: Callable[[int], Any]) -> Damage:
    """Change every whole number of a JSON object."""
    return lambda content: json.dumps(
        {name: change(value) if type(value) is int else value for name, value in json.loads(content).items()}
    ).encode()


CUT: Damage = lambda content: content[: len(content) // 2]  # noqa: E731
WEIGHTS: dict[str, Damage] = {
    "empty": lambda _: b"",
    "cut": CUT,
    "only a header": lambda content: content[:20],
    "garbage": lambda _: b"\xff" * 100,
}
CONFIGS: dict[str, Damage] = {
    "empty": lambda _: b"",
    "cut": CUT,
    "a list": lambda _: b"[]",
    "empty object": lambda _: b"{}",
    "not UTF-8": lambda content: b"\xff\xfe" + content,
    "a hundred thousand brackets": lambda _: b"[" * 100_000,
    "null for numbers": numbers(lambda _: None),
    "text for numbers": numbers(lambda _: "x"),
    "negative numbers": numbers(lambda value: -value),
    "zero for numbers": numbers(lambda _: 0),
}
CASES = [("model.safetensors", name, damage) for name, damage in WEIGHTS.items()]
CASES += [("config.json", name, damage) for name, damage in CONFIGS.items()]


@pytest.fixture(scope="module")
def engine(taught: tuple[Any, Path]) -> Native:
    _, folder = taught
    return Native(PairFiles(name="taught", target=str(folder / "target"), dtype="float32"), device="cpu", threads=1)


@pytest.fixture(scope="module")
def heads(engine: Native, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained checkpoint of every head."""
    folder = tmp_path_factory.mktemp("heads")
    for name in registry():
        initialise(name, folder / name, engine.target.config, engine.target.config, seed=3)
    return folder


@pytest.mark.parametrize("name", registry())
@pytest.mark.parametrize(("file", "kind", "damage"), CASES, ids=[f"{file}-{kind}" for file, kind, _ in CASES])
def test_a_damaged_head_is_named(
    name: str, file: str, kind: str, damage: Damage, heads: Path, engine: Native, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(heads / name, tmp_path / name))
    if not (folder / file).is_file():
        pytest.skip("it has no such file")
    if (name, kind) == ("medusa", "empty object"):
        pytest.skip("its authors' config.json gives no sizes: the tensors do")
    (folder / file).write_bytes(damage((folder / file).read_bytes()))
    with pytest.raises(DecodingError) as raised:
        part(name, "module").load(folder, engine.target)
    assert str(folder) in str(raised.value) and len(str(raised.value)) < 1000


NOTES = [["x"], {"accuracy": "x"}, {"accuracy": [["x"]]}, {"accuracy": [[2.0]]}, {"first": [["x"]]}]


@pytest.mark.parametrize(
    ("name", "notes"),
    [(name, notes) for name in ("medusa", "hydra") for notes in NOTES[: 5 if name == "medusa" else 4]]
    + [("pard", ["x"])],
)
def test_impossible_notes_of_a_head_are_named(
    name: str, notes: Any, heads: Path, engine: Native, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(heads / name, tmp_path / name))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"specrig": notes}))
    with pytest.raises(DecodingError, match=r"config.json: `specrig") as raised:
        part(name, "module").load(folder, engine.target)
    assert str(folder) in str(raised.value)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command that is refused says, its lines joined."""
    assert main(list(arguments)) in (1, 2)
    captured = capsys.readouterr()
    text = " ".join((captured.out + captured.err).split())
    assert "unexpected error" not in text and "Traceback" not in text, text
    return text


def lacking(content: bytes) -> bytes:
    """A checkpoint without its last tensor, which transformers would fill with random numbers."""
    tensors = load(content)
    del tensors[max(tensors)]
    return save(tensors, {"format": "pt"})


MODELS: dict[str, tuple[str, Damage, str]] = {
    "cut tokenizer": ("tokenizer.json", CUT, "tokenizer"),
    "cut weights": ("model.safetensors", CUT, "cut short: its header speaks of"),
    "weights without a tensor": ("model.safetensors", lacking, "the weights lack "),
    "config of brackets": ("config.json", lambda _: b"[" * 100_000, "config.json"),
    "config not UTF-8": ("config.json", lambda content: b"\xff\xfe" + content, "config.json"),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_damaged_target_is_named(
    kind: str, taught: tuple[Any, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, damage, expected = MODELS[kind]
    folder = Path(shutil.copytree(taught[1] / "target", tmp_path / "damaged"))
    (folder / file).write_bytes(damage((folder / file).read_bytes()))
    text = printed(
        capsys, "decode", "1 and", "--target", str(folder), "--method", "ngram", "--device", "cpu", "--tokens", "4"
    )
    assert expected in text and "damaged" in text.replace(" ", "")


def changed(**keys: Any) -> Damage:
    """A JSON object with other values."""
    return lambda content: json.dumps(json.loads(content) | keys).encode()


OWN_MODELS: dict[str, tuple[str, Damage, str]] = {
    "a size of text": ("config.json", changed(hidden_size="x"), "config.json: hidden_size: x is no size"),
    "no heads": ("config.json", changed(num_attention_heads=0), "num_attention_heads: 0 is no size"),
    "a context of NaN": ("config.json", changed(max_position_embeddings=float("nan")), "nan is no size"),
    "a size beyond any": ("config.json", changed(vocab_size=10**30), "vocab_size: 1000"),
    "a list of types": ("config.json", changed(model_type=[]), "model_type and architectures are no names"),
    "a number of architectures": ("config.json", changed(architectures=5), "model_type and architectures are no names"),
    "a model without a vocabulary": ("tokenizer.json", changed(model=[]), "tokenizer.json: not a tokenizer"),
    "added tokens of numbers": ("tokenizer.json", changed(added_tokens=[1]), "tokenizer.json: not a tokenizer"),
    "ids of text": ("tokenizer.json", changed(model={"vocab": {"a": "b"}}), "the id of a token is no whole number"),
}


@pytest.mark.parametrize("verb", ["plan", "advise"])
@pytest.mark.parametrize("part", ["target", "draft"])
@pytest.mark.parametrize("kind", OWN_MODELS)
def test_a_damaged_model_of_a_user_is_named_before_anything_runs(
    kind: str, part: str, verb: str, taught: tuple[Any, Path], workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, damage, expected = OWN_MODELS[kind]
    for name in ("target", "draft"):
        shutil.copytree(taught[1] / name, name)
    path = Path(part, file)
    path.write_bytes(damage(path.read_bytes()))
    # By their whole paths: what was read of a folder is remembered.
    Path("configs/pairs.tsv").write_text(f"pair\ttarget\tdraft\nmine\t{workplace}/target\t{workplace}/draft\n")
    Path("configs/own.yaml").write_text("study: own\npairs: [mine]\ntasks: [code]\nmethods: [draft_model]\n")
    if verb == "plan":
        assert expected in printed(capsys, "plan", "configs/own.yaml")
    else:
        assert main(["advise", "mine"]) == 0
        assert expected in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("content", [b"", b'{"a"', b"[]", b"{}", b"\xff\xfe{}", b"[" * 100_000])
def test_a_damaged_note_of_the_target_is_named(
    content: bytes, taught: tuple[Any, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(taught[1] / "draft", tmp_path / "draft"))
    (folder / "trained_for.json").write_bytes(content)
    arguments = ("--target", str(taught[1] / "target"), "--draft", str(folder), "--device", "cpu", "--tokens", "4")
    text = printed(capsys, "decode", "1 and", *arguments)
    assert "trained_for.json" in text and "copy or train the model again" in text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("x", "--temperature", "nan"), "nan is not a temperature: give a number from 0 to 10"),
        (("x", "--temperature", "1", "--seed", str(1 << 64)), "--seed"),
        (("a\udcffb",), "the prompt is not UTF-8 at character 1"),
    ],
)
def test_impossible_arguments_are_refused(
    arguments: tuple[str, ...], expected: str, taught: tuple[Any, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in printed(capsys, "decode", *arguments, "--target", str(taught[1] / "target"), "--method", "ngram")


def test_a_table_of_a_header_alone_is_named(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = Path("configs/pairs.tsv")
    table.write_text(table.read_text().partition("\n")[0] + "\n")
    assert "configs/pairs.tsv: the table has no rows" in printed(capsys, "plan", "configs/test.yaml")


def test_a_table_that_is_a_link_to_nowhere_is_named_as_the_study_does(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("configs/pairs.tsv").unlink()
    Path("configs/pairs.tsv").symlink_to("nowhere")
    assert "configs/pairs.tsv: no such table" in printed(capsys, "plan", "configs/test.yaml")


def test_an_unknown_key_in_a_row_of_a_resolved_study_is_named(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = json.loads(load_study(Path("configs/test.yaml")).model_dump_json())
    study["rows"]["pairs"]["tiny"]["haeds"] = None
    Path("study.json").write_text(json.dumps(study))
    text = printed(capsys, "plan", "study.json")
    assert "study.json" in text and "haeds" in text and "did you mean 'heads'?" in text


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study's results folder with the tables that planning reads."""
    folder = write_study(tmp_path_factory.mktemp("measured") / "study", ks=(2,), tasks=("code",))
    results = StudyResults(read_study(folder))
    (folder / "tables").mkdir()
    results.cells.to_csv(folder / "tables" / "cells.csv", index=False)
    return folder


TABLES: dict[str, tuple[Damage, str]] = {
    "another header": (lambda content: content.replace(b"pair", b"part", 1), "csv:2: pair: the row has no such column"),
    "cut": (lambda content: content[: content.index(b"\n") + 20], "the row has no such column"),
    "text for a number": (lambda content: content.replace(b",2,", b",two,"), "k: 'two' is not a number"),
    "not UTF-8": (lambda content: b"\xff\xfe" + content, "not a table"),
    "a long field": (lambda content: content + b"a" * 200_000, "field larger than field limit"),
}


@pytest.mark.parametrize("kind", TABLES)
def test_a_damaged_table_of_a_study_is_named_where_it_is_planned_by(
    kind: str, measured: Path, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, expected = TABLES[kind]
    table = Path(shutil.copytree(measured, "results/test")) / "tables/cells.csv"
    table.write_bytes(damage(table.read_bytes()))
    text = printed(capsys, "advise", "tiny", "--study", "results/test")
    assert "tables/cells.csv" in text and expected in text
    assert "make the table again: specrig stage tables --study results/test/study.json" in text


def test_a_long_name_of_a_column_is_cut(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("configs/reported.csv").write_text("[" * 100_000)
    text = printed(capsys, "plan", "configs/test.yaml")
    assert "configs/reported.csv:1: '[[[" in text and len(text) < 5000


INDEXES = [
    "[]",
    "{}",
    "\0",
    '{"cells": {"a": {}}}',
    '{"cells": {"a": 1}}',
    '{"cells": [1]}',
    '{"cells": {"a": {"records": 1}}}',
]


@pytest.mark.parametrize("content", INDEXES)
def test_an_index_of_records_that_is_none_is_named(content: str, tmp_path: Path) -> None:
    from specrig.measurement.records import RecordError, study_records
    from specrig.report.study_data import read_study

    study = write_study(tmp_path / "study", ks=(2,), tasks=("code",))
    for path in study.rglob("index.json"):
        path.write_text(content)
    for read in (read_study, lambda root: study_records(root / "records")):
        with pytest.raises(RecordError, match=r"index.json: damaged \("):
            read(study)


LINES = "what the patient\u2028said \u0085 was"


def test_lines_are_cut_where_json_ends_them(tmp_path: Path) -> None:
    from specrig.measurement.task_prompts import _answers
    from specrig.measurement.traffic.records import Request, Turn, read_turns, write_turns
    from specrig.report.documents.samples import _prompts
    from specrig.tasks.prompts import Prompt

    path = tmp_path / "lines.jsonl"
    row = {"id": "a", "prompt": LINES, "turns": [LINES], "answers": [LINES]}
    path.write_text(json.dumps(row, ensure_ascii=False) + "\n")
    assert _prompts(path) == {"a": LINES}
    assert _answers(path, [Prompt(id="a", text="", turns=(LINES,))], 1) == {"a": [LINES]}
    cell = Cell(engine="server", pair="p", method="ngram", k=2, task="t", temperature=0.0)
    request = Request(prompt_id="a", part="counted", due_s=0, sent_s=0, last_s=1, error=LINES)
    turn = Turn(
        point=Point(cell=cell, loop="closed", load=1), digest="d", turn=0, is_baseline=True, began="2026-01-01T10:00:00",
        client_cpu_s=0, requests=[request],
    )  # fmt: skip
    write_turns(tmp_path / "turns.jsonl", [turn])
    assert list(read_turns(tmp_path / "turns.jsonl")) == [turn]


GARBAGE = [b"", b"[" * 100_000, b"\xff\xfe" * 40, b'{"a": 1}', b"9" * 5000]


@pytest.mark.parametrize("content", GARBAGE, ids=range(len(GARBAGE)))
def test_what_a_report_reads_is_named_or_left_out(content: bytes, tmp_path: Path) -> None:
    from specrig.measurement.records import RecordError
    from specrig.report.documents.samples import _prompts
    from specrig.report.machine import model_rows, parameters
    from specrig.report.quality_table import read_quality

    (tmp_path / "model.safetensors").write_bytes(content)
    assert parameters(tmp_path) is None
    (tmp_path / "tables").mkdir()
    readers: dict[str, tuple[Callable[[], Any], list[bytes]]] = {  # and what they take for an empty file of their kind
        "tables/quality.csv": (lambda: read_quality(tmp_path), []),
        "models.json": (lambda: model_rows(tmp_path), []),
        "prompts.jsonl": (lambda: _prompts(tmp_path / "prompts.jsonl"), [GARBAGE[0], GARBAGE[3]]),
    }
    for name, (read, empty) in readers.items():
        (tmp_path / name).write_bytes(content)
        if content in empty:
            assert not read()
            continue
        with pytest.raises(
            RecordError, match=rf"{name}: damaged \(.*; make it again: rm .*{name}; specrig run CONFIG$"
        ):
            read()


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff\xfe", b"[" * 100_000])
def test_a_converted_folder_that_forgot_its_file_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "source.json").write_bytes(content)
    with pytest.raises(
        ModelError, match=r"source\.json: it names no GGUF file .*; delete the folder: it is made again"
    ):
        source_file(str(tmp_path))


def test_a_record_of_brackets_and_a_surrogate_in_a_prompt_are_named(tmp_path: Path) -> None:
    from specrig.measurement.records import RecordError, read_records
    from specrig.tasks import PromptError, read_prompts

    path = tmp_path / "code-k4-t0-b1.jsonl"
    for content in (b"[" * 100_000, b"\xff\xfe{}"):
        path.write_bytes(content)
        with pytest.raises(RecordError, match=r"jsonl:1: not a record .*; make it again: rm .*\.jsonl; specrig run"):
            list(read_records(path))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "a", "prompt": "x"}\n{"id": "b", "prompt": "x\\ud800y"}\n')
    with pytest.raises(PromptError, match=r"prompts\.jsonl:2: the prompt has half a character .* at 1"):
        read_prompts(prompts)
    for content, reason in ((b"[" * 100_000, "nested too deep"), (b"9" * 5000, "a number has too many digits")):
        prompts.write_bytes(content)
        with pytest.raises(PromptError, match=rf"prompts\.jsonl:1: not JSON \({reason}\)"):
            read_prompts(prompts)
