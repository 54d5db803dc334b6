"""Spec-Bench's questions as a task file, on a real checkpoint: planned, checked, measured, by rows of tasks.tsv alone."""

from __future__ import annotations

import json
import os
import shutil
from hashlib import sha256
from pathlib import Path

import pytest
import yaml
from tokenizers import Tokenizer

from specrig import cli
from specrig.engines.native import Native
from specrig.measurement.records import read_records
from specrig.measurement.runner import measure
from specrig.report.quality_files import write_quality
from specrig.study.load import load_study
from specrig.study.problems import StudyError
from specrig.tasks import Prompt, PromptError
from specrig.tasks.chat import ChatForm, require_chat_template

SHARED = Path(__file__).parents[3] / "shared" / "data"
QUESTIONS, STORIES = SHARED / "spec_bench" / "question.jsonl", SHARED / "stories260K"
HEADER = "task\tsource\tsha256\tid_field\tprompt_field\tprompt_template\treference_field\twhere\tscorer\n"

pytestmark = pytest.mark.skipif(
    not (QUESTIONS.is_file() and STORIES.is_dir()),
    reason="needs ../shared/data/spec_bench and ../shared/data/stories260K, which are not both here",
)


def row(task: str, where: str, *, template: str = "", reference: str = "", scorer: str = "", pin: str = "") -> str:
    fields = [
        task,
        str(QUESTIONS),
        pin,
        "question_id",
        "" if template else "turns.0",
        template,
        reference,
        where,
        scorer,
    ]
    return "\t".join(fields) + "\n"


@pytest.fixture
def config(workplace: Path) -> Path:
    pin = sha256(QUESTIONS.read_bytes()).hexdigest()
    Path("configs/tasks.tsv").write_text(
        HEADER
        + row("translation", "category=translation", reference="reference.0", scorer="bleu chrf", pin=pin)
        # This checkpoint's context holds 512 tokens, an article has thousands.
        + row(
            "summarization",
            "category=summarization",
            template=r"{turns.0:.600}",
            reference="reference.0",
            scorer="rouge_l",
        )
        + row("mt_bench_writing", "category=writing|roleplay", scorer="distinct_2")
        + row("mt_bench_coding", "category=coding")
        + row("too_long", "category=rag")
    )
    Path("configs/pairs.tsv").write_text(f"pair\ttarget\tdraft\nstories\t{STORIES}\t{STORIES}\n")
    settings = {
        "study": "spec", "pairs": ["stories"], "prompts": 2, "max_new_tokens": 24, "threads": 1, "device": "cpu", "repeats": {"least": 2, "most": 2},
        "tasks": ["translation", "summarization", "mt_bench_writing", "mt_bench_coding"],
        "methods": [{"method": "draft_model", "k": 3}],
    }  # fmt: skip
    path = Path("configs/spec.yaml")
    path.write_text(yaml.safe_dump(settings))
    return path


def test_planned_measured_and_scored(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", str(config)]) == 0
    output = capsys.readouterr().out
    assert "4 cells in 1 job" in output
    assert "260K" in output, "the checkpoint's size is read from its config"
    study = load_study(config)
    measure(study, "native", "stories", ["draft_model"])
    folder = study.root / "records/native/stories/draft_model"
    index = json.loads((folder / "index.json").read_text())
    assert index["failed"] == {}
    questions = [json.loads(line) for line in QUESTIONS.read_text().splitlines()]
    tokenizer = Tokenizer.from_file(str(STORIES / "tokenizer.json"))
    for task, expected in (
        ("translation", "translation"),
        ("mt_bench_coding", "coding"),
        ("mt_bench_writing", "writing"),
    ):
        records = list(read_records(folder / f"{task}-k3-t0-b1.jsonl"))
        requested = [question for question in questions if question["category"] == expected][:2]
        assert [record.prompt_id for record in records] == [str(question["question_id"]) for question in requested]
        assert [record.prompt_tokens for record in records] == [
            len(tokenizer.encode(each["turns"][0]).ids) for each in requested
        ]
        # Target and draft are one model: everything is accepted, and the text is the target's own.
        assert all(record.run.tokens == record.baseline.tokens for record in records)
        assert all(sum(record.run.rounds.accepted) >= 17 for record in records)

    (study.root / "study.json").write_text(study.model_dump_json())
    (path, *_) = write_quality(study, study.root / "tables")
    header, *lines = path.read_text().splitlines()
    found = [dict(zip(header.split(","), line.split(","), strict=True)) for line in lines]
    assert {(each["task"], each["scorer"]) for each in found} == {
        ("mt_bench_writing", "distinct_2"), ("summarization", "rouge_l"), ("translation", "bleu"), ("translation", "chrf")
    }  # fmt: skip
    for each in found:
        assert each["note"] or (float(each["difference"]) == 0 and each["same"] == "True" and float(each["score"]) >= 0)
    assert any(each["scorer"] == "distinct_2" and float(each["score"]) > 0 for each in found)


def test_prompts_beyond_the_context_are_refused_while_planning(config: Path) -> None:
    settings = yaml.safe_load(config.read_text()) | {"tasks": ["too_long"]}
    config.write_text(yaml.safe_dump(settings))
    with pytest.raises(
        StudyError, match=r"prompt '\d+' of task 'too_long': it has \d+ tokens .* holds 512 .*: shorten it"
    ):
        load_study(config)


def test_prompts_are_checked_again_before_the_models_load(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As for a hub model, whose tokenizer only the job has."""

    def load(*_: object, **__: object) -> None:
        raise AssertionError("a model is being loaded")

    monkeypatch.setattr(Native, "__init__", load)
    study = load_study(config)
    measure(study.model_copy(update={"max_new_tokens": 480}), "native", "stories", ["draft_model"])
    assert "480 are to follow" in capsys.readouterr().err
    index = json.loads((study.root / "records/native/stories/draft_model/index.json").read_text())
    assert len(index["failed"]) == 4 and all("480 are to follow" in reason for reason in index["failed"].values())


def test_chat_templates_come_from_the_tokenizer(config: Path, tmp_path: Path) -> None:
    study = load_study(config)
    pair = study.paths.pair_files("stories", study.root)
    with pytest.raises(PromptError, match=r"the tokenizer of .* has no chat template, which task 't' needs"):
        require_chat_template("t", pair)
    folder = tmp_path / "chatty"
    shutil.copytree(STORIES, folder)
    for path in (folder, *folder.iterdir()):
        os.chmod(path, 0o755)  # noqa: PTH101
    template = (
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt "
        "%}[assistant]{% endif %}"
    )
    settings = json.loads((folder / "tokenizer_config.json").read_text()) | {"chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    chatty = pair.__class__("chatty", str(folder))
    prompt = ChatForm("t", require_chat_template("t", chatty)).rendered(Prompt("1", "hi"))
    assert prompt.text.removeprefix("<s>") == "[user] hi\n[assistant]"
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    ids = tokenizer(prompt.text)["input_ids"]
    assert ids.count(tokenizer.bos_token_id) == 1, "the first token stands there once"
