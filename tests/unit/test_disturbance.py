"""A machine that did other things is noticed: by the system's counters, by probes, by times that do not fit; and
measured again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
from matplotlib.text import Text
from synthetic import cell_records, write_study

from runs import own_study
from specrig import cli
from specrig.analysis.cells import cells_table
from specrig.analysis.claims import judge
from specrig.analysis.commands import Catalogue
from specrig.analysis.disturbance import column, disturbances, undisturbed
from specrig.analysis.efficiency import explained_efficiency
from specrig.audit.toy_pair import build
from specrig.cell import Cell
from specrig.measurement import machine_state
from specrig.measurement.machine_state import MachineState
from specrig.measurement.records import NOT_RECORDED, Load, Probe, Record, read_records, replicate_folder, write_records
from specrig.measurement.runner import measure
from specrig.measurement.signs import OTHERS
from specrig.provenance.load import between, moment, probe
from specrig.reporting.tables.files import write_tables
from specrig.results.conclusions import findings
from specrig.results.disturbed_cells import busy_throughout
from specrig.results.grid import markdown
from specrig.results.round_tables import efficiency_grid
from specrig.results.speed_tables import speedup_grid
from specrig.results.study_data import read_study
from specrig.results.study_results import StudyResults
from specrig.results.summary import CROSS_FITTED, MEAN, best_rows, disturbed_in, speedup_summary
from specrig.study.claims import Claim
from specrig.study.load import load_study

CELL = Cell(engine="native", pair="p", method="draft_model", k=4, task="code", temperature=0.0)
ENVIRONMENT = {"device": "cpu", "cpu": {"model": "m", "logical_cores": 2}, "torch": {"threads": 2}}
BUSY = (
    "import sys, time\nend = time.monotonic() + 2\nwhile time.monotonic() < end: "
    "sum(range(999))\nprint(time.process_time())"
)


def test_a_cell_whose_passes_fell_back_says_so() -> None:
    """Over a plain decoding without CUDA graphs a speedup is up to three times too large."""
    records = quiet()
    slow = records[3].run.model_copy(update={"fallbacks": ["CUDA graphs cannot be used"]})
    found = disturbances({"cell": [*records[:3], records[3].model_copy(update={"run": slow}), *records[4:]]}, {})
    assert [reason.text for reason in found["cell"]] == [
        "passes were slower than they can be: CUDA graphs cannot be used"
    ]
    kept = Record.model_validate_json(records[3].model_copy(update={"run": slow}).model_dump_json())
    assert kept.run.fallbacks == slow.fallbacks and "fallbacks" not in records[3].model_dump_json()


def quiet(replicates: int = 1, prompts: int = 8, environment_s: float = 1.0, alpha: float = 0.7) -> list[Record]:
    """Records as a quiet machine gives them: every generation alone on two processors."""
    load = Load(
        elapsed_s=environment_s, own_s=2 * environment_s, others_s=0.02, steal_s=0.0, waited_s=0.01, held_s=0.01
    )
    seen = Probe(when="2026-01-01T10:00:00+00:00", copy_gb_s=30.0, product_gflop_s=100.0, load_1min=2.0)
    return [
        record.model_copy(
            update={
                "run": record.run.model_copy(update={"load": load}),
                "baseline": record.baseline.model_copy(update={"load": load}),
                "before": seen,
                "after": seen,
            }
        )
        for replicate in range(replicates)
        for record in cell_records(CELL, alpha=alpha, prompts=prompts, length=40, replicate=replicate)
    ]


def reasons(records: list[Record], **others: list[Record]) -> list[tuple[int, str]]:
    found = disturbances({"cell": records, **others}, {CELL.method_key: ENVIRONMENT})
    return [(reason.replicate, reason.text) for reason in found["cell"]]


def loaded(records: list[Record], **changes: float) -> list[Record]:
    """The records with other readings beside each generation."""

    def changed(run: Any) -> Any:
        return run.model_copy(update={"load": run.load.model_copy(update=changes)})

    return [
        record.model_copy(update={"run": changed(record.run), "baseline": changed(record.baseline)})
        for record in records
    ]


def slower(record: Record, factor: float, side: str) -> Record:
    """One generation that took longer, its passes in proportion."""
    run = getattr(record, side)
    passes = {width: (calls, factor * spent) for width, (calls, spent) in run.target_passes.items()}
    return record.model_copy(
        update={side: run.model_copy(update={"decode_s": factor * run.decode_s, "target_passes": passes})}
    )


def test_a_quiet_cell_has_no_reason() -> None:
    assert reasons(quiet()) == []
    assert reasons(quiet(replicates=2)) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"others_s": 2 * OTHERS + 0.02}, "other processes took 26% of the processors it counts on"),
        ({"steal_s": 0.8}, "the host gave 29% of its processor time to others"),
        ({"waited_s": 0.6, "own_s": 1.4}, "its threads waited for a processor for 30% of their time"),
        ({"held_s": 0.3}, "it neither ran nor was ready to for 30% of the time"),
        ({"slept_s": 1.0}, "the machine was suspended for 16.0 s"),
    ],
)
def test_what_the_system_counted_is_judged(changes: dict[str, float], expected: str) -> None:
    found = reasons(loaded(quiet(), **changes))
    assert [replicate for replicate, _ in found] == [0]
    assert expected in found[0][1]
    below = {name: value / 3 for name, value in changes.items() if name not in ("slept_s", "own_s")}
    assert reasons(loaded(quiet(), **below)) == []


def test_threads_that_wait_for_each_other_are_no_disturbance() -> None:
    """An engine with three busy threads on two processors, alone and beside another process."""
    assert reasons(loaded(quiet(), own_s=2.0, waited_s=1.0)) == []
    assert reasons(loaded(quiet(), own_s=1.2, waited_s=1.8)) == [
        (0, "its threads waited for a processor for 27% of their time")
    ]


def test_others_on_processors_that_the_job_does_not_use_are_no_disturbance() -> None:
    records = loaded(quiet(), others_s=3.0)
    many = {**ENVIRONMENT, "cpu": {"model": "m", "logical_cores": 8}}
    assert disturbances({"cell": records}, {CELL.method_key: many})["cell"] == []
    found = disturbances({"cell": loaded(quiet(), others_s=7.0)}, {CELL.method_key: many})["cell"]
    assert "other processes took 50%" in found[0].text


def test_a_generation_that_was_held_is_named() -> None:
    records = quiet()
    records[3] = loaded([records[3]], held_s=0.9, elapsed_s=20.0)[0]
    assert any("one generation was held for 0.7 s" in text for _, text in reasons(records))


def test_generations_that_are_all_held_alike_are_judged_by_their_share() -> None:
    """A thread that waits for others while long prompts are read does so in each generation."""
    assert not reasons(loaded(quiet(environment_s=25.0), held_s=1.7))
    assert any(
        "neither ran nor was ready" in text for _, text in reasons(loaded(quiet(environment_s=25.0), held_s=3.0))
    )


def test_a_machine_that_could_do_less_beside_a_cell() -> None:
    slow = Probe(when="2026-01-01T10:05:00+00:00", copy_gb_s=11.0, product_gflop_s=60.0)
    hit = [record.model_copy(update={"after": slow}) for record in quiet()]
    often = [
        record.model_copy(
            update={"before": record.before.model_copy(update={"when": f"2026-01-01T11:0{number}:00+00:00"})}
        )
        for number, record in enumerate(quiet())
    ]
    texts = [text for _, text in reasons(hit, other=often)]
    assert texts[0] == "the machine copied at 11 GB/s beside it, at 30 usually in this study"
    assert "multiplied at 60 GFLOP/s" in texts[1]
    assert reasons(often, other=hit) == [], "what is usual in the study is what counts"
    untaken = [
        record.model_copy(update={"before": Probe(when=f"2026-01-01T12:0{number}:00+00:00")})
        for number, record in enumerate(quiet())
    ]
    assert reasons(hit, often=often, untaken=untaken)[0][1].startswith("the machine copied at 11 GB/s beside it")


def test_prompts_beside_which_both_ran_slower_are_no_disturbance() -> None:
    """The interval of the ratio says what a load did that slowed some prompts and not others."""
    slow = [1, 2, 3, 1, 3, 1, 2, 1]
    records = [
        slower(slower(record, factor, "run"), factor, "baseline") for record, factor in zip(quiet(), slow, strict=True)
    ]
    assert reasons(records) == []


def test_a_baseline_that_drifts_within_a_replicate_or_between_two() -> None:
    half = [slower(record, 1.4 if record.group >= 4 else 1.0, "baseline") for record in quiet()]
    assert any("slower in its second half" in text for _, text in reasons(half))
    second = [
        slower(slower(record, 1.6, "baseline"), 1.6, "run") if record.replicate else record for record in quiet(2)
    ]
    assert reasons(second) == [(1, "plain decoding was 38% slower than in another replicate")]
    usual = [
        slower(slower(record, 1.33, "baseline"), 1.33, "run") if record.replicate else record for record in quiet(2)
    ]
    assert reasons(usual) == [], "what a quiet virtual machine does by itself, and it cancels in each ratio"


@pytest.mark.parametrize("side", ["run", "baseline"])
def test_a_job_that_was_suspended_in_one_generation(side: str) -> None:
    records = quiet(replicates=2)
    records[11] = slower(records[11], 2000.0, side)
    found = reasons(records)
    assert {replicate for replicate, _ in found} == {1}
    assert any("1 generation took up to" in text and "times as long as the others' median" in text for _, text in found)


def test_an_efficiency_that_nothing_explains() -> None:
    assert explained_efficiency(quiet()) == pytest.approx(1.0, abs=0.06)
    records = [slower(record, 3.5 if record.group == 2 else 1.0, "run") for record in quiet()]
    assert any("its times do not fit each other" in text for _, text in reasons(records))


@pytest.mark.parametrize("factor", [1.0, 20.0])
def test_prompts_that_gain_differently_are_no_disturbance(factor: float) -> None:
    """Half of them accept nearly all drafts, half nearly none: ratios of sums are far from means of ratios."""
    records = quiet(alpha=0.98)[:4] + quiet(alpha=0.02)[4:]
    records = [slower(record, factor if record.group == 6 else 1.0, "run") for record in records]
    assert any("do not fit" in text for _, text in reasons(records)) is (factor > 1)


@pytest.mark.parametrize("factor", [1.0, 5.0])
def test_a_last_batch_of_fewer_prompts_is_no_disturbance(factor: float) -> None:
    """Batches of four, four and one, whose baseline decodes alone: the last gains nothing, and nothing is wrong."""
    records = [
        record.model_copy(
            update={
                "group": place // 4,
                "baseline_alone": True,
                "run": first.baseline,
                "baseline": first.baseline,
            }
        )
        for place, (record, first) in enumerate((record, quiet()[0]) for record in quiet(prompts=9))
    ]
    records = [slower(record, factor if record.group == 0 else 1.0, "run") for record in records]
    assert any("do not fit" in text for _, text in reasons(records)) is (factor > 1)


def test_records_without_readings_are_not_called_undisturbed() -> None:
    old = {CELL.name: cell_records(CELL, alpha=0.7, prompts=8)}
    assert column(old, disturbances(old, {})) == [NOT_RECORDED]
    old[CELL.name][2] = slower(old[CELL.name][2], 500.0, "run")
    assert "times as long" in column(old, disturbances(old, {}))[0], "their times still speak"


def test_two_busy_loops_beside_a_job_are_seen() -> None:
    machine = MachineState("cpu")
    begun = machine.begin()
    loops = [subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    while any(loop.poll() is None for loop in loops):
        sum(range(9999))
    spent = [float(loop.communicate()[0]) for loop in loops]
    load = machine.since(begun)
    assert load is not None
    assert load.others_s >= 0.9 * sum(spent) - 0.1, "all that they spent is counted, whatever else runs here"
    # As a machine of two processors would have seen it.
    records = loaded(quiet(), **{**load.model_dump(exclude={"held_s"}), "slept_s": 0.0})
    assert any("other processes took" in text for _, text in reasons(records))


HELD = """
import json, os, signal, sys, time
from specrig.measurement.machine_state import MachineState

