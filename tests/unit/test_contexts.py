"""Contexts: the same requests behind text, as long as the study says, and no longer than the model holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import synthetic
import yaml

from specrig.measurement.records import read_records
from specrig.measurement.runner import measure
from specrig.measurement.task_prompts import prepared
from specrig.report.figures.panels import SCREEN
from specrig.report.figures.sweeps import along
from specrig.report.study_data import read_study
from specrig.report.study_results import StudyResults
from specrig.study.load import load_study
from specrig.study.problems import StudyError
from specrig.study.study import Study
from specrig.tasks import PromptError
from specrig.tasks.variants import Variant, variant_of, variants

WORDS = ("red fox ran home", "a dog sat down here", "old men sing loud songs", "cats nap")


def changed(config: Path, **changes: Any) -> Study:
    config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | changes))
    return load_study(config)


def with_text(times: int = 4) -> str:
    """A file of text that precedes the requests."""
    Path("text.jsonl").write_text(
        "".join(json.dumps({"id": n, "prompt": text}) + "\n" for n, text in enumerate(WORDS * times))
    )
    return "text.jsonl"


def test_names_of_variants() -> None:
    assert variants("chat", 1, [256, 4096]) == ["chat@256", "chat@4096"]
    assert variant_of("chat@4096") == Variant("chat", context=4096)


def test_prompts_are_as_long_as_the_context_allows_and_end_alike(letters: Path) -> None:
    study = changed(letters, contexts=[48, 96], methods=[{"method": "ngram", "k": 3}], context_text=with_text())
    assert study.tasks == ["own@48", "own@96"]
    pair = study.paths.pair_files("tiny", study.root)
    short, long = (prepared(study, task, pair, study.root) for task in study.tasks)
    for one, other in zip(short, long, strict=True):
        assert one.text.rpartition("\n\n")[2] == other.text.rpartition("\n\n")[2]
        assert other.text.endswith(one.text) and len(one.text) <= 32 and 80 - 6 <= len(other.text) <= 80
    assert len({prompt.text.partition("\n\n")[0] for prompt in long}) == 3, "each request has a passage of its own"
    measure(study, "native", "tiny", ["ngram"])
    records = list(read_records(study.root / "records/native/tiny/ngram/own@96-k3-t0-b1.jsonl"))
    assert [record.prompt_tokens for record in records] == [len(prompt.text) for prompt in long]
    assert all(record.run.tokens == record.baseline.tokens for record in records)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"contexts": [96, 256]}, r"contexts\[1\]: 256 tokens, the target of pair 'tiny' holds 128"),
        ({"contexts": [16]}, r"a context of 16 tokens leaves no room for a prompt and 16 new ones"),
        ({"contexts": [96, 96]}, r"96 is listed 2 times"),
        ({"contexts": [96], "context_text": "gone.jsonl"}, r"context_text: gone\.jsonl: no such file"),
    ],
)
def test_contexts_that_cannot_be_are_refused_while_planning(letters: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(StudyError, match=says):
        changed(letters, **changes)


def test_a_conversation_has_a_context_of_its_own(letters: Path) -> None:
    Path("configs/tasks.tsv").write_text("task\tsource\tturns\nown\tprompts.jsonl\t2\n")
    with pytest.raises(StudyError, match="task 'own' has turns, whose context is the conversation"):
        changed(letters, contexts=[96])


def test_too_little_text_and_too_long_requests_are_named(letters: Path) -> None:
    study = changed(letters, contexts=[28, 120], context_text=with_text(times=1))
    pair = study.paths.pair_files("tiny", study.root)
    Path("text.jsonl").write_text(Path("text.jsonl").read_text().splitlines()[0] + "\n")
    with pytest.raises(PromptError, match=r"context_text holds \d+ tokens, its context needs 104: name a longer file"):
        prepared(study, "own@120", pair, study.root)
    with pytest.raises(PromptError, match=r"prompt .0. of task .own@28. has 16 tokens, its context leaves room for 12"):
        prepared(study, "own@28", pair, study.root)


def test_a_report_names_the_method_that_falls_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = ("code@256", "code@1024", "code@4096")
    monkeypatch.setattr(synthetic, "ALPHAS", dict(zip(tasks, (0.8, 0.6, 0.15), strict=True)))
    folder = synthetic.write_study(tmp_path / "far", tasks=tasks, ks=(4,), methods=("draft_model", "ngram"), prompts=6)
    results = StudyResults(read_study(folder))
    (sentence,) = results.contexts_sentences
    assert "is the first to fall below plain decoding" in sentence or "loses most" in sentence
    assert "Most of the loss is due to acceptance." in sentence and "at context 4096" in sentence
    figure = along(results.contexts, "context", SCREEN)
    assert figure.axes[0].get_xscale() == "log"
    assert results.contexts_grid.header[2:4] == ["context", "prompt tokens"]
