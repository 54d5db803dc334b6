"""Pack a study's results into a publication, and unpack them again.

A publication holds everything from which tables, figures and the report are computed:

    study.json                                   the resolved study, its rows included
    pairs.tsv tasks.tsv reported.csv             the tables that it was read from, and the reported figures
    records/<engine>/<pair>/<method>/            index.json, environment.json, records[-n].jsonl.gz: one line per prompt and
                                                 cell; attempt-<number>[-n].jsonl.gz: attempts that do not count;
                                                 the same for each further replicate in replicate-<number>/
    audit/*.csv                                  the verdicts
    models.json models/<pair>/<model>/*.gz       parameters and training curves; never weights
    traffic/<engine>/<pair>/<method>/            index.json, environment.json, and one .jsonl.gz for each load
    scores[-n].jsonl.gz                          what the scorers counted in each output; references are not published

Prompts are not published. The embedded ones come from other people's packages, the others from data that may not be
passed on.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Collection, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from specrig.analysis.quality import Score
from specrig.errors import first_line
from specrig.files import write_atomically
from specrig.measurement.attempts import attempt_file, other_attempts
from specrig.measurement.records import SCHEMA_VERSIONS, Record, RecordError, read_index, replicate_folder
from specrig.measurement.traffic.records import FOLDER as TRAFFIC
from specrig.measurement.traffic.records import Turn
from specrig.results.machine import model_rows
from specrig.results.study_data import MeasuredJob, StudyData
from specrig.sharing.manifest import PublicationError
from specrig.sharing.scrub import scrub_text, scrubbed, without_addresses

LIMIT = 3 << 19
"""The largest size of a published file in bytes. Larger files are divided or compressed."""
ROWS = ("pairs", "tasks", "reported")
MODELS = "models.json"
ATTEMPT = "attempt-"
"""Beginning of the names of files of attempts that do not count, before the attempt's number, 1 to 9."""


def pack(study: StudyData, scores: Sequence[Score], folder: Path, names: Sequence[str]) -> list[str]:
    """Write the study's results into `folder`, and return descriptions of what was left out.

    names: replaced in all texts; absolute paths are reduced to their last part (see `scrub`).
    """
    left_out = ["prompts and references of every task"]
    _json(folder / "study.json", {**_public_study(study.config, names), "tables": _pack_rows(study, folder, names)})
    embedded = _embedded_tasks(study.config)
    blanked = sorted(
        {records[0].cell.task for _, _, records in study.files() if records and records[0].cell.task not in embedded}
    )
    if blanked:
        left_out.append(f"the outputs' texts of {', '.join(blanked)}, which may quote data of others (token ids stay)")
    for job in study.jobs:
        _pack_job(job, folder, names, embedded)
    for path in study.audit_files():
        write_atomically(folder / "audit" / path.name, scrub_text(_text(path), names))
    _write_lines(folder, "scores", [score.model_dump_json() for score in scores])
    _json(folder / MODELS, model_rows(study.folder))
    for path in sorted((study.folder / "models").glob("*/*/training.jsonl")):
        target = folder / path.relative_to(study.folder).with_suffix(".jsonl.gz")
        _write(target, compressed(scrub_text(_text(path), names)))
    for path in sorted((study.folder / TRAFFIC).glob("*/*/*/*.json")):
        _json(folder / path.relative_to(study.folder), without_addresses(scrubbed(_read_json(path), names)))
    for path in study.under_load[0]:  # of no load that has left the study
        target, lines = folder / path.relative_to(study.folder), _lines(_text(path))
        public = (json.dumps(without_addresses(scrubbed(each, names))) for each in _parsed(path, lines))
        _write(target.with_suffix(".jsonl.gz"), compressed(_joined(list(public))))
    return left_out


def unpack(folder: Path, out: Path) -> Path:
    """Restore in `out` the results folder from which the publication `folder` was made; returns `out`.

    Raises PublicationError for a file that cannot be read; it states file and line.
    """
    config = _read_json(folder / "study.json")
    # Paths in the study are relative to where it ran; the tables lie in the publication.
    config["tables"] = {
        name: _inside(folder, f"tables: {name}", value) for name, value in config.get("tables", {}).items() if value
    }
    _json(out / "study.json", config)
    if (folder / MODELS).is_file():
        _json(out / MODELS, _read_json(folder / MODELS))
    for index in sorted((folder / "records").rglob("index.json")):
        _unpack_job(index, folder, out)
    for path in sorted((folder / "audit").glob("*.csv")):
        write_atomically(out / path.relative_to(folder), _text(path))
    for path in sorted((folder / "models").glob("*/*/*.jsonl.gz")):
        write_atomically(out / path.relative_to(folder).with_suffix(""), _decompressed(path))
    for path in sorted((folder / TRAFFIC).glob("*/*/*/*")):
        if path.name == "index.json":
            published_index(path, "points")
        text = _text(path) if path.suffix == ".json" else _decompressed(path)
        write_atomically(out / path.relative_to(folder).with_suffix(path.suffix.removesuffix(".gz")), text)
    return out