machine = MachineState("cpu")
for number in range(12):
    begun, start = machine.begin(), time.perf_counter()
    end = time.process_time() + 0.02
    while time.process_time() < end:
        sum(range(999))
    if number == 5:
        os.kill(os.getpid(), signal.SIGSTOP)
    took = time.perf_counter() - start
    print(json.dumps({"took": took, "load": machine.since(begun).model_dump()}), flush=True)
"""


@pytest.mark.skipif(
    not Path("/proc/thread-self/schedstat").is_file(), reason="this system does not count how long threads waited"
)
def test_a_suspended_process_is_seen() -> None:
    child = subprocess.Popen([sys.executable, "-c", HELD], stdout=subprocess.PIPE, text=True)
    process = psutil.Process(child.pid)
    while process.status() != psutil.STATUS_STOPPED:
        assert child.poll() is None
        time.sleep(0.01)
    time.sleep(1)
    os.kill(child.pid, signal.SIGCONT)
    lines = [json.loads(line) for line in child.communicate()[0].splitlines()]
    assert lines[5]["load"]["held_s"] > 0.9
    records = quiet(prompts=12)
    for number, line in enumerate(lines):
        record = slower(records[number], line["took"] / records[number].run.decode_s, "run")
        records[number] = record.model_copy(
            update={"run": record.run.model_copy(update={"load": Load(**line["load"])})}
        )
    assert any("one generation was held for" in text for _, text in reasons(records))


@pytest.mark.parametrize(
    ("speeds", "expected", "made"),
    [
        ([50.0, 100.0, 99.0], [100.0, 99.0], 3),  # the first one alone is never believed
        ([100.0, 100.0, 50.0, 98.0, 97.0], [100.0, 98.0, 97.0], 5),  # one moment
        ([100.0, 100.0, 50.0, 51.0, 49.0, 50.0, 60.0, 50.0, 50.0, 50.0], [100.0, 51.0, 60.0], 10),  # a busy machine
    ],
)
def test_a_probe_of_a_bad_moment_is_made_again(
    speeds: list[float], expected: list[float], made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = list(speeds)

    def measured(device: str) -> dict[str, Any]:
        return {
            "when": "2026-01-01T10:00:00+00:00",
            "copy_gb_s": 30.0,
            "product_gflop_s": left.pop(0),
            "load_1min": 1.0,
        }

    monkeypatch.setattr(machine_state, "probe", measured)
    monkeypatch.setattr(machine_state, "REST_S", 0.0)
    machine = MachineState("cpu")
    found = [machine.probe(renew=True) for _ in expected]
    assert [one.product_gflop_s for one in found if one] == expected and len(speeds) - len(left) == made


def test_a_probe_says_what_the_machine_can_do() -> None:
    found = Probe.model_validate(probe("cpu"))
    assert found.product_gflop_s and found.product_gflop_s > 0
    assert found.copy_gb_s is None or found.copy_gb_s > 0


def test_children_count_as_the_jobs_own() -> None:
    before = moment(children=True)
    subprocess.run([sys.executable, "-c", "sum(range(10_000_000))"], check=True)
    assert (between(before, moment(children=True))["own_s"] or 0) > 0.05


def test_servers_elsewhere_are_not_asked() -> None:
    machine = MachineState("cpu", here=False)
    assert machine.begin() is None and machine.since(None) is None and machine.probe() is None


def write_quiet(folder: Path, change: Callable[[Record], Record] = lambda record: record) -> Path:
    """A synthetic study of two replicates with readings; `change` disturbs some of its records."""
    write_study(
        folder, methods=("draft_model", "ngram"), ks=(2, 4), tasks=("code", "translation"), prompts=8, replicates=2
    )
    load = quiet()[0].run.load
    for path in (folder / "records").rglob("*.jsonl"):
        records = []
        for record in read_records(path):
            sides = {side: getattr(record, side).model_copy(update={"load": load}) for side in ("run", "baseline")}
            records.append(change(record.model_copy(update=sides)))
        write_records(path, records)
    return folder


def hit(record: Record) -> Record:
    """Suspended in the second replicate of draft_model, k 4, code: it would be the fastest otherwise."""
    cell = record.cell
    chosen = (cell.method, cell.k, cell.task, record.replicate, record.group) == ("draft_model", 4, "code", 1, 0)
    return slower(record, 400.0, "baseline") if chosen else record


def test_a_disturbed_cell_is_marked_and_never_the_best(tmp_path: Path) -> None:
    study = read_study(write_quiet(tmp_path / "made_up", hit))
    assert {name for name, found in study.disturbances.items() if found} == {"native/tiny/draft_model/code-k4-t0-b1"}
    table = study.table
    assert (table["disturbed"] != "").sum() == 1 and table["disturbed"].str.startswith("replicate 1: ").sum() == 1
    assert len(undisturbed(table)) == len(table) - 1
    clean = table.assign(disturbed="", failed=False)
    marked = table.assign(failed=False)
    assert best_rows(clean).query("method == 'draft_model'")["k"].unique().tolist() == [4]
    assert best_rows(marked).query("method == 'draft_model'")["k"].unique().tolist() == [2]
    only = marked[marked["k"] == 4]
    summary = speedup_summary(only, study.records, study.tasks)
    draft = summary[summary["method"] == "draft_model"]
    assert draft["disturbed"].tolist() == ["code"]
    assert (
        disturbed_in(draft, "code").all()
        and disturbed_in(draft, MEAN).all()
        and not disturbed_in(draft, "translation").any()
    )
    assert "fastest lossless method is ngram" in findings(summary, best_rows(only), study.tasks)[0].answer


def test_a_mark_follows_every_number_that_a_disturbed_cell_is_part_of(tmp_path: Path) -> None:
    study = read_study(write_quiet(tmp_path / "made_up", hit))
    results = StudyResults(study)
    draft = results.speedups[results.speedups["method"] == "draft_model"]
    assert draft["k"].tolist() == [2] and draft["disturbed"].tolist() == [""], "its best k was not disturbed"
    chosen = draft["cross_fitted_ks"].item().split(", ")
    expected = "code" if "4" in chosen else ""
    assert draft["cross_fitted_disturbed"].tolist() == [expected]
    assert bool(disturbed_in(draft, CROSS_FITTED).item()) is bool(expected)

    every = study.table.assign(disturbed="replicate 1: planted", failed=False)
    grid = speedup_grid(speedup_summary(every, study.records, study.tasks), study.tasks, "made_up")
    assert grid.header[-1] == "the same, k chosen on other prompts"
    for row in grid.rows:
        for entry in row[grid.labels :]:
            assert entry.text.endswith(" ‡") and not entry.bold, "each number, and none is called the best"
    [found] = findings(results.speedups.assign(cross_fitted_disturbed="code"), every, study.tasks)
    assert "‡ at k = " in found.answer and "Every lossless method was disturbed" in found.explanation, (
        "named, with its mark"
    )
    assert (
        "‡"
        not in findings(
            speedup_summary(study.table.assign(disturbed="", failed=False), study.records, study.tasks),
            every,
            study.tasks,
        )[0].paragraph
    )


def test_marks_follow_the_costs_of_rounds_too(tmp_path: Path) -> None:
    from specrig.reporting.figures import ranking
    from specrig.reporting.figures.panels import SCREEN

    folder = write_quiet(tmp_path / "made_up", lambda record: loaded([record], steal_s=2.0)[0])
    results = StudyResults(read_study(folder))
    quiet = results.cells.assign(disturbed="")
    method = results.efficiency.header.index("method")
    assert all(row[method].text.endswith(" ‡") for row in results.efficiency.rows) and results.efficiency.notes
    assert "‡" not in markdown(efficiency_grid(quiet, "x"))
    marked, unmarked = (
        [text.get_text() for text in ranking.rounds(cells, SCREEN).findobj(Text) if "‡" in text.get_text()]
        for cells in (results.best, results.best.assign(disturbed=""))
    )
    assert len(marked) > 1 and not unmarked, "a mark, and what it means"


def test_report_and_tables_say_so(tmp_path: Path, report_text: Callable[[Path], str]) -> None:
    folder = write_quiet(tmp_path / "made_up", hit)
    page = report_text(folder)
    assert "1 of 8 cells was disturbed: the machine did other things" in page
    assert "specrig remeasure results/made_up/study.json" in page
    assert 'id="disturbed"' in page
    assert "1 of the study&#39;s 8 cells was disturbed" in page
    write_tables(folder, folder / "tables")
    cells = pd.read_csv(folder / "tables" / "cells.csv")
    assert cells["disturbed"].notna().sum() == 1
    output = (folder / "tables" / "cells.md").read_text()
    assert output.count("‡") == 2 and "‡ disturbed:" in output, "one row, and what the sign means"
    assert r"$^\ddagger$" in (folder / "tables" / "cells.tex").read_text()


def test_a_machine_that_was_busy_throughout_is_named_once(tmp_path: Path, report_text: Callable[[Path], str]) -> None:
    folder = write_quiet(tmp_path / "made_up", lambda record: loaded([record], steal_s=2.0)[0])
    page = report_text(folder)
    assert page.count("busy with other work throughout: 8 of 8 cells are marked ‡, and all are shown") == 1
    assert "Every lossless method was disturbed" not in page and "8 of the study&#39;s 8 cells" not in page
    assert "the fastest lossless method is" in page and "specrig remeasure results/made_up/study.json" in page
    results = StudyResults(read_study(folder))
    assert (
        results.abstract[0] == results.disturbance_warning and results.disturbance_warning not in results.later_warnings
    )
    assert all(
        entry.text.endswith(" ‡") for entry in speedup_grid(results.speedups, results.study.tasks, "x").rows[0][-3:]
    )
    some = results.cells.assign(disturbed=["its times do not fit each other"] * 8)
    assert not busy_throughout(some), "times that do not fit are no busy machine"
    assert not busy_throughout(results.cells.assign(disturbed=["", *list(results.cells["disturbed"])[1:]]))


def test_a_quiet_study_says_nothing(tmp_path: Path, report_text: Callable[[Path], str]) -> None:
    folder = write_quiet(tmp_path / "made_up")
    page = report_text(folder)
    assert "specrig remeasure" not in page and 'id="disturbed"' not in page
    assert (read_study(folder).table["disturbed"] == "").all()


@pytest.mark.parametrize(
    ("metric", "verdict"), [("speedup", "not measured (disturbed)"), ("acceptance_length", "reproduced")]
)
def test_a_disturbed_cell_gives_no_verdict_on_speed(metric: str, verdict: str) -> None:
    table = cells_table(quiet()).assign(target="a/target", draft="a/draft", hardware="NVIDIA A100", dtype="float32")
    value = float(table[metric].iloc[0])
    claim = Claim(
        id="c", source="s", target="a/target", draft="a/draft", method="draft_model", k="4", task="code", temperature="0",
        metric=metric, low=value, high=value,
    )  # fmt: skip
    catalogue = Catalogue({}, [], {})
    assert judge([claim], table.assign(disturbed=""), catalogue)[0].verdict == "reproduced"
    found = judge([claim], table.assign(disturbed="suspended"), catalogue)[0]
    assert found.verdict == verdict, found.reason


@pytest.fixture
def study_file(workplace: Path) -> Path:
    """A tiny study of two replicates, one method, T 0 and 1."""
    pair = build(workplace / "toy_pair")
    table = f"pair\ttarget\tdraft\np\t{pair.target}\t{pair.draft}\n"
    keys = {
        "temperatures": [0, 1],
        "methods": [{"method": "ngram", "k": [2, 4]}],
        "replicates": 2,
        "max_new_tokens": 16,
    }
    keys |= {"remeasure": {"times": 0}, "tables": {"reported": None}}
    study = load_study(own_study("tiny", table, ["abcabcd", "dedefa"], task="t", **keys))
    file = study.root / "study.json"
    file.parent.mkdir(parents=True)
    file.write_text(study.model_dump_json())
    return file


def run_measure(file: Path, replicate: int) -> int:
    job = ["--engine", "native", "--pair", "p", "--method", "ngram", "--replicate", str(replicate)]
    return cli.main(["stage", "measure", "--study", str(file), *job])


def test_replicates_and_their_remeasuring(study_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = Path("results/tiny/records/native/p/ngram")
    folders = [replicate_folder(job, number) for number in range(2)]
    one = load_study(study_file).model_copy(update={"replicates": 1})
    measure(one, "native", "p", ["ngram"])
    before = {path: path.read_bytes() for path in job.rglob("*.jsonl")}
    assert run_measure(study_file, 0) == 0 and run_measure(study_file, 1) == 0
    assert all(path.read_bytes() == content for path, content in before.items()), "one replicate more measures it alone"
    assert len(list(folders[1].glob("*.jsonl"))) == len(before) == 4
    first, second = ([*read_records(folder / "t-k4-t1-b1.jsonl")] for folder in folders)
    assert {record.replicate for record in first} == {0} and {record.replicate for record in second} == {1}
    assert not {record.seed for record in first} & {record.seed for record in second}
    greedy = [[record.run.tokens for record in read_records(folder / "t-k4-t0-b1.jsonl")] for folder in folders]
    assert greedy[0] == greedy[1]
    record = first[0]
    assert record.run.load is not None and record.baseline.load is not None and record.run.load.elapsed_s > 0
    assert record.before is not None and record.after is not None and record.before.product_gflop_s
    study = read_study(study_file.parent)
    assert [len(records) for records in study.cells.values()] == [4] * 4, "two prompts, twice"

    # Whatever this machine did just now is taken out, and one file disturbed.
    for path in job.rglob("*.jsonl"):
        records = [loaded([each], **quiet()[0].run.load.model_dump())[0] for each in read_records(path)]  # type: ignore[union-attr]
        records = [each.model_copy(update={"before": None, "after": None}) for each in records]
        write_records(path, [steady(each, held=path == folders[1] / "t-k2-t0-b1.jsonl") for each in records])
    index = {folder: (folder / "index.json").read_bytes() for folder in folders}
    before = {path: path.read_bytes() for path in job.rglob("*.jsonl")}
    capsys.readouterr()
    assert cli.main(["remeasure", str(study_file), "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert [(each["cell"], each["replicate"]) for each in output["disturbed"]] == [("native/p/ngram/t-k2-t0-b1", 1)]
    assert output["quarantined"] == [str(folders[1] / "t-k2-t0-b1.jsonl")]
    assert (folders[0] / "index.json").read_bytes() == index[folders[0]]
    assert "t-k2-t0-b1" not in json.loads((folders[1] / "index.json").read_text())["cells"]
    assert len(read_study(study_file.parent).cells["native/p/ngram/t-k2-t0-b1"]) == 2, "what is left can be read"
    assert run_measure(study_file, 1) == 0
    after = {path: path.read_bytes() for path in job.rglob("*.jsonl")}
    assert {path for path in before if before[path] != after[path]} == {folders[1] / "t-k2-t0-b1.jsonl"}
    assert len(json.loads((folders[1] / "index.json").read_text())["cells"]) == 4
    assert [path.name for path in folders[1].glob("*.disturbed*")] == ["t-k2-t0-b1.jsonl.disturbed-1"]

    path = folders[1] / "t-k2-t0-b1.jsonl"
    records = [loaded([each], **quiet()[0].run.load.model_dump())[0] for each in read_records(path)]  # type: ignore[union-attr]
    write_records(
        path, [steady(each.model_copy(update={"before": None, "after": None}), held=True) for each in records]
    )
    capsys.readouterr()
    assert cli.main(["remeasure", "--study", str(study_file)]) == 0
    text = capsys.readouterr().out
    assert "native/p/ngram/t-k2-t0-b1, replicate 1: " in text and "1 record files quarantined" in text


def steady(record: Record, *, held: bool) -> Record:
    """The record with the same time for every token and pass; `held` as if it had been suspended for half of each
    generation.
    """
    update = {}
    for side in ("run", "baseline"):
        run = getattr(record, side)
        passes = {1: (len(run.rounds.emitted), 1e-3 * len(run.rounds.emitted))}
        load = run.load.model_copy(update={"held_s": 0.5 if held else 0.0})
        seconds = 1.1e-3 * len(run.rounds.emitted)
        update[side] = run.model_copy(
            update={"decode_s": seconds, "target_passes": passes, "draft_passes": {}, "load": load}
        )
    return record.model_copy(update=update)


def test_a_study_without_disturbed_cells_is_left_alone(
    tmp_path: Path, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_quiet(workplace / "results" / "test")
    Path("configs/test.yaml").write_text(Path("configs/test.yaml").read_text())
    assert cli.main(["remeasure", "configs/test.yaml"]) == 0
    assert "no cell is disturbed" in capsys.readouterr().out
    assert cli.main(["remeasure", "--study", "configs/test.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"disturbed": [], "quarantined": []}
    assert all((path / "index.json").is_file() for path in (folder / "records").glob("*/*/*"))


def test_a_replicate_that_the_study_does_not_have(study_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_measure(study_file, 2) == 2
    assert "it has 2, counted from 0" in capsys.readouterr().err


def test_records_of_replicates_that_left_the_study_are_not_read(tmp_path: Path) -> None:
    folder = write_quiet(tmp_path / "made_up")
    config = json.loads((folder / "study.json").read_text())
    assert {record.replicate for record in read_study(folder).records} == {0, 1}
    for left in ({**config, "replicates": 1}, {key: value for key, value in config.items() if key != "replicates"}):
        (folder / "study.json").write_text(json.dumps(left))
        assert {record.replicate for record in read_study(folder).records} == {0}
