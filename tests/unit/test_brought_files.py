"""Files as people bring them: formats, encodings and shapes of chats, each read at the first try or refused by row."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from specrig.tasks import Prompt, PromptError, read_prompts

ROWS = [{"id": "1", "prompt": "Größe, ja?"}, {"id": "2", "prompt": "two"}]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
EXPECTED = [Prompt("1", "Größe, ja?"), Prompt("2", "two")]


def packed(text: str) -> bytes:
    return gzip.compress(text.encode(), mtime=0)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", LINES.encode("utf-8-sig")),
        ("a.jsonl", LINES.replace("\n", "\r\n").encode()),
        ("a.ndjson", LINES.encode()),
        ("a.jsonl", json.dumps(ROWS).encode()),
        ("a.json", json.dumps(ROWS, indent=2).encode()),
        ("a.json", json.dumps({"version": 1, "data": ROWS}, indent=2).encode()),
        ("a.json", json.dumps({"version": "1", "data": ROWS}).encode()),
        ("a.json", LINES.encode()),
        ("a.jsonl", LINES.encode("utf-16")),
        ("a.jsonl", LINES.replace("\n", "\r").encode()),
        ("a.jsonl.gz", packed(LINES)),
        ("a.jsonl", packed(LINES)),
        ("a.jsonl.zst", pyarrow.compress(LINES.encode(), codec="zstd", asbytes=True)),
        ("a.csv", 'id,prompt\n1,"Größe, ja?"\n2,two\n'.encode()),
        ("a.csv", "id;prompt\r\n1;Größe, ja?\r\n2;two\r\n".encode("utf-8-sig")),
        ("a.csv", "sep=;\r\nid ;prompt\r\n1;Größe, ja?\r\n2;two\r\n3\r\n".encode()),
        ("a.tsv", "id\tprompt\n1\tGröße, ja?\n2\ttwo\n".encode()),
        ("a.csv.gz", packed("id|prompt\n1|Größe, ja?\n2|two\n")),
        ("a.txt", "Größe, ja?\r\n\r\ntwo\r\n".encode()),
    ],
)
def test_every_format_holds_the_same_prompts(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    found = read_prompts(tmp_path / name)
    assert [prompt.text for prompt in found] == [prompt.text for prompt in EXPECTED]
    assert name == "a.txt" or found == EXPECTED


def test_parquet_holds_nested_rows(tmp_path: Path) -> None:
    rows = [
        {"id": 2**53 + 1, "conversations": [{"from": "human", "value": "hi"}]},
        {"id": None, "conversations": None},
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    left_out = Counter[str]()
    assert read_prompts(tmp_path / "a.parquet", left_out=left_out) == [Prompt(str(2**53 + 1), "hi")]
    assert left_out == {"empty": 1}


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", b"prompt\nhello, you\n", "a row has more fields than the header; put texts that hold ',' in quotes"),
        ("a.zip", b"PK\x03\x04\0\xff", r"no text: files of prompts are \.jsonl, .*also packed \(\.gz, \.zst\)"),
        ("a.txt", "a\n".encode("utf-16-le"), "it holds NUL bytes, as UTF-16 without a byte order mark does"),
        ("a.jsonl", b'{"body": {"prompt": ["a", "b"]}}', "no field 'prompt'"),
        ("a.jsonl", b'{"messages": [{"role": "user", "content": null}]}', "message 1 holds null, no text"),
        ("a.jsonl.gz", b"{}", "not a readable .gz file"),
        ("a.json", b'{"train": [{"prompt": "a"}], "test": [{"prompt": "b"}]}', r"several lists of rows \(train, test\)"),
        ("a.jsonl", b'{"id": 1, "prompt": "a"}\n{"id": 1, "prompt": "b"}', r"already in line 1.*\(id_field # numbers the rows"),
    ],
)  # fmt: skip
def test_what_is_read_wrongly_by_others_is_refused(name: str, content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(PromptError, match=says):
        read_prompts(tmp_path / name)


def test_letters_of_windows_are_read_where_the_row_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("id;prompt\n1;Größe – ja\n".encode("windows-1252"))
    with pytest.raises(PromptError, match=r"not UTF-8 at byte 14; set `encoding` in the task's row to windows-1252"):
        read_prompts(tmp_path / "a.csv")
    assert read_prompts(tmp_path / "a.csv", encoding="windows-1252") == [Prompt("1", "Größe – ja")]


SYSTEM, USER, ANSWER = ({"role": role, "content": role[:3]} for role in ("system", "user", "assistant"))
LATER = {"role": "user", "content": [{"type": "text", "text": "and"}, {"type": "text", "text": "then"}]}
LOG = [
    {"from": name, "value": text}
    for name, text in (("system", "sys"), ("human", "use"), ("gpt", "ass"), ("human", "x"))
]


@pytest.mark.parametrize(
    ("row", "turns", "expected"),
    [
        ({"messages": [SYSTEM, USER]}, 1, Prompt("1", "use", before=(("system", "sys"),))),
        ({"messages": [USER, ANSWER]}, 1, Prompt("1", "use")),
        (
            {"id": "a", "messages": [USER, ANSWER, LATER]},
            1,
            Prompt("a", "and\nthen", before=(("user", "use"), ("assistant", "ass"))),
        ),
        ({"messages": [USER, ANSWER, LATER]}, 2, Prompt("1", "use", turns=("use", "and\nthen"))),
        ({"conversations": LOG}, 1, Prompt("1", "use", before=(("system", "sys"),))),
        ({"conversations": LOG}, 2, Prompt("1", "use", turns=("use", "x"), before=(("system", "sys"),))),
        (
            {"custom_id": "r-7", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [SYSTEM, USER]}},
            1,
            Prompt("r-7", "use", before=(("system", "sys"),)),
        ),
        ({"custom_id": "r-8", "url": "/v1/completions", "body": {"prompt": "one"}}, 1, Prompt("r-8", "one")),
        ({"messages": json.dumps([SYSTEM, USER])}, 1, Prompt("1", "use", before=(("system", "sys"),))),
        ({"question_id": 81, "turns": ["one", "two"]}, 1, Prompt("81", "one")),
        ({"prompt": [USER]}, 1, Prompt("1", "use")),
    ],
)
def test_chats_are_known_by_their_shape(row: dict[str, Any], turns: int, expected: Prompt, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    assert read_prompts(tmp_path / "a.jsonl", turns=turns) == [expected]


IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"messages": [IMAGE]}, "message 1 holds image_url, no text"),
        ({"messages": [USER, {"role": "tool", "content": "x"}]}, "message 2 is from 'tool'"),
        ({"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [1]}]}, "message 2 calls a tool"),
        ({"messages": [USER], "tools": [{"type": "function"}]}, "the request has tools"),
    ],
)
def test_what_is_no_text_is_refused_by_row(row: dict[str, Any], says: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": [LATER]}) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(PromptError, match=rf"a\.jsonl:2: .*{says}.*(take the row out)"):
        read_prompts(tmp_path / "a.jsonl")


def test_empty_and_repeated_rows_are_left_out_and_counted(tmp_path: Path) -> None:
    texts = ["a", "", "b", "a", "  ", "a"]
    (tmp_path / "a.csv").write_text(
        "id,prompt\n" + "".join(f'{number},"{text}"\n' for number, text in enumerate(texts))
    )
    left_out = Counter[str]()
    found = read_prompts(tmp_path / "a.csv", left_out=left_out)
    assert [prompt.id for prompt in found] == ["0", "2"] and left_out == {"empty": 2, "repeated": 2}
    chats: list[list[dict[str, Any]] | None] = [[], None, [ANSWER], [USER]]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    assert [prompt.text for prompt in read_prompts(tmp_path / "a.jsonl", left_out=left_out)] == ["use"]
    assert left_out["empty"] == 5


def test_history_reaches_the_template_and_the_text_without_one(letters: Path, write_task: Callable[..., Any]) -> None:
    """A request with a history, as it is encoded: in a template each message has its role, else all are paragraphs."""
    study, pair = write_task({"messages": [SYSTEM, USER, ANSWER, {"role": "user", "content": "end"}]})
    from specrig.measurement.task_prompts import prepared

    assert [prompt.text for prompt in prepared(study, "own", pair, study.root)] == ["sys\n\nuse\n\nass\n\nend"]


@pytest.fixture
def write_task() -> Callable[..., Any]:
    from runs import own_study
    from specrig.study.load import load_study

    def write(row: dict[str, Any]) -> Any:
        keys = {"methods": [{"method": "ngram", "k": 3}], "max_new_tokens": 8}
        config = own_study("own", "pair\ttarget\tdraft\ntiny\ttarget\tdraft\n", ["x"], **keys)
        Path("prompts.jsonl").write_text(json.dumps(row) + "\n")
        study = load_study(config)
        return study, study.paths.pair_files("tiny", study.root)

    return write