def published_points(folder: Path) -> list[list[Turn]]:
    """The turns of each load of a publication. Raises PublicationError or ValueError for a broken file."""
    return [
        [Turn.model_validate_json(line) for line in _lines(_decompressed(path))]
        for path in sorted((folder / TRAFFIC).glob("*/*/*/*.jsonl.gz"))
    ]


def compressed(text: str) -> bytes:
    """`text` compressed with gzip, without a date, so that the same text gives the same bytes."""
    return gzip.compress(text.encode(), compresslevel=9, mtime=0)


def read_scores(folder: Path) -> list[Score]:
    """The scores of a publication. Raises PublicationError for a broken file."""
    found = []
    for location, line in read_lines(folder, "scores"):
        try:
            found.append(Score.model_validate_json(line))
        except ValueError as error:
            raise PublicationError(f"{location}: not a score ({first_line(error)})") from error
    return found


def read_lines(folder: Path, stem: str = "records") -> list[tuple[str, str]]:
    """(file and line, text) for every line of `stem`.jsonl.gz or of its parts. Raises PublicationError for a broken
    file.
    """
    parts = sorted(folder.glob(f"{stem}*.jsonl.gz"), key=lambda path: (len(path.name), path.name))
    return [
        (f"{'/'.join(path.parts[-5:])}:{number}", line)
        for path in parts
        for number, line in enumerate(_lines(_decompressed(path)), 1)
    ]


def _pack_job(job: MeasuredJob, folder: Path, names: Sequence[str], embedded: set[str]) -> None:
    """Write one replicate of a job: its records, its index with digests of the published records, its environment."""
    there = replicate_folder(folder / "records" / Path(*job.key), job.replicate)
    index: dict[str, Any] = {"cells": {}, "failed": without_addresses(scrubbed(job.failed, names))}
    lines: dict[str, list[str]] = {"records": []}
    for slug, path in job.files.items():
        found = _public_lines(path, embedded)
        lines["records"] += found
        index["cells"][slug] = {
            "records": f"{slug}.jsonl",
            "sha256": _digest(found),
            "digest": json.loads(found[0])["digest"] if found else "",
        }
        for number, other in other_attempts(path).items():
            lines.setdefault(f"{ATTEMPT}{number}", []).extend(_public_lines(other, embedded))
    for stem, found in lines.items():
        _write_lines(there, stem, found)
    _json(there / "index.json", index)
    if job.environment:
        _json(there / "environment.json", without_addresses(scrubbed(job.environment, names)))


def _public_lines(path: Path, embedded: set[str]) -> list[str]:
    """The lines of a record file, without texts where the task's prompts are not embedded ones."""
    found = _lines(_text(path))
    records = _parsed(path, found)
    if not records or records[0]["cell"]["task"] in embedded:
        return found
    blank = {"text": "", "baseline_text": "", "ends": None}
    return [json.dumps({**record, **blank}, separators=(",", ":")) for record in records]


def _unpack_job(index_path: Path, folder: Path, out: Path) -> None:
    where = index_path.parent.relative_to(folder)
    cells = _by_cell(read_lines(index_path.parent))
    index = published_index(index_path)
    for slug in index["cells"]:
        if slug not in cells:
            raise PublicationError(f"{where}: index.json names the cell {slug}, of which there are no records")
        write_atomically(out / where / f"{slug}.jsonl", _joined(cells[slug]))
    for number in attempt_numbers(index_path.parent):
        for slug, lines in _by_cell(read_lines(index_path.parent, f"{ATTEMPT}{number}")).items():
            write_atomically(attempt_file(out / where / f"{slug}.jsonl", number), _joined(lines))
    _json(out / where / "index.json", index)
    environment = index_path.with_name("environment.json")
    if environment.is_file():
        _json(out / where / "environment.json", _read_json(environment))


def published_index(path: Path, rows: Literal["cells", "points"] = "cells") -> dict[str, Any]:
    """A job's `index.json`, see `records.read_index`.

    Raises PublicationError for another content, and for one that names records in another folder.
    """
    try:
        index = read_index(path, rows)
    except RecordError as error:
        raise PublicationError(f"{path}: not an index of records; restore the file") from error
    for slug, entry in index[rows].items():
        if Path(entry["records"]).name != entry["records"]:
            raise PublicationError(f"{path}: {slug}: its records are not beside the index; restore the file")
    return index


def _inside(folder: Path, key: str, name: str) -> str:
    """The path of a file that study.json names. Raises PublicationError for a file outside the publication."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise PublicationError(f"{folder / 'study.json'}: {key}: {name} is outside the publication; restore the file")
    return str(path)


def attempt_numbers(job: Path) -> list[int]:
    """The numbers of the attempts of which a job's folder holds some that do not count."""
    return sorted({int(path.name[len(ATTEMPT)]) for path in job.glob(f"{ATTEMPT}[1-9]*.jsonl.gz")})


