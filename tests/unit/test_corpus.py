"""The embedded corpus: nothing held out is trained on, the split is stable, the text is what it says."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from tiny import TINY

from specrig.corpus import gather as corpus
from specrig.corpus import instructions, source_text
from specrig.corpus.example import EXPLANATION, TASKS, CorpusError, Example
from specrig.corpus.recipe import Corpus
from specrig.tasks import read_prompts

Rows = list[dict[str, str]]
SETTINGS = Corpus.model_validate(TINY["corpus"])


@pytest.fixture(scope="module")
def built(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(tiny_corpus, tmp_path_factory.mktemp("built") / "study"))


@pytest.fixture(scope="module")
def train(built: Path) -> Rows:
    return corpus.read(built / "corpus" / "train.jsonl")


def test_every_task_has_training_text_heldout_text_and_prompts(built: Path, train: Rows) -> None:
    heldout = corpus.read(built / "corpus" / "heldout.jsonl")
    settings = SETTINGS
    for task in TASKS:
        size = sum(len(row["text"]) for row in train if row["task"] == task)
        assert size >= getattr(settings.characters, task)
        assert any(row["task"] == task for row in heldout)
        prompts = read_prompts(built / "prompts" / f"{task}.jsonl")
        assert len(prompts) == settings.prompts
        assert all(prompt.reference.strip() for prompt in prompts)
    assert all(row["text"] == row["prompt"] + row["completion"] for row in train + heldout)


def test_no_heldout_prompt_occurs_in_the_training_text(built: Path, train: Rows) -> None:
    text = "\0".join(row["text"] for row in train)
    heldout = [row["prompt"] for row in corpus.read(built / "corpus" / "heldout.jsonl")]
    prompts = [prompt.text for task in TASKS for prompt in read_prompts(built / "prompts" / f"{task}.jsonl")]
    assert train[0]["prompt"] in text  # the check below can fail
    assert [prompt for prompt in heldout + prompts if prompt.strip() in text] == []


def test_heldout_texts_come_from_files_and_entities_of_their_own(built: Path, train: Rows) -> None:
    trained = {(row["task"], row["source"]) for row in train}
    heldout = corpus.read(built / "corpus" / "heldout.jsonl")
    assert {(row["task"], row["source"]) for row in heldout}.isdisjoint(trained)
    # Translation holds out phrases one by one: none of a held-out list's is trained on in another list.
    phrases = {phrase for task, source in trained if task == "translation" for phrase in source.split(" + ")}
    mine = [row["source"].split(" + ") for row in heldout if row["task"] == "translation"]
    assert mine and all(phrases.isdisjoint(row) for row in mine)


def test_prompts_and_losses_use_different_heldout_texts(built: Path) -> None:
    heldout = {row["prompt"] for row in corpus.read(built / "corpus" / "heldout.jsonl")}
    assert all(
        prompt.text not in heldout for task in TASKS for prompt in read_prompts(built / "prompts" / f"{task}.jsonl")
    )


def test_the_same_seed_gives_the_same_files_under_another_hash_seed(built: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from specrig.corpus import gather as corpus\n"
        "from specrig.corpus.recipe import Corpus\n"
        "corpus.build(Corpus.model_validate_json(sys.argv[2]), 0, Path(sys.argv[1]))"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), SETTINGS.model_dump_json()],
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "4242"},
    )
    for file in ("corpus/train.jsonl", "corpus/heldout.jsonl", *(f"prompts/{task}.jsonl" for task in TASKS)):
        one, two = (hashlib.sha256((root / file).read_bytes()).hexdigest() for root in (built, tmp_path))
        assert one == two, file


@pytest.mark.parametrize("task", TASKS)
def test_another_seed_takes_other_texts_and_holds_out_the_same_files_and_entities(task: str, train: Rows) -> None:
    """Weights that learnt from one study's corpus are evaluated by another's."""
    trained, heldout = corpus.gather(task, SETTINGS, 1)
    mine = {row["text"] for row in train if row["task"] == task}
    assert {example.prompt + example.completion for example in trained} != mine
    learnt = "\0".join(mine)
    assert [example.prompt for example in heldout if example.prompt.strip() in learnt] == []


def example(prompt: str, completion: str, source: str, heldout: bool, instruction: str = "") -> Example:
    return Example("code", prompt, completion, source, heldout, instruction or f"Write {prompt}", completion)


def test_a_copied_function_is_not_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def examples(seed: int, share: float) -> list[Example]:
        trained = [example(f"def f{i}():\n", "    body\n" * 300, "a.py", False) for i in range(40)]
        held = [example(f"def g{i}():\n", f"    other{i}\n", "b.py", True) for i in range(20)]
        copies = [example(f"def f{i}():\n", f"    fresh{i}\n", "b.py", True) for i in range(10)]
        same_body = [example(f"def h{i}():\n", "    body\n", "b.py", True) for i in range(5)]
        return trained[:3] + copies[:2] + held[:8] + same_body[:2] + held[8:] + trained[3:]

    monkeypatch.setitem(corpus.SOURCES, "code", examples)
    _, heldout = corpus.gather("code", SETTINGS, 0)
    assert {example.prompt[4] for example in heldout} == {"g"}


def test_too_few_heldout_examples_are_refused_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        corpus.SOURCES, "code", lambda seed, share: iter([example("def f():\n", "    pass\n", "a", False)])
    )
    with pytest.raises(CorpusError, match=r"task 'code': only 0 held-out .* lower corpus\.prompts"):
        corpus.gather("code", SETTINGS, 0)


def test_a_failed_build_leaves_the_old_corpus(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (built / "corpus" / "train.jsonl").read_bytes()
    monkeypatch.setattr(corpus, "_write", lambda path, rows: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        corpus.build(SETTINGS, 0, built)
    assert (built / "corpus" / "train.jsonl").read_bytes() == before
    assert sorted(path.name for path in built.iterdir()) == ["corpus", "prompts"]


def test_missing_and_empty_corpus_files_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="specrig stage corpus"):
        corpus.read(tmp_path / "train.jsonl")
    (tmp_path / "train.jsonl").write_text("")
    with pytest.raises(CorpusError, match="is empty"):
        corpus.read(tmp_path / "train.jsonl")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"task": "co', "Unterminated string"),
        (b"[]", "it has no text task, text, prompt"),
        (b'{"task": "code", "text": 3, "prompt": "a", "completion": "b"}', "it has no text text, instruction"),
        (b"\xff\xfe{}", "decode"),
        (b"[" * 100_000, "recursion"),
    ],
)
def test_a_damaged_row_of_a_corpus_is_named(built: Path, tmp_path: Path, line: bytes, reason: str) -> None:
    whole = (built / "corpus/train.jsonl").read_bytes().split(b"\n")
    file = tmp_path / "train.jsonl"
    file.write_bytes(b"\n".join([whole[0], line, *whole[1:]]))
    with pytest.raises(
        CorpusError, match=rf"train\.jsonl:2: not a row .*{reason}.*; build it again with `specrig stage corpus`"
    ):
        corpus.read(file)
    row = json.loads(whole[0]) | {"prompt": "half \ud800"}
    file.write_text(json.dumps(row))
    with pytest.raises(CorpusError, match=r"train\.jsonl:1: not a row of the corpus .*surrogates not allowed"):
        corpus.read(file)


def test_stories_vary(train: Rows) -> None:
    stories = [row["completion"].split() for row in train if row["task"] == "creative_writing"]
    eights = [tuple(words[i : i + 8]) for words in stories for i in range(len(words) - 7)]
    assert len(set(eights)) / len(eights) > 0.7
    assert all("{" not in row["text"] for row in train if row["task"] == "creative_writing")


def test_translations_pair_line_by_line_in_all_languages(train: Rows) -> None:
    rows = [row for row in train if row["task"] == "translation"]
    languages = {row["prompt"].splitlines()[0].removeprefix("Translate from English to ") for row in rows}
    assert languages == {"German.", "Czech.", "Turkish.", "Chinese."}
    for row in rows:
        english = row["prompt"].split("\n\n")[1].splitlines()
        assert len(english) == len(row["completion"].splitlines())


def test_code_completes_its_prompt_to_valid_python(train: Rows) -> None:
    code = [row for row in train if row["task"] == "code"]
    failed = 0
    for row in code:
        try:
            compile(row["text"], "text", "exec", dont_inherit=True)
        except SyntaxError:
            failed += 1
    assert failed <= len(code) * 0.05  # a few bodies hold text that dedenting breaks


def test_rows_are_json_lines_that_keep_the_boundary(built: Path) -> None:
    line = (built / "corpus" / "train.jsonl").read_text(encoding="utf-8").split("\n")[0]
    assert set(json.loads(line)) == {"task", "text", "prompt", "completion", "source", "instruction", "answer"}


def test_the_same_examples_as_requests_to_an_assistant(built: Path) -> None:
    begins = {
        "code": ("Write a Python ", "Write the Python "), "translation": ("Translate into ",),
        "summarization": ("Summarize the following documentation in one sentence:\n\n",),
        "creative_writing": ("Write a short story ", "Continue this story: "),
    }  # fmt: skip
    for task in TASKS:
        requests = read_prompts(built / "prompts" / f"{task}_chat.jsonl")
        assert len(requests) == SETTINGS.prompts and all(prompt.reference.strip() for prompt in requests)
        assert all(prompt.text.startswith(begins[task]) for prompt in requests)
        assert not {prompt.text for prompt in requests} & {
            prompt.text for prompt in read_prompts(built / "prompts" / f"{task}.jsonl")
        }
    answers = [prompt.reference for prompt in read_prompts(built / "prompts" / "code_chat.jsonl")]
    for answer in answers:
        compile(answer.removeprefix("```python\n").removesuffix("```"), "answer", "exec")


def test_explanations_ask_about_the_functions_of_code_without_what_the_docstring_says(built: Path) -> None:
    requests = read_prompts(built / "prompts" / f"{EXPLANATION}.jsonl")
    functions = read_prompts(built / "prompts" / "code.jsonl")
    assert len(requests) == len(functions) == SETTINGS.prompts
    for request, function in zip(requests, functions, strict=True):
        shown = request.text.removeprefix("Explain what this Python function does:\n\n```python\n").removesuffix(
            "\n```"
        )
        ast.parse(shown)
        assert shown.startswith(function.text.split('\n    """')[0]) and shown.endswith(function.reference.rstrip())
        assert request.reference and '"""' not in shown and request.reference not in " ".join(shown.split())


