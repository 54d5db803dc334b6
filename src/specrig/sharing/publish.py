"""`specrig publish`: publish a finished study in `reports/published/<hardware>-<study>`, and list it in the index.

    manifest.json       the code and the record schema that made the publication, its speedups, and every file's hash
    study.json          the resolved study
    records.tar.xz      the records and all else from which tables and report are computed (`archive`)
    tables/*.csv
    report.html report.pdf

A publication is frozen: it is made once and never rendered anew. Tables and report are computed from the published
records alone.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from specrig import __version__
from specrig.analysis.quality import Score
from specrig.files import write_atomically
from specrig.measurement.records import SCHEMA_VERSION, read_index
from specrig.measurement.traffic.records import FOLDER as TRAFFIC
from specrig.provenance.environment import code_version
from specrig.report.documents.attachments import Beside
from specrig.report.documents.html import write_report
from specrig.report.documents.printed import write_printed
from specrig.report.machine import processor_name
from specrig.report.quality_files import study_scores, write_quality_table
from specrig.report.study_data import StudyData, read_study
from specrig.report.study_results import StudyResults
from specrig.report.table_files import write_tables
from specrig.sharing.archive import ARCHIVE, STUDY, compress, is_publication, pack, read_scores, unpacked
from specrig.sharing.index import published_pairs, write_index
from specrig.sharing.manifest import FILE, Manifest, PublicationError, file_hashes, read_manifest
from specrig.sharing.scrub import check_no_traces, machine_names, machine_paths
from specrig.study.study import Study


def publish(study: Study, name: str | None, to: Path) -> tuple[Path, list[str]]:
    """Publish a finished study in the folder `to`/`name`; returns this folder and descriptions of what was left out.

    name: None means `<hardware>-<study>`. The folder is written completely or not at all, and replaces an older
    publication of the same study. Raises PublicationError for a study that is not finished, for one that ran on several
    machines and has no `name`, where another folder is in the way, and for any text that would reveal this machine.
    """
    _check_finished(study)
    data = read_study(study.root)
    machines = hardware(data)
    if name is None and len(machines) > 1:
        raise PublicationError(f"{study.root} was measured on {' and '.join(machines)}: name the publication with --as")
    target = to / (name or f"{_slug(machines[0])}-{study.study}")
    _check_replaceable(target, study.study)
    left_out = write_publication(data, study_scores(study), target, machine_paths(study.root), machine_names())
    write_index(to)
    return target, left_out


def write_publication(
    study: StudyData, scores: Sequence[Score], target: Path, paths: Sequence[str], names: Sequence[str]
) -> list[str]:
    """Write the publication of a study into the folder `target`, whole or not at all; returns what was left out.

    paths, names: what no file may hold, since it reveals this machine.
    """
    with _replacing(target) as folder, tempfile.TemporaryDirectory() as scratch:
        packed = Path(scratch)
        left_out = pack(study, scores, packed, names)
        check_no_traces(packed, paths, names)
        compress(packed, folder / ARCHIVE)
        shutil.copyfile(packed / STUDY, folder / STUDY)
        with unpacked(folder) as results:
            _render(results, folder)
            check_no_traces(folder, paths, names)
            manifest = _manifest(results, folder, left_out)
        write_atomically(folder / FILE, manifest.model_dump_json(indent=1) + "\n")
    return left_out


def compute_tables(results: Path, out: Path) -> list[Path]:
    """Write every table of an unpacked publication as files into `out`, and return the CSV files."""
    name = read_study(results).name
    written = [*write_tables(results, out), *write_quality_table(read_scores(results), name, out)]
    return [path for path in written if path.suffix == ".csv"]


def hardware(study: StudyData, *, generations: bool = False) -> list[str]:
    """The names of the hardware that the study's jobs ran on, each once: of the GPU, or of the processor without one.

    generations: name the processor's generation too.
    """
    names = []
    for job in study.jobs:
        gpus = job.environment.get("gpus") or []
        cpu = job.environment.get("cpu") or {}
        processor = processor_name(cpu) if generations else cpu.get("model")
        names.append(str(gpus[0]["name"] if gpus else processor or "unknown hardware"))
    return list(dict.fromkeys(names))


def _render(results: Path, folder: Path) -> None:
    """Compute tables and report from an unpacked publication, and write them into its folder."""
    (folder / "tables").mkdir()
    with tempfile.TemporaryDirectory() as scratch:
        for path in compute_tables(results, Path(scratch)):
            shutil.copyfile(path, folder / "tables" / path.name)
    write_report(results, folder / "report.html", Beside())
    # Tags for screen readers are two thirds of a PDF; the page says the same and has them.
    write_printed(results, folder / "report.pdf", tags=False)


def _manifest(results: Path, folder: Path, left_out: list[str]) -> Manifest:
    data, git = read_study(results), code_version()
    schemas = [record.schema_version for records in data.every.values() for record in records]
    commits = {str(job.environment["git"]["commit"]) for job in data.jobs if job.environment.get("git")}
    return Manifest(
        study=data.name,
        hardware=", ".join(hardware(data, generations=True)),
        measured=data.captured[:10],
        measured_with=sorted(commits),
        specrig=__version__,
        commit=git.get("commit", ""),
        dirty=git.get("dirty", False),
        record_schema=max(schemas, default=SCHEMA_VERSION),
        left_out=left_out,
        pairs=published_pairs(StudyResults(data)),
        files=file_hashes(folder),
    )


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """Yield a new folder that replaces `target` at the end. If anything fails before, `target` stays as it was."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".publishing-") as scratch:
        folder = Path(scratch) / target.name
        folder.mkdir()
        yield folder
        if target.exists():
            target.rename(Path(scratch) / "replaced")
        folder.rename(target)


def _check_finished(study: Study) -> None:
    """Raise PublicationError unless every cell was measured or failed with a reason, and the study was audited."""
    again = "finish it first: the same `make` or `snakemake` command continues it"
    if not (study.root / STUDY).is_file():
        raise PublicationError(f"{study.root}: no results there; {again}")
    jobs = {job.key: job for job in read_study(study.root).jobs}
    missing = []
    for key, cells in study.grid.by_method.items():
        job = jobs.get(key)
        index = study.root / "records" / Path(*key) / "index.json"
        done = {*job.files, *job.failed} if job and index.is_file() else set()
        missing += [cell.name for cell in cells if cell.slug not in done]
    for key, points in study.grid.points.items():
        index = study.root / TRAFFIC / Path(*key) / "index.json"
        served = read_index(index, "points") if index.is_file() else {"points": {}, "failed": {}}
        missing += [point.name for point in points if point.slug not in {*served["points"], *served["failed"]}]
    if missing:
        raise PublicationError(f"{study.root}: {len(missing)} cells are not measured, e.g. {missing[0]}; {again}")
    if not (study.root / "audit" / "records.csv").is_file():
        raise PublicationError(
            f"{study.root}/audit/records.csv does not exist, and a study is published with its audit; {again}"
        )


def _check_replaceable(target: Path, study: str) -> None:
    """Raise PublicationError where `target` exists and is not an older publication of the same study."""
    if not target.exists():
        return
    other = read_manifest(target).study if is_publication(target) else None
    if other != study:
        what = f"the study {other}" if other else "something else"
        raise PublicationError(f"{target} holds {what}: take another name with --as, or move it away")


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