def _by_cell(lines: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Slug -> the lines of this cell's records. Raises PublicationError for a line that is no record."""
    cells: dict[str, list[str]] = {}
    for location, line in lines:
        try:
            version = json.loads(line).get("schema_version")
            if version not in SCHEMA_VERSIONS:
                raise PublicationError(
                    f"{location}: record schema {version}, this SpecRig reads {', '.join(map(str, SCHEMA_VERSIONS))}"
                )
            slug = Record.model_validate_json(line).cell.slug
        except (ValueError, AttributeError, RecursionError) as error:
            if isinstance(error, PublicationError):
                raise
            raise PublicationError(f"{location}: not a record ({first_line(error)})") from error
        if Path(slug).name != slug:  # it would be written elsewhere
            raise PublicationError(f"{location}: the cell {slug!r} cannot name a file; restore the file")
        cells.setdefault(slug, []).append(line)
    return cells


def _write_lines(folder: Path, stem: str, lines: Sequence[str]) -> None:
    parts = _parts(lines)
    for number, part in enumerate(parts, 1):
        _write(folder / (f"{stem}.jsonl.gz" if len(parts) == 1 else f"{stem}-{number}.jsonl.gz"), part)


def _parts(lines: Sequence[str]) -> list[bytes]:
    """The lines compressed, divided into parts of at most `LIMIT` bytes (a single line may exceed it)."""
    part = compressed(_joined(lines))
    if len(part) <= LIMIT or len(lines) < 2:
        return [part]
    half = len(lines) // 2
    return _parts(lines[:half]) + _parts(lines[half:])


def _pack_rows(study: StudyData, folder: Path, names: Sequence[str]) -> dict[str, str | None]:
    """Copy the tables that a study was read from, without what reveals this machine; returns table -> file name."""
    found: dict[str, str | None] = {}
    for name in ROWS:
        source = Path((study.config.get("tables") or {}).get(name) or "")
        text = _text(source) if source.is_file() else None
        if text is not None and name != "reported":  # of reported figures none may be missing
            text = _public_rows(text, source.suffix, (study.config.get("rows") or {}).get(name) or {}, names)
        public = text is not None and scrub_text(text, names) == text
        # A study names tables of pairs and tasks even where these are not published: then its own rows replace them.
        public_name = f"{name}{source.suffix if public else '.tsv'}"
        found[name] = public_name if public or name != "reported" else None
        if public and text is not None:
            write_atomically(folder / public_name, text)
    return found


def _public_rows(text: str, suffix: str, own: Collection[str], names: Sequence[str]) -> str:
    """A table without the rows that reveal this machine; those of `own`, the study's, are kept and scrubbed.

    A .csv file with quotes stays as it is, since its rows may have several lines.
    """
    if suffix == ".csv" and '"' in text:
        return text
    sign, lines = "," if suffix == ".csv" else "\t", []
    for line in text.split("\n"):
        public = scrub_text(line, names)
        if public == line or line.partition(sign)[0] in own:
            lines.append(public)
    return "\n".join(lines)


def _public_study(config: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    public: dict[str, Any] = scrubbed(config, names)
    public["servers"] = [{**without_addresses(server), "api_key_env": None} for server in public.get("servers") or []]
    public |= {"results": "results", "reports": "reports"}
    return public


def _embedded_tasks(config: dict[str, Any]) -> set[str]:
    """The names of the tasks whose prompts come from the embedded corpus."""
    tasks = (config.get("rows") or {}).get("tasks") or {}
    return {name for name, row in tasks.items() if row.get("source") == "corpus"}


def _digest(lines: Sequence[str]) -> str:
    return sha256(_joined(lines).encode()).hexdigest()


def _lines(text: str) -> list[str]:
    # Not splitlines(): it also cuts at signs that may stand inside a JSON string.
    return [line for line in text.split("\n") if line]


def _joined(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise PublicationError(f"{path}: cannot be read ({error}); restore the file") from error


def _parsed(path: Path, lines: Sequence[str]) -> list[dict[str, Any]]:
    """The objects in the lines of a file. Raises PublicationError, with the line, for another content."""
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(dict(json.loads(line)))
        except (ValueError, TypeError, RecursionError) as error:
            raise PublicationError(f"{path}:{number}: not a record ({error}); restore the file") from error
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except ValueError as error:
        raise PublicationError(f"{path}: cannot be read ({error}); restore the file") from error


def _decompressed(path: Path) -> str:
    try:
        return gzip.decompress(path.read_bytes()).decode()
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise PublicationError(f"{path}: cannot be unpacked ({error}); restore the file") from error
