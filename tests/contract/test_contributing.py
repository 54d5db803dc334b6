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

METHOD = "specrig/decoding/drafters/repeat_last.py"
HEAD = {f"specrig/heads/bigram/{file}.py" for file in ("__init__", "module", "training")}
HEAD.add("specrig/decoding/drafters/bigram.py")


PROGRAM = """
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from synthetic import write_study

from specrig import cli
from specrig.decoding.drafters import registry
from specrig.report.documents.contents import contents
from specrig.report.documents.html import write_report
from specrig.report.documents.inline_svg import NOTHING
from specrig.report.documents.paper import write_paper
from specrig.report.documents.pdf import as_data
from specrig.report.figures.drawings import file_names
from specrig.report.study_data import read_study
from specrig.report.study_results import StudyResults
from specrig.report.table_files import write_tables

cli.main(["methods"])
method = registry()["repeat_last"]
context = SimpleNamespace(tokens=[[1, 7], [2, 9]], sampler=SimpleNamespace(device=torch.device("cpu")))
print("drafted", method(method.Options(limit=2), None).propose(context, 4).tokens.tolist())

out = Path(sys.argv[1])
study = write_study(out / "study", methods=("ngram", "draft_model"), ks=(2,), tasks=("code", "translation"), prompts=3)
for name in file_names():  # tables are what is asked for
    (study / "figures" / name).parent.mkdir(parents=True, exist_ok=True)
    (study / "figures" / name).write_text(f'<svg id="{NOTHING}"></svg>')
write_tables(study, out / "tables")
write_report(study, out / "report.html")
printed = contents(StudyResults(read_study(study)), "print", ())
(out / "pdf.json").write_text(json.dumps(as_data(printed, {})))
write_paper(printed, {}, out / "paper")
cli.main(["schema", "--folder", str(out / "schemas")])

sys.exit(pytest.main(sys.argv[2:]))
"""
CAPTION = "The slowest method of each task, and its speedup."


@pytest.fixture(scope="module")
def made(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a copy of the package makes and says (in said.txt) that has the page's examples where the page says: one more
    file in `drafters`, one more folder in `heads`, one more entry of the outline.
    """
    page, folder = (repository / "CONTRIBUTING.md").read_text(), tmp_path_factory.mktemp("made")
    source = folder / "src"
    shutil.copytree(repository / "src/specrig", source / "specrig", ignore=shutil.ignore_patterns("__pycache__"))
    blocks = re.findall(r"`src/(\S+\.py)`[^`]*:\n\n```python\n(.*?)```", page, flags=re.S)
    assert {place for place, _ in blocks} == {METHOD, *HEAD}
    for place, code in blocks:
        assert not (source / place).exists()
        (source / place).parent.mkdir(exist_ok=True)
        (source / place).write_text(code)
    (entry,) = re.findall(r"before the entry `Table\(\"positions\", …\)`.*?```python\n(.*?)```", page, flags=re.S)
    outline = source / "specrig/report/outline.py"
    before, anchor, after = outline.read_text().partition('            Table("positions"')
    outline.write_text(before + indent(entry.rstrip(), " " * 12) + ",\n" + anchor + after)
    # The page's two commands are one here, so that models are made once.
    assert "pytest tests/contract -k repeat_last" in page and "pytest tests/contract -k bigram" in page
    files = [f"tests/contract/test_{name}.py" for name in ("drafters", "replay", "heads")]
    chosen = ["-k", "repeat_last or bigram", "-rA", "-p", "no:cacheprovider"]
    # Not a process of the pytest that runs this test: what those share would be left behind for a later checkout.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = inherited | {"PYTHONPATH": f"{source}:{repository / 'tests/unit'}", "COLUMNS": "200"}
    command = [sys.executable, "-c", PROGRAM, str(folder), *files, *chosen]
    done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "said.txt").write_text(done.stdout)
    return folder


def passed(made: Path, example: str) -> set[str]:
    """Which tests of the contracts pass for an example."""
    tests = re.findall(r"^PASSED \S+::(test_\w+)\[(.*)\]", (made / "said.txt").read_text(), flags=re.M)
    return {test for test, case in tests if example in case}


def test_the_example_is_listed_and_drafts(made: Path) -> None:
    listed, _, drafted = (made / "said.txt").read_text().partition("\ndrafted ")
    assert "repeat_last" in listed and drafted.startswith("[[7, 7], [9, 9]]\n")


def test_the_example_passes_the_contract_of_every_method(made: Path) -> None:
    """Each of the tests that the page promises ran, none was passed over."""
    assert passed(made, "repeat_last") >= {
        "test_greedy_equals_autoregressive",
        "test_a_batch_equals_its_rows_alone_and_their_accounting_adds_up",
        "test_sampled_distribution_is_the_targets",
        "test_stops_at_end_of_sequence",
        "test_the_host_waits_once_a_round",
    }


def test_the_toy_head_passes_the_contract_of_every_head(made: Path) -> None:
    """It is trained for a tiny target, resumed, loaded, refused for another one, and drafts losslessly."""
    assert passed(made, "bigram") >= {
        "test_it_is_made_and_its_curve_says_what_to_expect",
        "test_it_goes_on_after_a_kill",
        "test_another_target_or_another_build_is_refused",
        "test_it_drafts_losslessly",
        "test_a_head_learns_a_target_that_can_be_known",
        "test_greedy_equals_autoregressive",
        "test_sampled_distribution_is_the_targets",
    }


def test_a_table_is_one_entry_of_the_outline(made: Path) -> None:
    """It is in tables/, in all three documents and in Snakemake's report."""
    assert (made / "tables/slowest.csv").read_text().startswith("task,method,speedup\n")
    for file in ("tables/slowest.md", "report.html", "pdf.json", "tables/slowest.tex", "report/table-slowest.rst"):
        assert CAPTION in (made / file).read_text(), file
    assert r"\input{tables/study-slowest}" in (made / "paper/main.tex").read_text()
    assert CAPTION in (made / "paper/tables/study-slowest.tex").read_text()
