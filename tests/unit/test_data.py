"""Data by row: files of three kinds, addresses; templates, pins; and every way in which they can be wrong."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from specrig.measurement.task_prompts import fetch_prompts
from specrig.study.load import load_study
from specrig.study.problems import StudyError
from specrig.study.rows import Task
from specrig.tasks import Prompt, PromptError, read_prompts
from specrig.tasks.sources import fetch_rows, hub_rows
from specrig.tasks.trained_on import fingerprint

ROWS = [
    {"id": "a", "de": "Haus", "en": "house", "tests": ["assert 1", "assert 2"], "kind": "x"},
    {"id": "b", "de": "Baum", "en": "tree", "tests": ["assert 3"], "kind": "y"},
]


def test_a_csv_file_holds_text_as_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("id,prompt,answer,kind\n001,7,0.50,01\n1,TRUE,02139,01\n2,x,,02\n")
    found = read_prompts(tmp_path / "p.csv", reference_field="answer", where={"kind": "01"})
    assert found == [Prompt("001", "7", "0.50"), Prompt("1", "TRUE", "02139")]


def test_a_task_whose_prompts_were_all_learnt_from_is_refused(workplace: Path) -> None:
    Path("mine.jsonl").write_text("".join(json.dumps({"id": n, "prompt": f"Prompt {n}"}) + "\n" for n in range(3)))
    Path("configs/tasks.tsv").write_text("task\tsource\nmine\tmine.jsonl\n")
    config = yaml.safe_load(Path("configs/test.yaml").read_text()) | {"tasks": ["mine"], "prompts": 2}
    Path("configs/own.yaml").write_text(yaml.safe_dump(config))
    study = load_study(Path("configs/own.yaml"))
    study.__dict__["_trained_on"] = frozenset(fingerprint(f"Prompt {n}") for n in range(2))
    assert [prompt.text for prompt in study.prompts_of("mine", study.root)] == ["Prompt 2"]
    study.__dict__["_trained_on"] |= {fingerprint("prompt 2")}
    with pytest.raises(PromptError, match=r"task mine: a draft or head .* learnt from all of its 3 prompts"):
        study.prompts_of("mine", study.root)


def test_templates_fill_in_fields_lists_and_first_characters(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    row = Task(
        task="t", source="p.jsonl", prompt_template=r"German: {de:.2}\nEnglish:", reference_template=r"{tests}\n{{}}"
    )
    first, _ = read_prompts(tmp_path / "p.jsonl", **row.mapping)
    assert first == Prompt("a", "German: Ha\nEnglish:", "assert 1\nassert 2\n{}")


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{fr}", r"p\.jsonl:1: no field 'fr'; the row has 'id', 'de'"),
        ("{de", "prompt_template does not parse"),
        ("{de:d}", "not a way to format text"),
    ],
)
def test_wrong_templates_are_named(tmp_path: Path, template: str, says: str) -> None:
    (tmp_path / "p.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    with pytest.raises(PromptError, match=says):
        read_prompts(tmp_path / "p.jsonl", prompt_template=template)


def test_a_filter_takes_alternatives_and_a_hash_numbers_rows(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    row = Task(task="t", source="p.jsonl", prompt_field="de", where="kind=x|y", id_field="#")
    assert [prompt.id for prompt in read_prompts(tmp_path / "p.jsonl", **row.mapping)] == ["1", "2"]


def test_another_checksum_is_refused_with_both(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": 1, "prompt": "p"}\n')
    pin = sha256(path.read_bytes()).hexdigest()
    assert len(read_prompts(path, sha256=pin)) == 1
    path.write_text('{"id": 1, "prompt": "q"}\n')
    with pytest.raises(PromptError, match=f"the row pins {pin}"):
        read_prompts(path, sha256=pin)


def test_a_broken_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "p.parquet").write_bytes(b"no parquet")
    with pytest.raises(PromptError, match=r"p\.parquet: not a readable \.parquet file"):
        read_prompts(tmp_path / "p.parquet")


class Host(BaseHTTPRequestHandler):
    """Serves a file of prompts."""

    content = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)

    def do_GET(self) -> None:
        if self.path.endswith("t.csv?download=true"):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"id,prompt\n1,why?\n")
            return
        if self.path.endswith("p.jsonl"):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.content)
            return
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Host)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_an_address_is_fetched_mapped_and_checked(workplace: Path, host: str) -> None:
    pin = sha256(Host.content).hexdigest()
    Path("configs/tasks.tsv").write_text(
        "task\tsource\tsha256\tprompt_field\treference_field\n"
        + f"words\t{host}/p.jsonl\t{pin}\tde\ten\nother\t{host}/p.jsonl\t{'0' * 64}\tde\ten\ngone\t{host}/q.csv\t\tde\ten\n"
    )
    config = yaml.safe_load(Path("configs/test.yaml").read_text()) | {"tasks": ["words", "other", "gone"], "prompts": 1}
    Path("configs/own.yaml").write_text(yaml.safe_dump(config))
    study = load_study(Path("configs/own.yaml"))
    with pytest.raises(PromptError, match=r"`specrig stage prompts --study \S+ --task words` fetches it"):
        study.prompts_of("words", study.root)
    fetch_prompts(study, "words", study.root)
    assert study.prompts_of("words", study.root) == [Prompt("a", "Haus", "house")]
    with pytest.raises(PromptError, match="the row pins 0000"):
        fetch_prompts(study, "other", study.root)
    with pytest.raises(PromptError, match=r"q\.csv: cannot be fetched .*404"):
        fetch_prompts(study, "gone", study.root)


def test_the_query_of_an_address_is_no_part_of_its_ending(host: str) -> None:
    (row,) = fetch_rows(f"{host}/t.csv?download=true")
    assert row[2] == {"id": "1", "prompt": "why?"}


def test_nothing_is_fetched_offline(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "huggingface_hub.constants.HF_HUB_OFFLINE", True
    )  # as it reads HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE
    with pytest.raises(PromptError, match="offline mode is on"):
        fetch_rows(f"{host}/p.jsonl")


def test_an_address_that_does_not_answer() -> None:
    with pytest.raises(PromptError, match=r"cannot be fetched .*check the network"):
        fetch_rows("http://127.0.0.1:9/p.jsonl")


def test_a_missing_library_comes_with_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(PromptError, match=r"pip install 'specrig\[data\]'"):
        hub_rows("openai/openai_humaneval", None, "test", None)


def test_a_study_without_the_library_of_its_data_is_refused_before_it_runs(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = load_study(Path("configs/hub.yaml"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        StudyError, match=r"row 'humaneval', source: .*needs the library datasets\n.*pip install 'specrig\[data\]'"
    ):
        load_study(Path("configs/hub.yaml"))
    for task in study.tasks:
        if study.rows.tasks[task].kind == "hub":
            file = study.paths.prompt_file(task, study.root)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    assert load_study(Path("configs/hub.yaml")).tasks == study.tasks, "prompts that are fetched already need no library"


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ("own\tfile.jsonl\t\tchrff", "unknown scorer 'chrff'(.|\n)*did you mean 'chrf'"),
        ("own\tfile.jsonl\t" + "0" * 64 + "\t", "its SHA-256 is"),
    ],
)
def test_wrong_rows_are_refused_while_planning(workplace: Path, cells: str, says: str) -> None:
    Path("file.jsonl").write_text('{"id": 1, "prompt": "p"}\n')
    Path("configs/tasks.tsv").write_text(f"task\tsource\tsha256\tscorer\tnotes\n{cells}\tget it somewhere\n")
    config = yaml.safe_load(Path("configs/test.yaml").read_text()) | {"tasks": ["own"], "prompts": 1}
    Path("configs/own.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(StudyError, match=says):
        load_study(Path("configs/own.yaml"))
