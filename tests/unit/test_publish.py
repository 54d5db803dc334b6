"""A publication tells nothing of the machine, holds what its tables follow from, and a change anywhere in it is named."""

from __future__ import annotations

import io
import json
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import write_study

from specrig.audit.multiple_testing import REFERENCE
from specrig.cli import main
from specrig.measurement.records import SCHEMA_VERSION, RecordError
from specrig.report.study_data import read_study
from specrig.sharing import archive, publish, scrub
from specrig.sharing.archive import ARCHIVE, compress, unpacked
from specrig.sharing.index import index_markdown
from specrig.sharing.manifest import PublicationError, PublishedPair, PublishedSpeedup, file_hashes, read_manifest
from specrig.sharing.publish import publish as publish_study
from specrig.sharing.verify import Verification, verify
from specrig.study.load import load_study
from specrig.study.study import Study

PUBLISHED = sorted(
    path.parent for path in (Path(__file__).parents[2] / "reports" / "published").glob("*/manifest.json")
)
USER, HOST, HOME = "jdoe42", "buildbox7.example.org", "/home/jdoe42"
CONFIG = {
    "study": "demo",
    "pairs": ["tiny"],
    "tasks": ["code", "private"],
    "methods": [{"method": "draft_model", "k": 2}, {"method": "ngram", "k": 2}],
    "prompts": 3,
    "max_new_tokens": 24,
    "servers": [],
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
        ks=(2,),
        tasks=CONFIG["tasks"],
        prompts=3,
        length=24,
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
    index = study.root / "records/native/tiny/ngram/index.json"
    content = json.loads(index.read_text())
    content["cells"].pop("code-k2-t0-b1")
    content["failed"] = {
        "code-k2-t0-b1": f"OSError: {HOME}/cache/x.bin: No space left, {USER}; http://{HOST}:8000 fell silent"
    }
    index.write_text(json.dumps(content))
    place = "native,tiny,{},,{},0.0,token identity,2,{},,{},True,{} of {} outputs identical (100 %)"
    rows = [("draft_model", task, *[3] * 4) for task in CONFIG["tasks"]] + [("ngram", "private", *[3] * 4)]
    exact = "native,,{},,,1.0,exact distribution,2,20480,0.5,,,within chance of the target's distribution"
    lines = [
        "engine,pair,method,variant,task,temperature,test,ks,samples,p_value,identical,passed,finding",
        *(place.format(*row) for row in rows),
        *(exact.format(method) for method in ("draft_model", "ngram")),
        f"native,tiny,autoregressive,,code,0.0,{REFERENCE},0,1,,,,not compared: {HOME}/x is gone",
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
    """Name -> text of every file of a publication, those in its archive included."""
    texts = {path.name: path.read_text() for path in folder.rglob("*") if path.suffix not in ("", ".pdf", ".xz")}
    with tarfile.open(folder / ARCHIVE) as tar:
        return texts | {member.name: tar.extractfile(member).read().decode() for member in tar}


def write_hashes(folder: Path) -> None:
    """Make the hashes agree again, so that what lies behind them is looked at."""
    manifest = read_manifest(folder)
    manifest.files = file_hashes(folder)
    (folder / "manifest.json").write_text(manifest.model_dump_json())


def verified(folder: Path) -> tuple[Verification, str]:
    lines: list[str] = []
    return verify(folder, lines.append), "\n".join(lines)


def change_record(folder: Path, change: Callable[[dict], None]) -> None:
    """Change the first record of a cell in the archive, and the hashes."""
    with unpacked(folder) as results:
        path = results / "records/native/tiny/draft_model/code-k2-t0-b1.jsonl"
        first, *rest = path.read_text().split("\n")
        record = json.loads(first)
        change(record)
        path.write_text("\n".join([json.dumps(record), *rest]))
        compress(results, folder / ARCHIVE)
    write_hashes(folder)


def test_nothing_of_the_machine_or_of_the_users_data_is_published(publication: Path) -> None:
    texts = contents(publication)
    for name, text in texts.items():
        for trace in (USER, HOST, "buildbox7", "/home/", ":8000", str(publication.parent.parent)):
            assert trace not in text, f"{name} tells {trace}"
    lines = [text.split("\n") for name, text in texts.items() if re.match(r"records/.*\.jsonl", name)]
    records = [json.loads(line) for text in lines for line in text if line]
    assert {record["cell"]["task"]: record["text"] for record in records} == {"code": SECRET, "private": ""}
    assert not [record for record in records if record["ends"] and not record["text"]], "nor the lengths of its words"
    assert all(
        "patient" not in text for name, text in texts.items() if "records/" not in name and name != "report.html"
    )
    assert all("library's own text" not in text and "def f()" not in text for text in texts.values())
    rows = {line.partition("\t")[0] for line in texts["tasks.tsv"].split("\n")}
    assert "code" in rows and "unused" not in rows, "a row with a path of this machine stayed at home"
    environment = json.loads(texts["records/native/tiny/ngram/environment.json"])
    assert environment["models"]["target"]["source"] == "llama"
    assert environment["engine"]["options"]["url"] == scrub.SERVER
    failed = json.loads(texts["records/native/tiny/ngram/index.json"])["failed"]
    assert failed == {"code-k2-t0-b1": f"OSError: x.bin: No space left, hidden; {scrub.SERVER} fell silent"}


def test_a_publication_is_small_and_its_report_finds_its_neighbours(publication: Path) -> None:
    assert publication.name == "synthetic-processor-demo"
    files = {path.relative_to(publication).as_posix() for path in publication.rglob("*") if path.is_file()}
    assert {"manifest.json", "study.json", ARCHIVE, "report.html", "report.pdf", "tables/cells.csv"} <= files
    assert {Path(name).suffix for name in files} == {".json", ".xz", ".html", ".pdf", ".csv"}
    report = (publication / "report.html").read_text()
    links = [link for link in re.findall(r'(?:src|href)="([^"]+)"', report) if not link.startswith(("#", "data:"))]
    assert report.count("<svg") >= 5 and {"tables/cells.csv", "study.json"} <= set(links) <= files


def test_the_index_lists_what_was_published(publication: Path) -> None:
    index = (publication.parent / "README.md").read_text()
    assert index == index_markdown({publication.name: read_manifest(publication)})
    assert f"[{publication.name}]({publication.name}/report.html)" in index
    assert (publication.parent / "headline.svg").read_text().count("<svg") == 1


def test_the_fastest_of_a_pair_is_a_fair_method_on_most_tasks() -> None:
    def speedup(method: str, value: float, tasks: int, *, fair: bool) -> PublishedSpeedup:
        return PublishedSpeedup(method=method, label=method, speedup=value, low=1, high=9, tasks=tasks, fair=fair)

    lossy, narrow, wide = (
        speedup(*row[:3], fair=row[3]) for row in [("a", 3, 2, False), ("b", 2, 1, True), ("c", 1.5, 2, True)]
    )
    pair = PublishedPair(engine="native", pair="p", precision="", cells=3, speedups=[lossy, narrow, wide])
    assert pair.fastest == wide
    assert pair.model_copy(update={"speedups": [lossy]}).fastest is None


def test_what_was_published_follows_from_its_records(publication: Path) -> None:
    verification, text = verified(publication)
    assert verification.recomputed and not verification.differences, text
    assert "✓ tables/cells.csv: recomputed" in text and "All tables follow from the records." in text


def test_a_changed_file_and_a_changed_number_are_named(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = copy / "tables" / "cells.csv"
    table = pd.read_csv(path)
    row = table.loc[1].copy()
    table.loc[1, "speedup"] *= 1.001
    table.iloc[::-1].to_csv(path, index=False)  # rows are known by name, not by place
    (copy / "notes.txt").write_text("x")
    (copy / "tables" / "speedup.csv").unlink()
    assert main(["verify", str(copy)]) == 1
    text = capsys.readouterr().out
    assert "tables/cells.csv: changed since it was published" in text
    assert "notes.txt: not in the manifest" in text and "tables/speedup.csv: missing" in text
    write_hashes(copy)
    verification, text = verified(copy)
    [named] = [line for line in text.splitlines() if "column speedup: published" in line]
    assert verification.differences == 1
    assert f"method {row.method}, k {row.k}, task {row.task}" in named and str(row.speedup) in named


def test_tables_and_columns_of_other_code_are_named_and_no_fault(copy: Path) -> None:
    path = copy / "tables" / "cells.csv"
    pd.read_csv(path).drop(columns="alpha").assign(beta=1.0).to_csv(path, index=False)
    shutil.copyfile(path, copy / "tables" / "older.csv")
    (copy / "tables" / "speedup.csv").unlink()
    write_hashes(copy)
    verification, text = verified(copy)
    assert not verification.differences
    assert "columns that only one of the two has: beta, alpha" in text
    assert "this code does not make this table" in text and "this code makes more: speedup.csv" in text


def test_of_records_of_another_schema_the_hashes_are_checked_and_the_code_is_named(copy: Path) -> None:
    path = copy / "manifest.json"
    older = {"record_schema": SCHEMA_VERSION - 1, "commit": "f" * 40}
    path.write_text(json.dumps(json.loads(path.read_text()) | older))
    verification, text = verified(copy)
    assert not verification.differences and not verification.recomputed
    assert f"To check them: git checkout {'f' * 40}" in text and "All files are as they were published." in text
    (copy / "study.json").write_text("{}")
    assert verified(copy)[0].differences == 1


RULES: dict[str, tuple[Callable[[dict], object], str]] = {
    "no such cell": (lambda record: record["cell"].update(k=9), "study.json does not list it"),
    "too long": (lambda record: record["run"]["tokens"].append(1), "25 tokens, and max_new_tokens is 24"),
    "too short": (lambda record: record["run"]["tokens"].pop(), "stopped by length after 23 of 24 tokens"),
    "emitted": (lambda record: record["run"]["rounds"]["emitted"].__setitem__(0, 99), "its rounds emitted"),
    "accepted": (lambda record: record["run"]["rounds"]["accepted"].__setitem__(0, 9), "round 1 accepted 9 of"),
    "drafted": (lambda record: record["run"]["rounds"]["depth"].__setitem__(0, 3), "3 deep, at k = 2"),
    "rounds": (lambda record: record["run"]["rounds"]["depth"].pop(), "depth, accepted and emitted have"),
    "baseline": (
        lambda record: record["baseline"]["rounds"].update(record["run"]["rounds"]),
        "baseline: round 1 drafted 2 tokens, 2 deep, at k = 0",
    ),
    "overlap": (lambda record: record["run"].update(overlap=99.0), "overlap 99 of"),
    "counts": (
        lambda record: record["run"].update(counts={"rounds": 12, "drafted": 4, "accepted": 12}),
        "accepted 12 of 4 drafted tokens",
    ),
    "time": (lambda record: record["run"].update(decode_s=-1.0), "times of"),
    "prefill": (lambda record: record["run"].update(prefill_s=0.001), "ends before the first token"),
    "passes": (lambda record: record["run"].update(decode_s=0.001), "decoded in 0.001 s, its passes took"),
    "repeats": (lambda record: record["run"]["repeats"].pop(), "1 repeats, and the study has 2 to 5"),
    "rounds' times": (
        lambda record: record["run"]["repeats"][0]["round_s"].__setitem__(0, 1.0),
        "its rounds took",
    ),
    "least": (lambda record: record["run"].update(decode_s=9.0), "which does not follow from its repeats"),
    "settled": (lambda record: record["run"].update(settled=False), "settled: False, which does not follow"),
    "prompt": (lambda record: record.update(prompt_id="code-1"), "prompts code-1, code-1"),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_record_that_breaks_a_rule_is_named(rule: str, copy: Path) -> None:
    change, expected = RULES[rule]
    change_record(copy, change)
    with unpacked(copy) as results:
        from specrig.sharing.rules import violations

        broken = list(violations(load_study(results / "study.json"), read_study(results)))
    assert any(expected in sentence for sentence in broken), broken
    assert all("code-k" in sentence for sentence in broken), "no other cell is accused"


def test_a_cell_that_the_study_lists_is_not_missing(copy: Path) -> None:
    with unpacked(copy) as results:
        index = results / "records/native/tiny/draft_model/index.json"
        content = json.loads(index.read_text())
        del content["cells"]["code-k2-t0-b1"]
        index.write_text(json.dumps(content))
        compress(results, copy / ARCHIVE)
    write_hashes(copy)
    _, text = verified(copy)
    assert "cell native/tiny/draft_model/code-k2-t0-b1: study.json lists it, and it is missing" in text


def archive_of(folder: Path, name: str, content: bytes) -> None:
    with tarfile.open(folder / ARCHIVE, "w:xz") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a cut archive": lambda folder: (folder / ARCHIVE).write_bytes((folder / ARCHIVE).read_bytes()[:-200]),
    "no archive": lambda folder: (folder / ARCHIVE).unlink(),
    "a file elsewhere": lambda folder: archive_of(folder, "../../elsewhere.txt", b"x"),
    "records elsewhere": lambda folder: archive_of(
        folder, "records/native/p/ngram/index.json", b'{"cells": {"a": {"records": "../../a.jsonl"}}}'
    ),
    "a cut study": lambda folder: (folder / "study.json").write_text("{"),
    "a table elsewhere": lambda folder: (folder / "study.json").write_text(
        (folder / "study.json").read_text().replace('"pairs.tsv"', '"../../pairs.tsv"')
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_archive_that_is_damaged_or_reaches_out_of_its_folder_is_refused(damage: str, copy: Path) -> None:
    DAMAGES[damage](copy)
    with pytest.raises(PublicationError, match="restore the file"), unpacked(copy):
        pass
    assert not (copy.parent / "elsewhere.txt").exists()
    assert "✗ records.tar.xz: not readable" in verified(copy)[1]


def test_an_archive_that_would_fill_the_disk_is_refused(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST_BYTES", 1 << 20)
    archive_of(copy, "zeros", bytes(2 << 20))
    assert (copy / ARCHIVE).stat().st_size < 10_000
    with pytest.raises(PublicationError, match="more than 1 MiB unpacked"), unpacked(copy):
        pass


@pytest.mark.parametrize("folder", PUBLISHED, ids=[path.name for path in PUBLISHED])
def test_what_the_repository_publishes_is_as_it_was_published(folder: Path) -> None:
    """Publications are frozen: code may change what it computes, and these files stay."""
    manifest = read_manifest(folder)
    assert (
        file_hashes(folder) == manifest.files and re.fullmatch("[0-9a-f]{40}", manifest.commit) and not manifest.dirty
    )
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= 2 << 20


def test_the_index_in_the_repository_is_of_its_publications(repository: Path) -> None:
    manifests = {path.name: read_manifest(path) for path in PUBLISHED}
    assert len(manifests) == 11
    assert (repository / "reports/published/README.md").read_text() == index_markdown(manifests)


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
    (study.root / "records/native/tiny/draft_model/index.json").unlink()
    with pytest.raises(PublicationError, match=r"2 cells are not measured, e\.g\. native/tiny/draft_model"):
        publish_study(study, None, to)
    assert [path.name for path in to.iterdir()] == ["mine"]


def test_a_trace_that_slips_through_stops_the_publication(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"x": 1}\n{"x": "/srv/jdoe42/y"}\n')
    with pytest.raises(PublicationError, match=r"a.json:2 holds '/srv/jdoe42'"):
        scrub.check_no_traces(tmp_path, ["/srv/jdoe42"], [])
    scrub.check_no_traces(tmp_path, ["/srv/jdoe4"], [])


def test_a_damaged_file_that_would_be_published_is_named(workplace: Path) -> None:
    study = finished(workplace)
    (study.root / "records/native/tiny/draft_model/private-k2-t0-b1.jsonl").write_bytes(b"[\n")
    with pytest.raises((PublicationError, RecordError), match=r"private-k2-t0-b1.jsonl:1: not a record"):
        archive.pack(read_study(study.root), [], workplace / "packed", [])


def test_hardware_names_the_gpu_before_the_processor() -> None:
    from specrig.report.study_data import MeasuredJob, StudyData

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


def test_a_study_of_servers_that_run_elsewhere_verifies(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two addresses stay two, although nobody learns them. Pages take long, and are left out."""
    servers = [
        {"pair": "tiny", "method": method, "k": k, "url": f"http://{HOST}:{8000 + k}", "api_key_env": "WONDERLAND"}
        for method, k in (("autoregressive", 0), ("ngram", 4))
    ]
    config = {**CONFIG, "engines": ["server"], "servers": servers, "tasks": ["code"]}
    study = load_study(config | {"methods": [{"method": "ngram", "k": [4]}]})
    write_study(study.root, engines=("server",), methods=("ngram",), ks=(4,), tasks=("code",), prompts=3, length=24)
    (study.root / "study.json").write_text(study.model_dump_json())
    (study.root / "audit").mkdir()
    (study.root / "audit" / "records.csv").write_text(
        "engine,pair,method,variant,task,temperature,test,ks,samples,p_value,identical,passed,finding\n"
        "server,tiny,ngram,,code,0.0,token identity,4,3,,,True,3 of 3 outputs identical (100 %)\n"
    )
    for write in ("write_report", "write_printed"):
        monkeypatch.setattr(publish, write, lambda *_, **__: None)
    folder, _ = publish_study(study, None, workplace / "published")
    result, shown = verified(folder)
    assert result.recomputed and result.differences == 0, shown
    assert all(HOST not in text and "WONDERLAND" not in text for text in contents(folder).values())
