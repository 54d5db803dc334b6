"""What a target is asked in training: the user's file, in its chat template where it has one, and no prompt of an
evaluation.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specrig.planning.estimate import training
from specrig.study.load import load_study
from specrig.study.overlap import prompts_in_both
from specrig.tasks import PromptError
from specrig.tasks.wording import normalized
from specrig.training.recipe import Recipe
from specrig.training.source_text import Part, SourceText

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif "
    "%}"
)


def recipe(**settings: Any) -> Recipe:
    return Recipe.model_validate({"text": {"sequence": 500}, **settings})


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """The tokenizer of a target, whose tokens are bytes."""
    tokenizer = Tokenizer(models.BPE({piece: n for n, piece in enumerate(pre_tokenizers.ByteLevel.alphabet())}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    folder = tmp_path / "target"
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 0}))
    return folder


def chatty(folder: Path) -> Path:
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def asked(own: Recipe, part: Part, folder: Path, without: Collection[str] = ()) -> list[str]:
    """The prompts of a part, as text."""
    source = SourceText(folder, own, own.prompts[0], folder, without)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [tokenizer.decode(source._prompt(source.requests[at])) for at in source._pending(part)]


def rows_of(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_the_users_file_in_the_template_where_the_target_has_one(tmp_path: Path, target: Path) -> None:
    rows: list[dict[str, Any]] = [{"prompt": f"What is {n}?"} for n in range(100)]
    rows += [{"turns": [f"First {n}", "then more"]} for n in range(50)]
    rows += [
        {"conversations": [{"from": "human", "value": f"Log {n}"}, {"from": "gpt", "value": "!"}]} for n in range(50)
    ]
    rows += [
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Say {n}"}, {"role": "assistant", "content": "No."}]}
        for n in range(50)
    ]  # fmt: skip
    mine = recipe(prompts=rows_of(tmp_path / "mine.jsonl", rows))
    assert "What is 7?" in asked(mine, "train", target) + asked(mine, "heldout", target), "without a template as it is"
    trained, held = (asked(mine, part, chatty(target)) for part in ("train", "heldout"))
    assert "<user>What is 7?<assistant>" in trained + held and "<user>First 7<assistant>" in trained + held
    assert "<user>Log 7<assistant>" in trained + held
    assert "<system>Be brief.<user>Say 7<assistant>" in trained + held, "the answer is the target's to write"
    assert not set(trained) & set(held) and (len(trained), len(held)) == (218, 32)
    assert "First 7" in asked(recipe(prompts=mine.prompts, chat=False), "train", target) + asked(
        recipe(prompts=mine.prompts, chat=False), "heldout", target
    )
    assert not asked(recipe(prompts=mine.prompts, text={"sequence": 32}), "train", target), "too long for an answer"


@pytest.mark.parametrize(
    "row",
    [
        {"text": "no prompt"},
        {"turns": "What is 7?"},
        {"turns": 7},
    ],
)
def test_a_row_without_a_prompt_is_named(row: dict[str, Any], tmp_path: Path, target: Path) -> None:
    with pytest.raises(PromptError, match=r"wrong\.jsonl:1: no prompt to train on; a row needs `prompt`"):
        asked(recipe(prompts=rows_of(tmp_path / "wrong.jsonl", [row])), "train", target)


def test_files_that_cannot_be_asked_from_are_named(tmp_path: Path, target: Path) -> None:
    with pytest.raises(PromptError, match="no such file of prompts"):
        asked(recipe(prompts=str(tmp_path / "gone.jsonl")), "train", target)
    silent = [{"prompt": " "}, {"messages": [{"role": "assistant", "content": "Hi"}]}]
    for rows in ([], silent):
        with pytest.raises(PromptError, match="no prompt in it"):
            asked(recipe(prompts=rows_of(tmp_path / "empty.jsonl", rows)), "train", target)
    called = {"messages": [{"role": "user", "content": "x"}, {"role": "tool", "content": "1"}]}
    with pytest.raises(PromptError, match=r"tools\.jsonl:1: message 2 is from 'tool': only texts"):
        asked(recipe(prompts=rows_of(tmp_path / "tools.jsonl", [called])), "train", target)
    with pytest.raises(PromptError, match=r"training\.chat is true and the tokenizer of .* has no chat template"):
        asked(recipe(prompts=rows_of(tmp_path / "one.jsonl", [{"prompt": "Hi"}]), chat=True), "train", target)


def test_what_is_evaluated_is_left_out_and_counted(workplace: Path, target: Path) -> None:
    """Also in another spelling, and also those that the study does not measure."""
    rows_of(Path("mine.jsonl"), [{"prompt": f"What is {n}?"} for n in range(200)])
    rows_of(Path("tests.jsonl"), [{"id": n, "prompt": f"what is  {n}"} for n in range(20)])
    Path("configs/tasks.tsv").write_text("task\tsource\nquestions\ttests.jsonl\n")
    settings = yaml.safe_load(Path("configs/test.yaml").read_text()) | {"tasks": ["questions"], "prompts": 4}
    settings["training"] |= {"prompts": "mine.jsonl"}
    Path("configs/mine.yaml").write_text(yaml.safe_dump(settings))
    study = load_study(Path("configs/mine.yaml"))
    assert len(prompts_in_both(study, study.root)) == 20
    assert "20 training prompts are prompts of its tasks and are left out" in training(study)
    without = study.evaluated(study.root)
    found = [text for part in ("train", "heldout") for text in asked(study.training, part, target, without)]
    assert len(found) == 180 and not {normalized(text) for text in found} & without


def test_messages_that_the_template_refuses_are_named(tmp_path: Path, target: Path) -> None:
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system line') }}{% endif %}" + TEMPLATE
    (target / "chat_template.jinja").write_text(refusing)
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say 1"}]
    mine = recipe(prompts=rows_of(tmp_path / "mine.jsonl", [{"messages": turns}]))
    reason = r"mine\.jsonl:1: the chat template of .*target refuses these messages \(no system line\); change them"
    with pytest.raises(PromptError, match=reason):
        asked(mine, "heldout", target)
