"""Two studies compared: what changed is found, what did not is not, and the explanation names what can have done it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import synthetic
from scipy import stats
from synthetic import write_study

from specrig.analysis.changes import Change, _difference, changes
from specrig.cli import main
from specrig.results.study_data import read_study
from specrig.results.study_results import StudyResults
from specrig.sharing.compare.sentences import headline
from specrig.sharing.compare.setup_differences import BOTH, SetupDifference
from specrig.sharing.compare.sources import ComparisonError, opened
from specrig.sharing.compare.study_comparison import ComparedStudy, StudyComparison
from specrig.sharing.compare.tables import _methods_of, as_values

METHODS = ("draft_model", "ngram", "medusa")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of 24 cells, run twice. Read-only: `twin` makes copies."""
    return write_study(tmp_path_factory.mktemp("a") / "demo", methods=METHODS, ks=(2, 4), prompts=8, replicates=2)


@pytest.fixture
def twin(base: Path, tmp_path: Path) -> Path:
    """A copy of `base`, to be changed."""
    return Path(shutil.copytree(base, tmp_path / "twin"))


def change_records(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    for path in folder.glob("records/**/*.jsonl"):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for record in records:
            change(record)
        path.write_text("".join(json.dumps(record) + "\n" for record in records))


def change_environments(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    for path in folder.glob("records/**/environment.json"):
        environment = json.loads(path.read_text())
        change(environment)
        path.write_text(json.dumps(environment))


def slower(factor: float, method: str | None = None) -> Callable[[dict[str, Any]], None]:
    """A change of records that makes drafting methods, or one of them, slower by `factor`."""

    def change(record: dict[str, Any]) -> None:
        if method in (None, record["cell"]["method"]):
            record["run"]["decode_s"] *= factor

    return change


def compared(a: Path, b: Path) -> StudyComparison:
    return StudyComparison(ComparedStudy("A", str(a), read_study(a)), ComparedStudy("B", str(b), read_study(b)))


def test_a_study_is_the_same_as_its_copy(base: Path, twin: Path) -> None:
    found = compared(base, twin)
    assert len(found.cells) == len(found.a.study.cells) == 24
    assert {row.change.speedup.ratio for row in found.cells} == {1.0}
    assert not any(row.changed or row.explanation for row in found.cells)
    assert found.coverage == ((24, 24), (24, 24))
    assert not found.differences
    assert any("every token and every round is the same" in sentence for sentence in headline(found))


def test_a_slower_method_is_found_and_put_down_to_what_can_have_slowed_it(base: Path, twin: Path) -> None:
    change_records(twin, slower(1.5, "ngram"))
    change_records(twin, lambda record: record.update(digest="another"))
    change_environments(twin, lambda environment: environment["git"].update(commit="1" * 40))
    change_environments(twin, lambda environment: environment["models"]["target"].update(sha256="1" * 64))
    found = compared(base, twin)
    changed = [row for row in found.cells if row.changed]
    assert {row.change.cell.method for row in changed} == {"ngram"}
    assert len(changed) == 8
    for row in changed:
        assert row.change.relative.ratio == pytest.approx(1 / 1.5, rel=0.02)
        assert row.speedup_changed
        assert not row.acceptance_changed
        # The rounds are the same, so the models' other digests did nothing.
        assert row.explanation == "code"
    assert "8 of 24 cells changed their speedup" in " ".join(headline(found))
    means = {change.cell.method for change, beyond in found.means if beyond}
    assert means == {"ngram"}


def test_what_moves_all_cells_alike_is_a_shift_and_no_cells_own_change(base: Path, twin: Path) -> None:
    change_records(twin, slower(1.25))
    found = compared(base, twin)
    assert found.changes.shift.ratio == pytest.approx(0.8)
    assert not any(row.speedup_changed for row in found.cells)
    assert all(row.change.relative.ratio == pytest.approx(1) for row in found.cells)


def test_another_acceptance_is_found_and_put_down_to_the_models(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(synthetic.SHIFTS, "draft_model", 0.3)
    other = write_study(tmp_path / "demo", methods=METHODS, ks=(2, 4), prompts=8, replicates=2)
    found = compared(base, other)
    assert any("digests, the prompts and the settings are the same" in sentence for sentence in headline(found))

    change_environments(other, lambda environment: environment["models"]["target"].update(sha256="1" * 64))
    found = compared(base, other)
    changed = [row for row in found.cells if row.acceptance_changed]
    assert changed
    assert {row.change.cell.method for row in changed} == {"draft_model"}
    assert all(row.change.length.ratio > 1 for row in changed)
    assert {row.explanation for row in changed} == {"target of embedded"}
    assert any("differ (see below), which can explain it" in sentence for sentence in headline(found))


def test_the_same_digests_acquit_another_commit(base: Path, twin: Path) -> None:
    change_environments(twin, lambda environment: environment["git"].update(commit="1" * 40))
    assert [(each.what, each.effect) for each in compared(base, twin).differences] == [
        ("code that measures nothing", "nothing that was measured")
    ]
    change_records(twin, lambda record: record.update(digest="another"))
    assert [(each.what, each.a, each.b) for each in compared(base, twin).differences] == [("code", "0" * 12, "1" * 12)]


def test_another_machine_explains_speeds_and_acceptance_by_rounding_alone(base: Path, twin: Path) -> None:
    change_records(twin, slower(0.7, "ngram"))
    change_environments(
        twin, lambda environment: environment["cpu"].update(model="another processor", cores=8, logical_cores=16)
    )
    change_environments(twin, lambda environment: environment["torch"].update(threads=16))
    found = compared(base, twin)
    assert [(each.what, each.effect) for each in found.differences] == [
        ("processor", "speed, acceptance by rounding alone"),
        ("threads", "speed, acceptance by rounding alone"),
    ]
    assert {row.explanation for row in found.cells if row.speedup_changed} == {"processor, threads"}


def test_generations_of_processors_of_one_name_are_told_apart_where_both_were_recorded(
    base: Path, twin: Path, tmp_path: Path
) -> None:
    change_environments(twin, lambda environment: environment["cpu"].update(generation="family 25, model 17"))
    assert compared(base, twin).differences == []
    other = Path(shutil.copytree(twin, tmp_path / "other"))
    change_environments(other, lambda environment: environment["cpu"].update(generation="family 26, model 2"))
    assert [(each.what, each.a, each.b) for each in compared(twin, other).differences] == [
        ("processor's generation", "family 25, model 17", "family 26, model 2")
    ]


def test_studies_that_ran_once_say_what_their_intervals_leave_out(tmp_path: Path) -> None:
    sides = [write_study(tmp_path / name, methods=("draft_model",), ks=(2,), prompts=4) for name in ("one", "other")]
    sentences = " ".join(headline(compared(*sides)))
    assert "neither study ran its jobs twice" in sentences
    assert "Both ran their jobs once" in sentences
    assert "The jobs of A and B ran once: these intervals" in sentences


def test_more_prompts_are_compared_one_by_one_and_other_prompts_as_samples(base: Path, tmp_path: Path) -> None:
    fewer = write_study(tmp_path / "fewer", methods=METHODS, ks=(2, 4), prompts=5)
    row = compared(fewer, base).cells[0]
    assert (row.change.units, row.change.paired) == ((5, 5), True)
    change_records(fewer, lambda record: record.update(prompt_tokens=21))
    found = compared(fewer, base)
    assert (found.cells[0].change.units, found.cells[0].change.paired) == ((5, 8), False)
    assert ("prompts of code", "5", "8, 0 of them the same by id and length") in [
        (each.what, each.a, each.b) for each in found.differences
    ]


def test_intervals_are_those_of_students_and_welchs_tests() -> None:
    random = np.random.default_rng(1)
    a = pd.Series(random.normal(0.3, 0.1, 6), index=list("abcdef"))
    b = pd.Series(random.normal(0.4, 0.2, 8), index=list("abcdefgh"))
    estimate, units, paired = _difference(a, b)
    expected = stats.ttest_rel(b[a.index], a)
    assert (units, paired) == ((6, 6), True)
    assert Change(estimate).p_value == pytest.approx(expected.pvalue)
    assert np.log(Change(estimate).interval) == pytest.approx(list(expected.confidence_interval()))

    b.index = pd.Index(list("uvwxyzab"))
    estimate, units, paired = _difference(a, b)
    expected = stats.ttest_ind(b, a, equal_var=False)
    assert (units, paired) == ((6, 8), False)
    assert Change(estimate).p_value == pytest.approx(expected.pvalue)
    assert np.log(Change(estimate).interval) == pytest.approx(list(expected.confidence_interval()))


def test_two_runs_of_the_same_thing_seldom_differ(tmp_path: Path) -> None:
    """What runs do to all cells and to single cells is no change: 20 pairs of studies, of which one in twenty may be
    alarmed.
    """
    random = np.random.default_rng(7)
    alarms, tested, alone = 0, 0, 0
    cells = read_study(
        write_study(tmp_path / "demo", methods=("draft_model", "ngram"), ks=(2, 4), prompts=6, replicates=2)
    ).cells
    for _ in range(20):
        sides = []
        for _ in range(2):
            whole = random.normal(0, 0.08, 2)
            side = {}
            for name, records in cells.items():
                single = whole + random.normal(0, 0.04, 2)
                side[name] = [
                    record.model_copy(
                        update={
                            "run": record.run.model_copy(
                                update={
                                    "decode_s": record.run.decode_s
                                    * float(np.exp(single[record.replicate] + random.normal(0, 0.05)))
                                }
                            )
                        }
                    )
                    for record in records
                ]
            sides.append(side)
        found = [change.relative for change in changes(*sides).cells]
        alone += sum(change.excludes_one for change in found)
        tested += len(found)
        alarms += min(change.p_value for change in found) < 0.05 / len(found)
    assert tested == 20 * len(cells)
    assert alone / tested < 0.1
    assert alarms <= 4


@pytest.mark.parametrize("what", ["nothing", "no study", "no records", "two studies", "nothing common"])
def test_what_cannot_be_compared_is_said_in_a_sentence(
    what: str, base: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other, says = {
        "nothing": (tmp_path / "missing", "does not exist: name a results folder"),
        "no study": (tmp_path, "is no study"),
        "no records": (tmp_path / "empty", "holds no records"),
        "two studies": (tmp_path / "two", "holds 2 studies: name one of"),
        "nothing common": (tmp_path / "other", "have no cell in common, nor a method that ran in both"),
    }[what]
    if what == "no records":
        other.mkdir()
        shutil.copy(base / "study.json", other)
    if what == "two studies":
        for name in ("one", "other"):
            shutil.copytree(base, other / name)
    if what == "nothing common":
        write_study(other, methods=("suffix",), pairs=("another",), ks=(2,), prompts=2)
    assert main(["compare", str(base), str(other)]) == 2
    sentences = capfd.readouterr().err
    assert "✗ ComparisonError" in sentences
    assert says in sentences
    assert len(sentences.strip().splitlines()) == 2


def test_studies_of_other_pairs_stand_side_by_side(
    base: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = write_study(
        tmp_path / "other", methods=("draft_model", "ngram", "suffix"), pairs=("another",), ks=(2, 4), prompts=4
    )
    page = tmp_path / "page.html"
    assert main(["compare", str(base), str(other), "--json", "--html", str(page)]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["cells"] == []
    assert "no cell in common" in found["headline"][0]
    assert "pairs (embedded in A, another in B)" in found["headline"][0]
    assert any(
        "only one study ran it" in sentence and "medusa in A; suffix in B" in sentence for sentence in found["headline"]
    )
    held = {(row["method"], row["study"]): row for row in found["methods"]}
    assert set(held) == {(method, study) for method in ("draft_model", "ngram") for study in "ab"}
    summary = StudyResults(read_study(base)).speedups.set_index("method")
    assert held["ngram", "a"]["speedup"] == pytest.approx(summary.loc["ngram", "geometric_mean"])
    assert held["ngram", "a"]["k"] == summary.loc["ngram", "k"]
    assert "no cell in common" in page.read_text()
    assert main(["compare", str(base), str(other)]) == 0
    text = capfd.readouterr().out
    assert all(
        re.search(rf"{method} +{pair}", text)
        for method in ("draft_model", "ngram")
        for pair in ("A embedded", "B another")
    )


def test_cells_that_were_measured_once_are_no_agreement(base: Path, twin: Path) -> None:
    assert headline(compared(base, twin))[0].startswith("Both hold identical records of all 24 common cells")
    change_records(twin, slower(1.5, "ngram"))
    found = compared(base, twin)
    assert len(found.identical) == 16
    assert "16 of 24 common cells have identical records" in headline(found)[0]


def test_what_one_did_not_record_is_said(base: Path, twin: Path) -> None:
    change_environments(twin, lambda environment: environment.update(memory={"last_level_cache": 32e6}))
    assert any("A did not record last-level cache" in sentence for sentence in headline(compared(base, twin)))


def test_the_command_prints_and_writes_all_of_it(
    base: Path, twin: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    change_records(twin, slower(1.5, "ngram"))
    assert main(["compare", str(base.parent), str(twin)]) == 0
    text = capfd.readouterr().out
    assert "8 of 24 cells changed their speedup" in re.sub(r"\s+", " ", text)

    page = tmp_path / "page.html"
    assert main(["compare", str(base), str(twin), "--json", "--html", str(page)]) == 0
    values = json.loads(capfd.readouterr().out)
    assert values == as_values(compared(base, twin))
    assert sum(cell["relative"]["beyond_chance"] for cell in values["cells"]) == 8
    html = page.read_text()
    assert 'name="viewport"' in html
    assert "prefers-color-scheme: dark" in html
    assert "<svg" in html
    assert not re.search(r'(?:src|href)="(?!#|data:)(?!#)[^"]', html), "the page needs nothing outside it"
    assert html.count("<strong>") >= 8


def test_a_published_study_is_compared_from_its_records(repository: Path, tmp_path: Path) -> None:
    published = repository / "reports/published/amd-epyc-quick"
    with opened(published) as study:
        cells = pd.read_csv(published / "tables/cells.csv")
        assert len(study.cells) == len(cells)
    with pytest.raises(ComparisonError), opened(tmp_path):
        pass


def test_the_jobs_of_a_difference_are_named_by_the_shorter_list() -> None:
    jobs = {("native", "pair", method) for method in ("draft_model", "ngram", "eagle", "medusa")}

    def whose(*methods: str) -> str:
        own = frozenset(key for key in jobs if key[2] in methods)
        return _methods_of(SetupDifference("draft", "one", "other", BOTH, own), jobs | {("native", "other", "ngram")})

    assert whose("draft_model", "ngram", "eagle", "medusa") == "all of pair"
    assert whose("draft_model", "ngram", "eagle") == "all of pair but medusa"
    assert whose("ngram") == "ngram"
