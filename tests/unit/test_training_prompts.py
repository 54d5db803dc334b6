"""What a target is asked in training: our corpus or the user's file, in its chat template where it has one, and no
prompt of an evaluation.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny import TINY, prompts_of
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specrig.corpus.example import PROMPT_FILES
from specrig.corpus.gather import explanation
from specrig.corpus.wording import normalized
from specrig.planning.estimate import training
from specrig.study.load import load_study
from specrig.study.overlap import prompts_in_both
from specrig.tasks import PromptError, read_prompts
from specrig.training.prompts import kept, plan, request_groups
from specrig.training.recipe import Recipe

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif "
    "%}"
)
LONG = {"sequences": 40, "heldout_sequences": 8, "sequence": 500}


def recipe(**settings: Any) -> Recipe:
    return Recipe.model_validate(TINY | {"text": LONG, **settings})


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


def texts(prompts: list[list[int]], folder: Path) -> list[str]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [tokenizer.decode(prompt) for prompt in prompts]


def test_instructions_where_the_target_has_a_template_else_texts_to_continue(tiny_corpus: Path, target: Path) -> None:
    corpus = tiny_corpus / "corpus"
    found = texts(prompts_of("train", recipe(), corpus, target), target)
    rows = [json.loads(line) for line in (corpus / "train.jsonl").open()]
    assert len(found) > 20 and set(found) <= {row["prompt"] for row in rows}
    asks = texts(prompts_of("train", recipe(), corpus, chatty(target)), target)
    explained = {explanation(row["prompt"], row["completion"])[0] for row in rows if row["task"] == "code"}
    known = explained | {row["instruction"] for row in rows}
    assert len(asks) > 20 and set(asks) <= {f"<user>{each}<assistant>" for each in known}
    assert all(
        any(word in ask for ask in asks)
        for word in ("Write a Python", "Explain what", "Translate into", "Summarize", "story")
    )
    assert set(texts(prompts_of("train", recipe(chat=False), corpus, target), target)) <= {
        row["prompt"] for row in rows
    }
    assert not set(asks) & set(texts(prompts_of("heldout", recipe(), corpus, target), target))


def test_a_template_that_is_wanted_and_not_there(tiny_corpus: Path, target: Path) -> None:
    with pytest.raises(PromptError, match=r"training\.chat is true and the tokenizer of .* has no chat template"):
        prompts_of("train", recipe(chat=True), tiny_corpus / "corpus", target)


def test_no_evaluation_prompt_of_any_task_is_a_training_prompt(tiny_corpus: Path) -> None:
    """Neither as it stands nor in another spelling, whatever the task reads: texts or instructions."""
    groups = request_groups(recipe(), tiny_corpus / "corpus", heldout=False)
    requests = [request for group in groups for request in group.requests or ()]
    trained = {text for request in requests for text in (request.text, request.turns[0]["content"])}
    spellings = set().union(*(request.texts() for request in requests))
    for task in PROMPT_FILES:
        evaluated = [prompt.text for prompt in read_prompts(tiny_corpus / "prompts" / f"{task}.jsonl")]
        assert len(evaluated) == TINY["corpus"]["prompts"]
        assert not trained & set(evaluated)
        assert not spellings & {normalized(text) for text in evaluated}
    assert normalized("Write a story!") == normalized(" write  A STORY") != normalized("Write two stories")


def rows_of(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_users_file(tmp_path: Path, target: Path) -> None:
    rows: list[dict[str, Any]] = [{"prompt": f"What is {n}?"} for n in range(100)]
    rows += [{"turns": [f"First {n}", "then more"]} for n in range(50)]
    rows += [
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Say {n}"}, {"role": "assistant", "content": "No."}]}
        for n in range(50)
    ]  # fmt: skip
    mine = recipe(prompts=rows_of(tmp_path / "mine.jsonl", rows), text=LONG | {"sequences": 400})
    trained = texts(prompts_of("train", mine, tmp_path, chatty(target)), target)
    held = texts(prompts_of("heldout", mine, tmp_path, target), target)
    assert "<user>What is 7?<assistant>" in trained + held and "<user>First 7<assistant>" in trained + held
    assert "<system>Be brief.<user>Say 7<assistant>" in trained + held, "the answer is the target's to write"
    assert not set(trained) & set(held) and len(held) == LONG["heldout_sequences"] and len(trained) > 150
    assert len(prompts_of("train", recipe(prompts=mine.prompts), tmp_path, target)) == LONG["sequences"]
    for row in (
        {"text": "no prompt"},
        {"messages": [{"role": "assistant", "content": "Hi"}]},
        {"prompt": " "},
        {"messages": ["hi"]},
        {"turns": "What is 7?"},
        {"turns": 7},
    ):
        with pytest.raises(PromptError, match=r"wrong\.jsonl:1: no prompt to train on; a row needs `prompt`"):
            request_groups(recipe(prompts=rows_of(tmp_path / "wrong.jsonl", [row])), tmp_path, heldout=False)
    with pytest.raises(PromptError, match="no such file of prompts"):
        request_groups(recipe(prompts=tmp_path / "gone.jsonl"), tmp_path, heldout=False)


def test_what_is_evaluated_is_left_out_and_counted(
    workplace: Path, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows_of(Path("mine.jsonl"), [{"prompt": f"What is {n}?"} for n in range(200)])
    rows_of(Path("tests.jsonl"), [{"id": n, "prompt": f"what is  {n}"} for n in range(20)])
    Path("configs/tasks.tsv").write_text("task\tsource\nquestions\ttests.jsonl\n")
    settings = yaml.safe_load(Path("configs/test.yaml").read_text()) | {"tasks": ["questions"], "prompts": 4}
    settings["training"] |= {"prompts": "mine.jsonl", "text": LONG | {"sequences": 400}}
    Path("configs/mine.yaml").write_text(yaml.safe_dump(settings))
    study = load_study(Path("configs/mine.yaml"))
    out = prompts_in_both(study, study.root)
    groups, count = kept(
        request_groups(study.training, study.root / "corpus", heldout=False), study.evaluated(study.root)
    )
    assert 12 <= count == len(out) <= 20, (
        "also those that the study does not measure; some of the file are held out from training"
    )
    assert f"{count} training prompts are prompts of its tasks and are left out" in training(study)
    found = texts(
        prompts_of("train", study.training, study.root / "corpus", target, study.evaluated(study.root)), target
    )
    assert f"{count} training prompts are prompts of the evaluation and were left out" in capsys.readouterr().err
    assert not {normalized(text) for text in found} & {normalized(f"What is {n}") for n in range(20)}
    assert len(found) == sum(len(group.requests or ()) for group in groups) > 100


def test_messages_that_the_template_refuses_are_named(tmp_path: Path, target: Path) -> None:
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system line') }}{% endif %}" + TEMPLATE
    (target / "chat_template.jinja").write_text(refusing)
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say 1"}]
    mine = recipe(
        prompts=rows_of(tmp_path / "mine.jsonl", [{"messages": turns}]),
        corpus=TINY["corpus"] | {"heldout_share": 0.001},
    )
    groups = request_groups(mine, tmp_path, heldout=False)
    reason = r"mine\.jsonl:1: the chat template of .*target refuses these messages \(no system line\); change them"
    with pytest.raises(PromptError, match=reason):
        next(plan(groups, mine, target, PreTrainedTokenizerFast.from_pretrained(target)))
