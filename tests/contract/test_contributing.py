"""The worked example of CONTRIBUTING.md works: its text, put where the page says, passes what the page says checks it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest

DRAFTS = """
from types import SimpleNamespace
import torch
from specrig.decoding.drafters import registry
method = registry()["repeat_last"]
context = SimpleNamespace(tokens=[[1, 7], [2, 9]], sampler=SimpleNamespace(device=torch.device("cpu")))
print(method(method.Options(limit=2), None).propose(context, 4).tokens.tolist())
"""
METHOD = "specrig/decoding/drafters/repeat_last.py"
HEAD = {f"specrig/heads/bigram/{file}.py" for file in ("__init__", "module", "training")}
HEAD.add("specrig/decoding/drafters/bigram.py")


@pytest.fixture(scope="module")
def package(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the examples as one more file in `drafters` and one more folder in `heads`."""
    source = tmp_path_factory.mktemp("package") / "src"
    shutil.copytree(repository / "src/specrig", source / "specrig", ignore=shutil.ignore_patterns("__pycache__"))
    blocks = re.findall(
        r"`src/(\S+\.py)`[^`]*:\n\n```python\n(.*?)```", (repository / "CONTRIBUTING.md").read_text(), flags=re.S
    )
    assert {place for place, _ in blocks} == {METHOD, *HEAD}
    for place, code in blocks:
        assert not (source / place).exists()
        (source / place).parent.mkdir(exist_ok=True)
        (source / place).write_text(code)
    return source


def run(package: Path, repository: Path, *arguments: str) -> str:
    """What Python prints in the repository with that package."""
    # Not a process of the pytest that runs this test: what those share would be left behind for a later checkout.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = inherited | {"PYTHONPATH": str(package)}
    done = subprocess.run([sys.executable, *arguments], cwd=repository, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_example_is_listed_and_drafts(package: Path, repository: Path) -> None:
    assert "repeat_last" in run(package, repository, "-m", "specrig", "methods")
    assert run(package, repository, "-c", DRAFTS).strip() == "[[7, 7], [9, 9]]"


@pytest.fixture(scope="module")
def passed(package: Path, repository: Path) -> set[tuple[str, str]]:
    """Which tests of the contracts pass for which example: the page's two commands in one, so that models are made
    once.
    """
    page = (repository / "CONTRIBUTING.md").read_text()
    assert "pytest tests/contract -k repeat_last" in page and "pytest tests/contract -k bigram" in page
    files = [f"tests/contract/test_{name}.py" for name in ("drafters", "replay", "heads")]
    chosen = ["-k", "repeat_last or bigram", "-rA", "-p", "no:cacheprovider"]
    log = run(package, repository, "-m", "pytest", *files, *chosen)
    found = re.findall(r"^PASSED \S+::(test_\w+)\[(.*)\]", log, flags=re.M)
    return {(example, test) for test, case in found for example in ("repeat_last", "bigram") if example in case}


def test_the_example_passes_the_contract_of_every_method(passed: set[tuple[str, str]]) -> None:
    """Each of the tests that the page promises ran, none was passed over."""
    assert {test for example, test in passed if example == "repeat_last"} >= {
        "test_greedy_equals_autoregressive",
        "test_a_batch_equals_its_rows_alone_and_their_accounting_adds_up",
        "test_sampled_distribution_is_the_targets",
        "test_stops_at_end_of_sequence",
        "test_the_host_waits_once_a_round",
    }


def test_the_toy_head_passes_the_contract_of_every_head(passed: set[tuple[str, str]]) -> None:
    """It is trained for a tiny target, resumed, loaded, refused for another one, and drafts losslessly."""
    assert {test for example, test in passed if example == "bigram"} >= {
        "test_it_is_made_and_its_curve_says_what_to_expect",
        "test_it_goes_on_after_a_kill",
        "test_another_target_or_another_build_is_refused",
        "test_it_drafts_losslessly",
        "test_a_head_learns_a_target_that_can_be_known",
        "test_greedy_equals_autoregressive",
        "test_sampled_distribution_is_the_targets",
    }


DOCUMENTS = """
import sys
from pathlib import Path
from synthetic import write_study
from specrig.report.documents.contents import contents
from specrig.report.documents.html import write_report
from specrig.report.documents.paper import write_paper
from specrig.report.documents.pdf import as_data
from specrig.report.table_files import write_tables
from specrig.report.study_data import read_study
from specrig.report.study_results import StudyResults
import json
out = Path(sys.argv[1])
study = write_study(out / "study", methods=("ngram", "draft_model"), ks=(2,), tasks=("code", "translation"), prompts=3)
write_tables(study, out / "tables")
write_report(study, out / "report.html")
printed = contents(StudyResults(read_study(study)), "print", ())
(out / "pdf.json").write_text(json.dumps(as_data(printed, {})))
write_paper(printed, {}, out / "paper")
"""


def test_a_table_is_one_entry_of_the_outline(repository: Path, tmp_path: Path) -> None:
    """The page's entry, put where the page says, is in tables/, in all three documents and in Snakemake's report."""
    page = (repository / "CONTRIBUTING.md").read_text()
    (entry,) = re.findall(r"before the entry `Table\(\"positions\", …\)`.*?```python\n(.*?)```", page, flags=re.S)
    source = tmp_path / "src"
    shutil.copytree(repository / "src/specrig", source / "specrig", ignore=shutil.ignore_patterns("__pycache__"))
    outline = source / "specrig/report/outline.py"
    before, anchor, after = outline.read_text().partition('            Table("positions"')
    outline.write_text(before + indent(entry.rstrip(), " " * 12) + ",\n" + anchor + after)
    environment = {**os.environ, "PYTHONPATH": f"{source}:{repository / 'tests/unit'}"}
    for arguments in (["-c", DOCUMENTS, tmp_path], ["-m", "specrig", "schema", "--folder", tmp_path / "schemas"]):
        done = subprocess.run(
            [sys.executable, *arguments], cwd=repository, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    caption = "The slowest method of each task, and its speedup."
    assert (tmp_path / "tables/slowest.csv").read_text().startswith("task,method,speedup\n")
    for file in ("tables/slowest.md", "report.html", "pdf.json", "tables/slowest.tex", "report/table-slowest.rst"):
        assert caption in (tmp_path / file).read_text(), file
    assert r"\input{tables/study-slowest}" in (tmp_path / "paper/main.tex").read_text()
    assert caption in (tmp_path / "paper/tables/study-slowest.tex").read_text()