def test_a_request_for_code_is_a_sentence() -> None:
    assert (
        instructions.code("def f(a,\n      b) -> int:", "Return the sum.")
        == "Write a Python function `f(a, b) -> int` that returns the sum."
    )
    assert (
        instructions.code("async def g(self):", "Tries again.") == "Write a Python method `g(self)` that tries again."
    )
    assert (
        instructions.code("def h():", "A helper.")
        == "Write the Python function `h()`. Its documentation says: A helper."
    )
    for verb, third in (("Copy", "copies"), ("Match", "matches"), ("Display", "displays"), ("Process", "processes")):
        assert f"that {third} it" in instructions.code("def f():", f"{verb} it")


def test_no_request_of_training_is_held_out_in_another_spelling(monkeypatch: pytest.MonkeyPatch) -> None:
    def examples(seed: int, share: float) -> list[Example]:
        trained = [example(f"def f{i}():\n", "    body\n" * 50, "a.py", False, f"Sort list {i}!") for i in range(40)]
        held = [example(f"def g{i}():\n", f"    other{i}\n", "b.py", True, f"sort  list {36 + i}") for i in range(30)]
        return trained + held

    monkeypatch.setitem(corpus.SOURCES, "code", examples)
    _, heldout = corpus.gather("code", SETTINGS, 0)
    assert {e.instruction for e in heldout} == {f"sort  list {n}" for n in range(40, 52)}


def test_limits_let_packages_and_longer_texts_in_and_hold_files_out_of_both_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What one task holds out is not trained on in the other."""
    monkeypatch.setattr(source_text, "PACKAGES", ("networkx",))
    settings = Corpus.model_validate(
        {**TINY["corpus"], "characters": {"code": 800_000}, "limits": {"packages": ["networkx", "no-such-package"], "body": 1600}}
    )  # fmt: skip
    trained, heldout = corpus.gather("code", settings, 0)
    own = [example for example in trained if example.source.startswith("networkx/")]
    assert len(own) > 100 and len(own) < len(trained)
    assert max(len(example.completion) for example in own) > 800
    summaries = list(source_text.summarization(0, settings))
    files = {example.source for example in own}
    held = {example.source for example in summaries if example.heldout}
    assert len(files) > 100 and len(held) > 10 and files.isdisjoint(held)
    assert any(example.source.startswith("networkx/") for example in heldout)
    longer = settings.model_copy(update={"limits": settings.limits.model_copy(update={"excerpt": 400})})
    source, more = (
        max(len(e.prompt) for e in islice(source_text.summarization(0, each), 60)) for each in (settings, longer)
    )
    assert more > source
