"""`specrig publish`: publish a finished study in `reports/published/<hardware>-<study>`.

Tables, figures and report are rendered from the published files alone.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

from specrig.files import write_atomically
from specrig.measurement.records import read_index, replicate_folder
from specrig.measurement.traffic.records import FOLDER as TRAFFIC
from specrig.reporting.documents.attachments import Beside
from specrig.reporting.documents.html import write_report
from specrig.reporting.documents.printed import write_printed
from specrig.reporting.figures.drawings import write_figures
from specrig.reporting.outline import tables
from specrig.reporting.tables.files import write_tables
from specrig.reporting.tables.quality import study_scores, write_quality_table
from specrig.results.machine import processor_name
from specrig.results.study_data import StudyData, read_study
from specrig.sharing.archive import LIMIT, compressed, pack, read_scores, unpack
from specrig.sharing.manifest import FILE, PublicationError, current_manifest, file_hashes, read_manifest
from specrig.sharing.scrub import check_no_traces, machine_names, machine_paths
from specrig.sharing.table_differences import compare_csv, header
from specrig.study.study import Study

TABLES = (*tables(), "quality")
"""The tables of a publication. All are computed from its own records and scores."""
PRINTED = "report.pdf"
"""The report to print, for readers: of a publication only its hash is verified."""


def publish(study: Study, name: str | None, to: Path) -> tuple[Path, list[str]]:
    """Publish a finished study in the folder `to`/`name`; returns this folder and notes for the user.

    name: None means `<hardware>-<study>`. The folder is written completely or not at all, and replaces an older
    publication of the same study. The notes list what was left out, and which of the study's own tables differ from the
    published ones. Raises PublicationError for a study that is not finished, for one that ran on several machines and
    has no `name`, where another folder is in the way, and for any text that would reveal this machine.
    """
    _check_finished(study)
    data = read_study(study.root)
    machines = hardware(data)
    if name is None and len(machines) > 1:
        raise PublicationError(f"{study.root} was measured on {' and '.join(machines)}: name the publication with --as")
    target = to / (name or f"{_slug(machines[0])}-{study.study}")
    _check_replaceable(target, study.study)
    names = machine_names()
    with _replacing(target) as folder:
        left_out = pack(data, study_scores(study), folder, names)
        _finish(folder, left_out, machine_paths(study.root), names)
    notes = [f"left out: {what}" for what in left_out]
    for stem in TABLES:
        own = study.root / "tables" / f"{stem}.csv"
        differences, _ = compare_csv(own, target, stem) if own.is_file() else ([], [])
        if differences:
            notes.append(
                f"{own} does not follow from the records ({len(differences)} differences, e.g. {differences[0]})"
            )
    return target, notes


def rerender(target: Path) -> Path:
    """Compute a publication's tables, figures and report again from its own records; returns `target`.

    This brings a publication up to date after the code has changed. Raises PublicationError for records that were
    changed since they were published.
    """
    manifest = read_manifest(target)
    found = file_hashes(target)
    sources = {name for name in manifest.files if not _is_computed(name)}
    changed = sorted(name for name in sources if found.get(name) != manifest.files[name])
    if changed:
        raise PublicationError(
            f"{target / changed[0]} was changed since it was published: restore it; `specrig verify` shows more"
        )
    with _replacing(target) as folder:
        for name in sorted(sources):
            _copy(target / name, (folder / name).parent)
        _finish(folder, manifest.left_out, [], [])
    return target


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


def _finish(folder: Path, left_out: list[str], paths: list[str], names: list[str]) -> None:
    """Render the packed study, check it for traces of this machine, and write the manifest."""
    render(folder, printed=True)
    printed = folder / PRINTED
    if printed.stat().st_size > LIMIT:  # a forge would not show it
        printed.unlink()
    _divide(folder)
    check_no_traces(folder, paths, names)
    with unpacked(folder) as results:
        data = read_study(results)
        manifest = current_manifest(
            study=data.name,
            hardware=", ".join(hardware(data)),
            measured_with=sorted(
                {str(job.environment["git"]["commit"]) for job in data.jobs if job.environment.get("git")}
            ),
            columns={stem: header(folder, stem) for stem in TABLES},
            left_out=left_out,
            files=file_hashes(folder),
        )
    write_atomically(folder / FILE, manifest.model_dump_json(indent=1) + "\n")


def _is_computed(name: str) -> bool:
    """Whether a published file is computed from other files of the publication."""
    return name.startswith(("figures/", "tables/", "report."))


def render(folder: Path, *, printed: bool = False) -> None:
    """Write the tables, figures and report of a packed study into its folder, computed from the files in it.

    printed: write the report to print too.
    """
    with unpacked(folder) as results:
        for path in compute_tables(folder, results):
            if path.suffix != ".tex":
                _copy(path, folder / "tables")
        for path in write_figures(results, results / "figures"):
            if path.suffix == ".svg" and path.parent == results / "figures":
                _copy(path, folder / "figures")
        write_report(results, folder / "report.html", Beside())
        if printed:
            write_printed(results, folder / PRINTED)


@contextmanager
def rendered(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder with the sources of a publication, and with tables, figures and report made from them."""
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / folder.name
        for name in file_hashes(folder):
            if not _is_computed(name):
                _copy(folder / name, (made / name).parent)
        render(made)
        yield made


