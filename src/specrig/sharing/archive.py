"""Pack a study's results into `records.tar.xz`, and unpack them again.

The archive is the study's results folder without what others cannot use or must not see: the tables that the study was
read from (`pairs.tsv`, `tasks.tsv`, `reported.csv`), `records/`, `traffic/`, `audit/`, the training curves in `models/`,
`models.json` with the models' sizes, and `scores.jsonl` with what the scorers counted in each output. The resolved
study, `study.json`, lies beside the archive.

Weights, prompts and references are not published: prompts come from other people's data.
"""

from __future__ import annotations

import json
import lzma
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from specrig.analysis.quality import Score
from specrig.errors import first_line
from specrig.files import write_atomically
from specrig.measurement.traffic.records import FOLDER as TRAFFIC
from specrig.report.machine import model_rows
from specrig.report.study_data import MeasuredJob, StudyData
from specrig.sharing.manifest import FILE, PublicationError
from specrig.sharing.scrub import SERVER, scrub_text, scrubbed, without_addresses

ARCHIVE, STUDY, MODELS, SCORES = "records.tar.xz", "study.json", "models.json", "scores.jsonl"
TABLES = ("pairs", "tasks", "reported")
"""The tables that a study is read from."""
OURS = Path("configs/prompts")
"""The folder of the prompts that were written for this repository: outputs that quote them may be shown."""
MOST_BYTES = 1 << 30
"""A larger content of an archive is refused: a small file can unpack to one that fills the disk."""


def pack(study: StudyData, scores: Sequence[Score], folder: Path, names: Sequence[str]) -> list[str]:
    """Write what is published of a study's results into `folder`, and return descriptions of what was left out.

    names: replaced in all texts; absolute paths are reduced to their last part (see `scrub`).
    """
    left_out = ["prompts and references of every task"]
    # The same address twice is another study than two addresses, so each keeps a number.
    urls = list(dict.fromkeys(server["url"] for server in study.config.get("servers") or []))
    servers = [
        without_addresses(server) | {"url": f"{SERVER}-{urls.index(server['url']) + 1}", "api_key_env": None}
        for server in study.config.get("servers") or []
    ]
    tables = {name: _pack_table(study, name, folder, names) for name in TABLES}
    public = {**study.config, "servers": servers, "results": "results", "reports": "reports", "tables": tables}
    _write_json(folder / STUDY, scrubbed(public, names))
    tasks = study.config.get("rows", {}).get("tasks", {})
    shown = {task for task, row in tasks.items() if Path(row.get("source", "")).parent == OURS}
    if blanked := sorted({records[0].cell.task for records in study.every.values()} - shown):
        left_out.append(f"the outputs' texts of {', '.join(blanked)}, which may quote data of others (token ids stay)")
    for job in study.jobs:
        _pack_job(job, folder, names, shown)
    for path in study.audit_files():
        write_atomically(folder / "audit" / path.name, scrub_text(_text(path), names))
    for path in sorted((study.folder / "models").glob("*/*/training.jsonl")):
        write_atomically(folder / path.relative_to(study.folder), scrub_text(_text(path), names))
    for path in [*sorted((study.folder / TRAFFIC).glob("*/*/*/*.json")), *study.under_load[0]]:
        lines = _lines(path) if path.suffix == ".jsonl" else [json.loads(_text(path))]
        public_lines = [json.dumps(without_addresses(scrubbed(line, names))) for line in lines]
        write_atomically(folder / path.relative_to(study.folder), "".join(f"{line}\n" for line in public_lines))
    _write_json(folder / MODELS, model_rows(study.folder))
    write_atomically(folder / SCORES, "".join(f"{score.model_dump_json()}\n" for score in scores))
    return left_out


def compress(folder: Path, archive: Path) -> None:
    """Write the files below `folder` except study.json as one archive; the same files give the same bytes."""
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for path in sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / STUDY):
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
            entry.size = path.stat().st_size
            with path.open("rb") as file:
                tar.addfile(entry, file)


