"""A publication tells nothing of the machine, holds what its tables follow from, and a change anywhere in it is named."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import write_study
from test_pdf import inflated

from specrig.audit.multiple_testing import REFERENCE
from specrig.cli import main
from specrig.measurement.attempts import attempt_file
from specrig.measurement.records import SCHEMA_VERSION, read_records
from specrig.results.study_data import read_study
from specrig.sharing import archive, publish, scrub
from specrig.sharing.archive import unpack
from specrig.sharing.manifest import PublicationError, file_hashes, read_manifest
from specrig.sharing.publish import publish as publish_study
from specrig.sharing.publish import unpacked
from specrig.sharing.table_differences import compare_csv
from specrig.sharing.verify import verify
from specrig.study.load import load_study
from specrig.study.study import Study

PUBLISHED = sorted(
    path.parent for path in (Path(__file__).parents[2] / "reports" / "published").glob("*/manifest.json")
)
USER, HOST, HOME = "jdoe42", "buildbox7.example.org", "/home/jdoe42"
CONFIG = {
    "study": "demo",
    "pairs": ["embedded"],
    "tasks": ["code", "private"],
    "methods": [{"method": "draft_model", "k": [2, 4]}, {"method": "ngram", "k": [2, 4]}],
    "prompts": 3,
    "max_new_tokens": 24,
    "servers": [],
    "replicates": 2,
}
SECRET = "the patient\u2028was seen"


def finished(workplace: Path) -> Study:
    """A finished study of the working directory with traces of its machine wherever a run leaves them."""
    data = workplace / "private.jsonl"
    data.write_text(
        "".join(json.dumps({"id": f"private-{n}", "prompt": SECRET, "reference": SECRET}) + "\n" for n in range(3))
    )
    table = workplace / "configs" / "tasks.tsv"
    row = {"task": "private", "source": str(data), "scorer": "chrf"}
    header = table.read_text().partition("\n")[0].split("\t")
    unused = row | {"task": "unused", "source": str(workplace / "others.jsonl")}
    with table.open("a") as file:
        for each in (unused, row):
            file.write("\t".join(each.get(column, "") for column in header) + "\n")
    study = load_study(CONFIG)
    write_study(
        study.root,
        methods=("draft_model", "ngram"),
        ks=(2, 4),
        tasks=CONFIG["tasks"],
        prompts=3,
        length=24,
        replicates=2,
    )
    (study.root / "study.json").write_text(study.model_dump_json())
    (study.root / "prompts").mkdir()
    prompts = ({"id": f"code-{n}", "prompt": "def f():", "reference": "    the library's own text"} for n in range(3))
    (study.root / "prompts" / "code.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    for path in study.root.rglob("environment.json"):
        environment = json.loads(path.read_text())
        environment["models"]["target"]["source"] = f"{HOME}/models/llama"
        environment["engine"] = {"name": "native", "options": {"url": f"http://{HOST}:8000"}}
        environment["platform"] = f"Linux on {HOST.split('.')[0]}"
        path.write_text(json.dumps(environment))
    for path in study.root.rglob("*.jsonl"):
        if "records" in path.parts:
            texts = {"text": SECRET, "baseline_text": SECRET, "ends": [len(SECRET)] * CONFIG["max_new_tokens"]}
            lines = [json.loads(line) | texts for line in path.read_text().splitlines()]
            path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    for task in CONFIG["tasks"]:  # attempts that do not count
        path = study.root / f"records/native/embedded/draft_model/{task}-k2-t0-b1.jsonl"
        shutil.copyfile(path, attempt_file(path, 2))
    index = study.root / "records/native/embedded/ngram/index.json"
    content = json.loads(index.read_text())
    content["cells"].pop("code-k2-t0-b1")
    content["failed"] = {
        "code-k2-t0-b1": f"OSError: {HOME}/cache/x.bin: No space left, {USER}; http://{HOST}:8000 fell silent"
    }
    index.write_text(json.dumps(content))
    place = "native,embedded,{},,{},0.0,token identity,2–4,{},,{},True,{} of {} outputs identical (100 %)"
    rows = [("draft_model", task, *[12] * 4) for task in CONFIG["tasks"]]
    rows += [("ngram", "code", *[9] * 4), ("ngram", "private", *[12] * 4)]
    exact = "native,,{},,,1.0,exact distribution,{},20480,0.5,,,within chance of the target's distribution"
    lines = [
        "engine,pair,method,variant,task,temperature,test,ks,samples,p_value,identical,passed,finding",
        *(place.format(*row) for row in rows),
        *(exact.format(method, k) for method in ("draft_model", "ngram") for k in (2, 4)),
        f"native,embedded,autoregressive,,code,0.0,{REFERENCE},0,1,,,,not compared: {HOME}/x is gone",
    ]
    (study.root / "audit").mkdir()
    (study.root / "audit" / "records.csv").write_text("\n".join(lines) + "\n")
    return study


@pytest.fixture(scope="module")
def publication(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Iterator[Path]:
    """Published once; tests that change it work on a copy."""
    workplace = tmp_path_factory.mktemp(USER)
    shutil.copytree(repository / "configs", workplace / "configs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workplace)
        patch.setattr(scrub.socket, "gethostname", lambda: HOST)
        patch.setattr(scrub.getpass, "getuser", lambda: USER)
        folder, notes = publish_study(finished(workplace), None, workplace / "published")
        assert any("private" in note for note in notes)
    yield folder


@pytest.fixture
def copy(publication: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(publication, tmp_path / "copy"))


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): (
            gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        ).decode()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pdf"
    }


def write_hashes(folder: Path) -> None:
    """Make the hashes agree again, as somebody would who wants a change to pass."""
    for index in (folder / "records").rglob("index.json"):
        cells: dict[str, list[str]] = {}
        for _, line in archive.read_lines(index.parent):
            cells.setdefault(archive.Record.model_validate_json(line).cell.slug, []).append(line)
        content = json.loads(index.read_text())
        for slug, entry in content["cells"].items():
            entry["sha256"] = sha256("".join(f"{line}\n" for line in cells[slug]).encode()).hexdigest()
        index.write_text(json.dumps(content))
    manifest = read_manifest(folder)
    manifest.files = file_hashes(folder)
    (folder / "manifest.json").write_text(manifest.model_dump_json())


def checked(folder: Path, *, render: bool = False) -> tuple[bool, list[str]]:
    lines: list[str] = []
    good = not verify(folder, lines.append, render=render).wrong
    return good, [re.sub(r"^\[\d+/\d+\] ", "", line) for line in lines]  # without how far it had come


def change_record(folder: Path, change: Callable[[dict], None]) -> dict:
    """Rewrite the first record of a job; returns it as it was."""
    path = folder / "records/native/embedded/draft_model/records.jsonl.gz"
    lines = gzip.decompress(path.read_bytes()).decode().split("\n")
    before = json.loads(lines[0])
    record = json.loads(lines[0])
    change(record)
    path.write_bytes(archive.compressed("\n".join([json.dumps(record), *lines[1:]])))
    return before


def test_nothing_of_the_machine_or_of_the_users_data_is_published(publication: Path) -> None:
    found = contents(publication)
    for name, text in found.items():
        for trace in (USER, HOST, "buildbox7", "/home/", ":8000", str(publication.parent.parent)):
            assert trace not in text, f"{name} tells {trace}"
    records = [
        json.loads(line)
        for name, text in found.items()
        if name.endswith("records.jsonl.gz")
        for line in text.split("\n")
        if line
    ]
    texts = {record["cell"]["task"]: record["text"] for record in records}
    assert texts == {"code": SECRET, "private": ""}  # what a model wrote on embedded prompts stays
    assert not [record for record in records if record["ends"] and not record["text"]], "nor the lengths of its words"
    assert all("patient" not in text for name, text in found.items() if "records" not in name and name != "report.html")
    assert all("library's own text" not in text and "def f()" not in text for text in found.values())
    assert not [name for name in found if re.search(r"prompts|safetensors|\.png$|\.tex$", name)]
    rows = {line.partition("\t")[0]: line for line in found["tasks.tsv"].split("\n")}
    assert "\tprivate.jsonl\t" in rows["private"] and "code" in rows, "the study's own row, without its path"
    assert "unused" not in rows and "pairs.tsv" in found, "another's row with a path of this machine stayed at home"
    environment = json.loads(found["records/native/embedded/ngram/environment.json"])
    assert environment["models"]["target"]["source"] == "llama"
    assert environment["engine"]["options"]["url"] == scrub.SERVER
    failed = json.loads(found["records/native/embedded/ngram/index.json"])["failed"]
    assert failed == {"code-k2-t0-b1": f"OSError: x.bin: No space left, hidden; {scrub.SERVER} fell silent"}


def test_files_are_small_and_the_report_finds_its_neighbours(publication: Path) -> None:
    assert publication.name == "synthetic-processor-demo"
    assert max(path.stat().st_size for path in publication.rglob("*") if path.is_file()) <= archive.LIMIT
    printed, report = (publication / "report.pdf").read_bytes(), (publication / "report.html").read_text()
    assert printed.startswith(b"%PDF-")
    titles = b"".join([printed, *inflated(printed)])
    assert ("Quality of the outputs" in report) == (b"Quality of the outputs" in titles) is True
    links = [link for link in re.findall(r'(?:src|href)="([^"]+)"', report) if not link.startswith(("#", "data:"))]
    assert report.count("<svg") >= 5 and "tables/cells.csv" in links and "records/native/embedded/ngram/" in links
    assert all((publication / link).exists() for link in links), links


def test_what_was_published_follows_from_its_records(publication: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, lines = checked(publication, render=True)
    assert good, lines
    assert {"✓ tables/cells.csv: recomputed", "✓ figures/heatmap.svg: rendered again"} <= set(lines)
    assert (
        main(["verify", str(publication), "--no-render"]) == 0
        and "follow from the published records" in capsys.readouterr().out
    )


def test_every_replicate_is_published_and_read_back(publication: Path) -> None:
    folders = sorted(
        path.parent.relative_to(publication / "records").as_posix() for path in publication.rglob("index.json")
    )
    job = "native/embedded/draft_model"
    assert folders[:2] == [job, f"{job}/replicate-1"] and len(folders) == 4
    with unpacked(publication) as results:
        found = read_study(results).cells["native/embedded/draft_model/code-k2-t0-b1"]
    assert sorted((record.replicate, record.prompt_id) for record in found) == [
        (r, f"code-{n}") for r in (0, 1) for n in range(3)
    ]


def test_attempts_that_do_not_count_are_published_and_judged(copy: Path, tmp_path: Path) -> None:
    job = copy / "records/native/embedded/draft_model"
    slugs = [f"{task}-k2-t0-b1" for task in sorted(CONFIG["tasks"])]
    restored = unpack(copy, tmp_path / "restored") / job.relative_to(copy)
    assert [path.name for path in sorted(restored.glob("*.attempt-*"))] == [f"{slug}.jsonl.attempt-2" for slug in slugs]
    assert list(read_records(restored / f"{slugs[0]}.jsonl.attempt-2")) == list(
        read_records(restored / f"{slugs[0]}.jsonl")
    )

    (job / "attempt-2.jsonl.gz").rename(job / "attempt-1.jsonl.gz")  # as if a later, no quieter attempt counted
    write_hashes(copy)
    passed, lines = checked(copy)
    assert not passed
    for slug in slugs:
        assert any(f"cell {slug}: attempt 2 counts, though attempt 1 was disturbed no more" in line for line in lines)


def test_a_changed_number_in_a_table_is_named_even_with_new_hashes(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy / "tables" / "cells.csv"
    table = pd.read_csv(path)
    table.loc[3, "speedup"] *= 1.001
    table.to_csv(path, index=False)
    assert main(["verify", str(copy)]) == 1
    assert "tables/cells.csv: hash\n    changed since it was published" in capsys.readouterr().out
    write_hashes(copy)
    good, lines = checked(copy)
    row = table.loc[3]
    named = [line for line in lines if "column speedup: published" in line]
    assert not good and len(named) == 1
    assert f"method {row.method}, k {row.k}, task {row.task}" in named[0] and str(row.speedup) in named[0]


def test_a_report_or_figure_that_is_not_its_records_is_named(copy: Path) -> None:
    """Other libraries place letters elsewhere: then nothing is compared, and the way to compare is named."""
    for name, old, new in (
        ("report.html", "<td", "<td title='9.99'"),
        ("figures/heatmap.svg", "<path d=", "<path d='M 1 2 L 3 4' data="),
    ):
        text = (copy / name).read_text()
        (copy / name).write_text(text.replace(old, new, 1))
    (copy / "figures/order.svg").unlink()
    write_hashes(copy)
    good, lines = checked(copy, render=True)
    wrong = [line for line in lines if line.startswith("✗")]
    assert not good and wrong == [
        f"✗ {name}: rendered again" for name in ("figures/heatmap.svg", "figures/order.svg", "report.html")
    ]
    assert any(line.startswith("    line ") and "title='9.99'" in line for line in lines)
    manifest = read_manifest(copy)
    manifest.libraries["matplotlib"] = "3.0"
    (copy / "manifest.json").write_text(manifest.model_dump_json())
    good, lines = checked(copy, render=True)
    assert good and any("git checkout" in line and "matplotlib 3.0" in line for line in lines)


def test_a_changed_score_is_named(copy: Path) -> None:
    path = copy / "scores.jsonl.gz"
    first, *rest = gzip.decompress(path.read_bytes()).decode().split("\n")
    score = json.loads(first)
    score["statistics"][0] += 5
    path.write_bytes(archive.compressed("\n".join([json.dumps(score), *rest])))
    write_hashes(copy)
    good, lines = checked(copy)
    named = [line for line in lines if f"task {score['task']}" in line and "column score: published" in line]
    assert not good and len(named) == 1 and f"method {score['method']}" in named[0]


@pytest.mark.parametrize("forged", [False, True])
def test_a_changed_token_count_is_named(copy: Path, forged: bool) -> None:
    record = change_record(copy, lambda record: record["run"]["rounds"]["emitted"].__setitem__(0, 99))
    if forged:
        write_hashes(copy)
    good, lines = checked(copy)
    text = "\n".join(lines)
    slug = "code-k2-t0-b1"
    assert not good
    assert f"cell {slug}, prompt {record['prompt_id']}, run:" in text and "its rounds emitted" in text
    assert (f"cell {slug}: records whose hash is not the one in index.json" in text) is not forged
    assert "task code, temperature 0.0, batch_size 1, column acceptance_length: published" in text


def test_tokens_taken_away_where_rounds_agree_show_in_the_tables(copy: Path) -> None:
    def shorten(record: dict) -> None:
        record["run"]["tokens"].pop()
        record["run"]["rounds"]["emitted"][-1] -= 1

    change_record(copy, shorten)
    write_hashes(copy)
    good, lines = checked(copy)
    assert not good and any("k 2, task code" in line and "column tokens: published" in line for line in lines)
    assert not any("its rounds emitted" in line for line in lines)


def test_a_first_pass_that_verified_drafts_is_a_round_of_its_own(copy: Path) -> None:
    """As in transformers, whose first pass takes drafts beside the prompt: what it emitted stands in both counts."""

    def with_the_first(record: dict) -> None:
        first = {"drafted": 0, "depth": 0, "accepted": 0, "emitted": record["run"]["prefill_tokens"]}
        for name, value in first.items():
            record["run"]["rounds"][name].insert(0, value)

    before = change_record(copy, with_the_first)
    assert sum(before["run"]["rounds"]["emitted"]) == len(before["run"]["tokens"]) - before["run"]["prefill_tokens"]
    assert not any("its rounds emitted" in line for line in checked(copy)[1])
    change_record(copy, lambda record: record["run"]["tokens"].pop())
    assert any("its rounds emitted" in line for line in checked(copy)[1])


def test_missing_extra_and_broken_files_are_named(copy: Path) -> None:
    (copy / "tables" / "speedup.md").unlink()
    (copy / "notes.txt").write_text("x")
    path = copy / "records/native/embedded/ngram/records.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-20])
    good, lines = checked(copy)
    text = "\n".join(lines)
    assert not good
    assert "tables/speedup.md: hash\n    missing" in text and "notes.txt: hash\n    not in the manifest" in text
    assert "records.jsonl.gz: cannot be unpacked" in text and "tables: not recomputed" in text


def test_tables_of_newer_code_are_no_fault_of_a_publication(copy: Path) -> None:
    for end in ("csv", "md"):
        (copy / "tables" / f"speedup.{end}").unlink()
    write_hashes(copy)
    good, lines = checked(copy)
    assert good and lines.count("    this code computes it, the publication does not have it") == 2


def test_columns_of_another_version_are_told_from_changed_numbers(copy: Path) -> None:
    path = copy / "tables" / "cells.csv"
    table = pd.read_csv(path)
    table.drop(columns="alpha").to_csv(path, index=False)
    write_hashes(copy)
    good, lines = checked(copy)
    assert good and "    column alpha: this code computes it, the publication does not have it" in lines
    assert any("computes more than SpecRig" in line for line in lines)

    table.assign(beta=1.0).to_csv(path, index=False)
    manifest = read_manifest(copy)
    manifest.commit = "f" * 40
    (copy / "manifest.json").write_text(manifest.model_dump_json())
    write_hashes(copy)
    good, lines = checked(copy)
    assert not good and "    column beta: published, and this code does not compute it" in lines
    assert any("Other code made this publication" in line and "f" * 40 in line for line in lines)
    manifest = read_manifest(copy)
    manifest.dirty = True
    (copy / "manifest.json").write_text(manifest.model_dump_json())
    _, lines = checked(copy)
    assert any("Other code made this publication" in line for line in lines)


def test_a_publication_is_rendered_anew_from_its_own_records(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(copy)
    (copy / "tables" / "cells.md").write_text("as older code wrote it")
    (copy / "figures" / "heatmap.svg").unlink()
    capsys.readouterr()
    assert main(["publish", str(copy), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"folder": str(copy), "notes": []}
    after = contents(copy)
    assert before.keys() == after.keys()
    assert {name for name in after if after[name] != before[name]} <= {"manifest.json"}
    assert checked(copy)[0]
    change_record(copy, lambda record: record["run"]["tokens"].pop())
    with pytest.raises(PublicationError, match=r"records.jsonl.gz was changed since it was published"):
        publish.rerender(copy)


@pytest.mark.parametrize("folder", PUBLISHED, ids=[path.name for path in PUBLISHED])
def test_what_the_repository_publishes_follows_from_its_records(folder: Path) -> None:
    """Fails after a change of what tables say: `specrig publish <folder>` renders the publication anew from its
    records.
    """
    good, lines = checked(folder)
    assert good, "\n".join(line for line in lines if not line.startswith("✓"))
    assert max(path.stat().st_size for path in folder.rglob("*")) <= archive.LIMIT


def test_records_of_a_later_schema_are_refused_with_the_code_to_take(copy: Path) -> None:
    path = copy / "manifest.json"
    path.write_text(path.read_text().replace(f'"record_schema": {SCHEMA_VERSION}', '"record_schema": 7'))
    with pytest.raises(PublicationError, match=r"record schema 7.*verify with the code that made it, SpecRig"):
        checked(copy)


def test_what_is_not_finished_or_in_the_way_is_not_published(workplace: Path) -> None:
    study = finished(workplace)
    to = workplace / "published"
    (to / "mine").mkdir(parents=True)
    (to / "mine" / "thesis.txt").touch()
    with pytest.raises(PublicationError, match="holds something else: take another name with --as"):
        publish_study(study, "mine", to)
    assert (to / "mine" / "thesis.txt").exists()
    (study.root / "audit" / "records.csv").unlink()
    with pytest.raises(PublicationError, match=r"audit/records.csv does not exist"):
        publish_study(study, None, to)
    (study.root / "records/native/embedded/draft_model/index.json").unlink()
    with pytest.raises(PublicationError, match=r"4 cells are not measured, e\.g\. native/embedded/draft_model"):
        publish_study(study, None, to)
    assert [path.name for path in to.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("audit/records.csv", b"\xff\xfe", "records.csv: cannot be read"),
        ("models/embedded/draft/training.jsonl", b"\xff\xfe", "training.jsonl: cannot be read"),
        ("records/native/embedded/draft_model/code-k2-t0-b1.jsonl.attempt-2", b"[\n", "attempt-2:1: not a record"),
        (
            "records/native/embedded/draft_model/code-k2-t0-b1.jsonl.attempt-2",
            b"[" * 100_000,
            "attempt-2:1: not a record",
        ),
    ],
)
def test_a_damaged_file_that_would_be_published_is_named(
    name: str, content: bytes, place: str, workplace: Path
) -> None:
    study = finished(workplace)
    path = study.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    with pytest.raises(PublicationError, match=rf"{path.name}.*; restore the file") as raised:
        archive.pack(read_study(study.root), [], workplace / "packed", [])
    assert place in str(raised.value)


def test_a_trace_that_slips_through_stops_the_publication(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(archive.compressed('{"x": 1}\n{"x": "/srv/jdoe42/y"}\n'))
    with pytest.raises(PublicationError, match=r"a.jsonl.gz:2 holds '/srv/jdoe42'"):
        scrub.check_no_traces(tmp_path, ["/srv/jdoe42"], [])
    scrub.check_no_traces(tmp_path, ["/srv/jdoe4"], [])


def test_large_jobs_are_divided_and_read_back_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "LIMIT", 300)
    lines = [json.dumps({"n": n, "noise": sha256(str(n).encode()).hexdigest()}) for n in range(50)]
    parts = archive._parts(lines)
    assert len(parts) > 9 and all(len(part) <= 300 for part in parts)
    for number, part in enumerate(parts, 1):
        (tmp_path / f"records-{number}.jsonl.gz").write_bytes(part)
    assert [line for _, line in archive.read_lines(tmp_path)] == lines


def test_hardware_names_the_gpu_before_the_processor() -> None:
    from specrig.results.study_data import MeasuredJob, StudyData

    jobs = [
        MeasuredJob(
            "native", "p", "a", {}, environment={"cpu": {"model": "AMD EPYC"}, "gpus": [{"name": "NVIDIA H200"}]}
        ),
        MeasuredJob("native", "p", "b", {}, environment={"cpu": {"model": "AMD EPYC"}, "gpus": []}),
    ]
    assert publish.hardware(StudyData(Path(), {}, jobs)) == ["NVIDIA H200", "AMD EPYC"]


@given(
    st.sampled_from(["/home/a/b", "/data/x.bin", "~/models/m", "file:///tmp/a/b", "C:\\Users\\a\\m", "/a-b/c.d/e_f/"]),
    st.sampled_from(["", "OSError: ", "eagle=", "('", "see "]),
    st.sampled_from(["", " is gone", "')", ", then"]),
)
def test_paths_are_cut_to_their_last_part(path: str, before: str, after: str) -> None:
    last = re.split(r"[/\\]", path.rstrip("/"))[-1]
    assert scrub.scrub_text(f"{before}{path}{after}", []) == f"{before}{last}{after}"


@pytest.mark.parametrize(
    "text",
    ["meta-llama/Llama-3.1-8B", "https://a.org/b/c", "tokens/s", "results/quick/models/x", "../shared/data/x", "1/2"],
)
def test_what_is_no_path_of_the_machine_stays(text: str) -> None:
    assert scrub.scrub_text(text, ["vm"]) == text


@given(st.data())
def test_any_changed_value_is_named_by_row_and_column(data: st.DataObject) -> None:
    import tempfile

    frame = pd.DataFrame(
        {"method": ["a", "a", "b"], "k": [1, 2, 1], "x": [0.1, 2.5, -3.0], "y": [1e-7, float("nan"), 9.0]}
    )
    row, column = data.draw(st.integers(0, 2)), data.draw(st.sampled_from(["x", "y"]))
    value = data.draw(st.floats(-10, 10).filter(lambda value: not abs(value - frame.loc[row, column]) <= 1e-8))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tables").mkdir()
        frame.to_csv(folder / "ours.csv", index=False)
        changed = frame.copy()
        changed.loc[row, column] = value
        changed.iloc[::-1].to_csv(folder / "tables" / "t.csv", index=False)  # rows are found by name, not by place
        differences, remarks = compare_csv(folder / "ours.csv", folder, "t")
    assert remarks == [] and len(differences) == 1
    assert differences[0].startswith(
        f"row method {frame.method[row]}, k {frame.k[row]}, column {column}: published {value}"
    )