def compute_tables(folder: Path, results: Path) -> list[Path]:
    """Write every table of a publication into `results`/tables and return their paths.

    folder: the publication, which holds the scores. results: the same unpacked, which holds the records.
    """
    name = read_study(results).name
    return [
        *write_tables(results, results / "tables"),
        *write_quality_table(read_scores(folder), name, results / "tables"),
    ]


@contextmanager
def unpacked(folder: Path) -> Iterator[Path]:
    """Yield a temporary results folder with the content of a publication.

    Raises PublicationError for a broken publication, see `archive.unpack`.
    """
    with tempfile.TemporaryDirectory() as scratch:
        yield unpack(folder, Path(scratch))


def hardware(study: StudyData, *, generations: bool = False) -> list[str]:
    """The names of the hardware that the study's jobs ran on, each once: of the GPU, or of the processor without one.

    generations: name the processor's generation too.
    """
    found = []
    for job in study.jobs:
        gpus = job.environment.get("gpus") or []
        cpu = job.environment.get("cpu") or {}
        processor = processor_name(cpu) if generations else cpu.get("model")
        found.append(str(gpus[0]["name"] if gpus else processor or "unknown hardware"))
    return list(dict.fromkeys(found))


def _check_finished(study: Study) -> None:
    """Raise PublicationError unless every cell was measured or failed with a reason, and the study was audited."""
    again = "finish it first: the same `make` or `snakemake` command continues it"
    if not (study.root / "study.json").is_file():
        raise PublicationError(f"{study.root}: no results there; {again}")
    jobs = {(job.key, job.replicate): job for job in read_study(study.root).jobs}
    missing = []
    for (key, cells), number in product(study.grid.by_method.items(), range(study.replicates)):
        job = jobs.get((key, number))
        index = replicate_folder(study.root / "records" / Path(*key), number) / "index.json"
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
    other = read_manifest(target).study if (target / FILE).is_file() else None
    if other != study:
        what = f"the study {other}" if other else "something else"
        raise PublicationError(f"{target} holds {what}: take another name with --as, or move it away")


def _divide(folder: Path) -> None:
    """Compress the files that are larger than `LIMIT`. Raises PublicationError for a file that remains larger."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > LIMIT):
        packed = path if path.suffix == ".gz" else path.with_name(f"{path.name}.gz")
        if packed != path:
            packed.write_bytes(compressed(path.read_text(encoding="utf-8")))
            path.unlink()
        if packed.stat().st_size > LIMIT:
            raise PublicationError(
                f"{packed.relative_to(folder)}: {packed.stat().st_size / 2**20:.1f} MiB; a file may have "
                f"{LIMIT / 2**20:g} MiB. Publish a study of fewer cells"
            )


def _copy(path: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, folder / path.name)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
