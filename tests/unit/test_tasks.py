"""Reading prompts: field paths, filters, and every refusal with file, line, field and fix."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specrig.tasks import Prompt, PromptError, read_prompts


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_reads_rows_in_order_and_skips_blank_lines(tmp_path: Path) -> None:
    file = write(tmp_path / "p.jsonl", {"id": 7, "prompt": " a "}, "", {"id": "x", "prompt": "b", "reference": "c"})
    assert read_prompts(file) == [Prompt("7", " a ", ""), Prompt("x", "b", "c")]


def test_dotted_and_indexed_fields_with_a_filter(tmp_path: Path) -> None:
    file = write(
        tmp_path / "spec.jsonl",
        {"question_id": 81, "category": "writing", "turns": ["one", "two"]},
        {"question_id": 82, "category": "translation", "turns": ["drei", "vier"], "meta": {"answer": ["3"]}},
    )
    options = {"prompt_field": "turns.1", "id_field": "question_id", "reference_field": "meta.answer.0"}
    assert read_prompts(file, **options, where={"category": "translation"}) == [Prompt("82", "vier", "3")]
    assert [prompt.text for prompt in read_prompts(file, **options)] == ["two", "vier"]
    assert read_prompts(file, **options, where={"question_id": "81"})[0].id == "81"


def test_line_separators_inside_json_text_do_not_split_a_row(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"id": 1, "prompt": "a\u2028b\x85c"}\n', encoding="utf-8")
    assert read_prompts(file)[0].text == "a\u2028b\x85c"


def test_line_numbers_serve_as_ids(tmp_path: Path) -> None:
    file = write(tmp_path / "p.jsonl", {"prompt": "a"}, {"prompt": "b"})
    assert [prompt.id for prompt in read_prompts(file, id_field=None)] == ["1", "2"]


GOOD = {"id": 1, "prompt": "p"}


@pytest.mark.parametrize(
    ("rows", "place", "says"),
    [
        ([GOOD, '{"id": 2'], ":2:", "not JSON"),
        ([GOOD, [1]], ":2:", "a list where a JSON object is needed"),
        ([GOOD, {"id": 2, "text": "p"}], ":2:", "no field 'prompt'; the row has 'id', 'text'; set prompt_field"),
        ([{"id": 2, "prompt": "  "}], "", "holds no prompts"),
        ([GOOD, {"id": 2, "prompt": ["a"]}], ":2:", "name the text inside it, e.g. 'prompt.0'"),
        ([GOOD, {"id": 2, "prompt": 3}], ":2:", "is not a text but a number"),
        ([GOOD, {"prompt": "q"}], ":2:", "no field 'id'"),
        ([], "", "holds no prompts"),
    ],
)
def test_refusals_name_file_line_and_fix(tmp_path: Path, rows: list[object], place: str, says: str) -> None:
    file = write(tmp_path / "p.jsonl", *rows)
    with pytest.raises(PromptError) as caught:
        read_prompts(file)
    assert str(caught.value).startswith(f"{file}{place}")
    assert says in str(caught.value)


def test_a_filter_that_matches_nothing_lists_the_values(tmp_path: Path) -> None:
    file = write(tmp_path / "p.jsonl", {"id": 1, "prompt": "p", "category": "maths"})
    with pytest.raises(PromptError, match=r"none of its 1 rows.*'category' is maths"):
        read_prompts(file, where={"category": "math"})


def test_index_out_of_range_is_a_missing_field(tmp_path: Path) -> None:
    file = write(tmp_path / "p.jsonl", {"id": 1, "turns": ["a"]})
    with pytest.raises(PromptError, match=r"no field 'turns\.1'"):
        read_prompts(file, prompt_field="turns.1")


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="no such file"):
        read_prompts(tmp_path / "none.jsonl")
    with pytest.raises(PromptError, match="cannot be read"):
        read_prompts(tmp_path)