@contextmanager
def unpacked(publication: Path) -> Iterator[Path]:
    """Yield a temporary results folder with the content of a publication.

    Raises PublicationError for an archive that cannot be read, that is too large, or that names files outside itself.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder, archive = Path(scratch), publication / ARCHIVE
        try:
            with tarfile.open(archive, "r:xz") as tar:
                size = 0
                for member in tar:  # read one by one: a member's size is known before its content is unpacked
                    size += member.size
                    if size > MOST_BYTES:
                        raise PublicationError(
                            f"{archive}: more than {MOST_BYTES >> 20} MiB unpacked; restore the file"
                        )
                    tar.extract(member, folder, filter="data")  # refuses what would be written elsewhere
            config = json.loads((publication / STUDY).read_bytes())
            tables = {name: _inside(folder, file) for name, file in config["tables"].items()}
            for index in folder.rglob("index.json"):
                content = json.loads(index.read_bytes())
                for entry in {**content.get("cells", {}), **content.get("points", {})}.values():
                    _inside(index.parent, entry["records"])
        except PublicationError:
            raise
        except (tarfile.TarError, lzma.LZMAError, EOFError, OSError, ValueError, LookupError, TypeError,
                AttributeError, RecursionError) as error:  # fmt: skip
            raise PublicationError(
                f"{publication}: {ARCHIVE} or {STUDY} cannot be read ({first_line(error)}); restore the file"
            ) from error
        _write_json(folder / STUDY, {**config, "tables": tables})
        yield folder


def is_publication(folder: Path) -> bool:
    """Whether a folder is a published study."""
    return (folder / FILE).is_file()


def read_scores(results: Path) -> list[Score]:
    """The scores of an unpacked publication. Raises PublicationError for a broken file."""
    path = results / SCORES
    try:
        return [Score.model_validate_json(line) for line in path.read_bytes().splitlines()]
    except (OSError, ValueError) as error:
        raise PublicationError(f"{SCORES}: not the scores of a study ({first_line(error)}); restore it") from error


def _pack_job(job: MeasuredJob, folder: Path, names: Sequence[str], shown: set[str]) -> None:
    """Write a job: its records, its index with hashes of the published records, its environment."""
    there = folder / "records" / Path(*job.key)
    cells = {}
    for slug, path in job.files.items():
        write_atomically(there / path.name, _public_records(path, shown))
        content = (there / path.name).read_bytes()
        digest = json.loads(content.partition(b"\n")[0])["digest"] if content else ""
        cells[slug] = {"records": path.name, "sha256": sha256(content).hexdigest(), "digest": digest}
    failed = without_addresses(scrubbed(job.failed, names))
    _write_json(there / "index.json", {"cells": cells, "failed": failed})
    if job.environment:
        _write_json(there / "environment.json", without_addresses(scrubbed(job.environment, names)))


def _public_records(path: Path, shown: set[str]) -> str:
    """The content of a record file, without outputs' texts where its task is not one of `shown`."""
    records = _lines(path)
    if not records or records[0]["cell"]["task"] in shown:
        return _text(path)
    blank = {"text": "", "baseline_text": "", "ends": None}
    return "".join(json.dumps({**record, **blank}, separators=(",", ":")) + "\n" for record in records)


def _pack_table(study: StudyData, name: str, folder: Path, names: Sequence[str]) -> str | None:
    """Copy a table that the study was read from, without the rows that reveal this machine; returns its file's name.

    The study's own rows are in study.json, which is read in place of the table. Of reported figures the whole table is
    published or nothing.
    """
    source = Path((study.config.get("tables") or {}).get(name) or "")
    if name == "reported":
        text = _text(source) if source.is_file() else ""
        if not text or scrub_text(text, names) != text:
            return None
        write_atomically(folder / source.name, text)
        return source.name
    if source.suffix == ".tsv" and source.is_file():
        rows = _text(source).split("\n")
        write_atomically(folder / f"{name}.tsv", "\n".join(row for row in rows if scrub_text(row, names) == row))
    return f"{name}.tsv"


def _inside(folder: Path, name: str | None) -> str | None:
    """The path of a file that a publication names. Raises ValueError for one outside `folder`."""
    if name is None:
        return None
    if Path(name).name != name:
        raise ValueError(f"{name} is not a file of the publication")
    return str(folder / name)


def _write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def _lines(path: Path) -> list[dict[str, Any]]:
    """The objects in the lines of a file. Raises PublicationError, with the line, for another content."""
    records = []
    for number, line in enumerate(_text(path).split("\n"), 1):  # not splitlines(), which cuts inside JSON strings
        try:
            records += [dict(json.loads(line))] if line else []
        except (ValueError, TypeError, RecursionError) as error:
            raise PublicationError(f"{path}:{number}: not a record ({error}); restore the file") from error
    return records


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except ValueError as error:
        raise PublicationError(f"{path}: cannot be read ({error}); restore the file") from error
