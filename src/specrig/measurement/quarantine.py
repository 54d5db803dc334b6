"""Quarantine: result files that are damaged or disturbed get another name, so that the next run makes them again. What
failed leaves a name too.

Files are written whole or not at all. A failing disk, a cut copy or an editor may still change them later. So records
are compared with the hashes in their folder's `index.json`, trained models with the `SHA256SUMS` beside them, all else
that stages read with the hashes that the last run left (`write_ledger`). No torch here. Nothing that measures or trains
imports this file, so a change here makes no result stale.
"""

from __future__ import annotations

import csv
import io
import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from specrig.files import file_sha256, write_atomically
from specrig.measurement.attempts import other_attempts
from specrig.measurement.records import RecordError, read_records

HASHES = "SHA256SUMS"
"""File with the sums of the files beside it, in the format of `sha256sum -c`."""
LEDGER = ".sums.json"
"""File in a study's results folder with the hashes of the files in `LISTED`."""
ENVIRONMENT, INDEX = "environment.json", "index.json"
LISTED = (
    *("corpus/*", "prompts/*", "prompts/*/*", "data/*", "answers/*/*", "converted/*/*"),
    *("audit/*.csv", "tables/*", "figures/*", "figures/*/*"),
    f"records/**/{ENVIRONMENT}",
)
"""What stages make and read, besides records and trained models."""
DAMAGED, DISTURBED = ".damaged-", ".disturbed-"
"""Added with a number to the name of a quarantined file or model folder."""
FAILED = ".failed-"
"""Added to the name of a cell or point that has failed, with the number of its failures."""


def write_hashes(folder: Path, names: Iterable[str] | None = None) -> None:
    """Write the hashes of a folder's new files into its `SHA256SUMS`; of all files if no `names` are given."""
    if names is None:
        names = [path.name for path in folder.iterdir() if path.is_file() and path.name != HASHES]
    write_atomically(folder / HASHES, "".join(f"{file_sha256(folder / name)}  {name}\n" for name in sorted(names)))


def damaged_files(folder: Path) -> dict[Path, str]:
    """The files of a folder that are not as its `SHA256SUMS` says -> what is wrong. Empty without such a file."""
    sums = folder / HASHES
    if not sums.is_file():
        return {}
    lines = [line.partition("  ") for line in sums.read_text(encoding="utf-8", errors="replace").splitlines()]
    if not lines or not all(len(expected) == 64 and name for expected, _, name in lines):
        return {sums: "it is not a list of hashes"}
    return _differing({folder / name: expected for expected, _, name in lines if name})


def write_ledger(root: Path) -> None:
    """Write the hashes of the files in `LISTED` of the results folder `root`, at the end of a run."""
    sums = {path.relative_to(root).as_posix(): [file_sha256(path), _measured(path)] for path in _listed(root)}
    write_atomically(root / LEDGER, json.dumps(sums, indent=1))


def damaged_listed(root: Path) -> dict[Path, str]:
    """The files in `LISTED` that are not as the last run left them -> what is wrong.

    After a run that was killed there is no ledger: then files must be readable to their end.
    """
    try:
        sums = json.loads((root / LEDGER).read_text(encoding="utf-8"))
        expected = {root / str(name): (str(own), str(measured)) for name, (own, measured) in sums.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        expected = {}
    found = {}
    for path in _listed(root):
        own, measured = expected.get(path, ("", ""))
        if own and file_sha256(path) == own:
            continue
        index = path.with_name(INDEX)
        known = own and (_measured(path) == measured or index in damaged_records(path.parent))
        reason = _unreadable(path) or ("its content is not what was written" if known else "")
        if reason:
            found[path] = reason
    return found


def _measured(path: Path) -> str:
    """The hash of the records' index beside an environment: with other records, measured since, comes another one."""
    index = path.with_name(INDEX)
    return file_sha256(index) if path.name == ENVIRONMENT and index.is_file() else ""


def _listed(root: Path) -> list[Path]:
    paths = {path for pattern in LISTED for path in root.glob(pattern) if path.is_file()}
    return sorted(path for path in paths if DAMAGED not in path.name and not path.name.startswith("."))


def _unreadable(path: Path) -> str:
    """Why the content of a file is not complete, where its kind shows it; else ""."""
    content = path.read_bytes()
    if not content:
        return "it is empty"
    if path.suffix not in {".json", ".jsonl", ".csv", ".md", ".tex", ".svg"}:
        return ""
    try:
        text = content.decode("utf-8")
        if path.suffix == ".json":
            json.loads(text)
        elif path.suffix == ".jsonl":
            for line in content.splitlines():  # of text it would also cut at U+2028
                json.loads(line)
        elif path.suffix == ".csv" and len({len(row) for row in csv.reader(io.StringIO(text, newline=""))}) != 1:
            return "its rows have different lengths"
        elif path.suffix == ".svg" and not text.rstrip().endswith("</svg>"):
            return "it has no end"
    except UnicodeDecodeError:
        return "it is not UTF-8"
    except (ValueError, RecursionError):
        return f"it is not {path.suffix.removeprefix('.').upper()}"
    except csv.Error as error:
        return f"it is no table ({error})"
    return "" if path.suffix == ".json" or text.endswith("\n") else "its last line has no end"


def damaged_records(job: Path) -> dict[Path, str]:
    """The files in a job's folder of records that are not as they were written -> what is wrong.

    A file that the index does not name (the job was cut before it wrote the index, or the cell left the study) must at
    least be readable to its end.
    """
    index = job / INDEX
    found: dict[Path, str] = {}
    sums: dict[Path, str] = {}
    if index.is_file():
        try:
            content = json.loads(index.read_text(encoding="utf-8"))
            cells, _ = content["cells"], dict(content["failed"])
            sums = {job / entry["records"]: entry["sha256"] for entry in cells.values()}
            for slug, entry in cells.items():
                if entry["records"] != f"{slug}.jsonl" or _digest_of(job / entry["records"]) not in (
                    None,
                    entry["digest"],
                ):
                    found[index] = f"what it says of {slug} is not what its records say"
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            sums = {}
            found[index] = "it is not an index of records"
    found |= _differing(sums)
    for path in sorted(job.glob("*.jsonl")):
        if path in sums and path not in found:
            continue
        try:
            if not list(read_records(path)):
                found[path] = "it is empty"
        except RecordError as error:
            # The message begins with the path and ends with what a user would have to do, which the run does by itself.
            found[path] = str(error).replace(f"{path}:", "line ").partition("; ")[0]
    return found


def _digest_of(path: Path) -> str | None:
    """The digest that the first record of a file has; None where there is none."""
    try:
        with path.open(encoding="utf-8") as file:
            return str(json.loads(file.readline())["digest"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def quarantine(found: Mapping[Path, str]) -> list[str]:
    """Rename what is damaged to `<name>.damaged-<number>`; returns a sentence about each.

    An empty file stands for a missing one. The folder's index goes too, since it would name missing files; the job,
    which runs again, writes a new one.
    """
    sentences = []
    for path, reason in found.items():
        renamed, exists = _quarantined(path, DAMAGED), path.exists()
        if exists:
            path.replace(renamed)
        else:
            renamed.touch()
        (path.parent / INDEX).unlink(missing_ok=True)
        kept = f" It is kept as {renamed.name}." if exists else ""
        sentences.append(f"{path} is damaged and will be made again: {reason}.{kept}")
    return sentences


def quarantine_disturbed(folder: Path, slugs: Iterable[str]) -> None:
    """Rename the record files of some cells to `<slug>.jsonl.disturbed-<number>`, so that they are measured again.

    The attempts that did not count are renamed too. The cells leave the index first, so that it never names a missing
    file.
    """
    index, names = folder / INDEX, list(slugs)
    if index.is_file():
        content = json.loads(index.read_text(encoding="utf-8"))
        content["cells"] = {slug: entry for slug, entry in content["cells"].items() if slug not in names}
        write_atomically(index, json.dumps(content, indent=1))
    for slug in names:
        path = folder / f"{slug}.jsonl"
        for attempt in (*other_attempts(path).values(), path):
            attempt.replace(_quarantined(path, DISTURBED))


def disturbed_names(folder: Path) -> list[str]:
    """Names of the files in a folder of records that `quarantine_disturbed` renamed; a job's param, as below."""
    return sorted(path.name for path in folder.glob(f"*{DISTURBED}*"))


def count_failures(folder: Path) -> None:
    """Count, in an empty file each, how often the cells or points that a job's index calls failed have failed."""
    for slug in json.loads((folder / INDEX).read_text(encoding="utf-8"))["failed"]:
        before = [*folder.glob(f"{slug}{FAILED}*")]
        (folder / f"{slug}{FAILED}{1 + max((_number(path) for path in before), default=0)}").touch()
        for path in before:
            path.unlink()


def failed_names(folder: Path) -> list[str]:
    """Names of the files that `count_failures` wrote; a job's param, as below.

    Each failure changes a name, so the next run measures again. A success changes none, so the run after it does not.
    """
    return sorted(path.name for path in folder.glob(f"*{FAILED}*"))


def quarantined_names(folder: Path, found: Iterable[Path], stem: str = "*") -> list[str]:
    """Names of a folder's damaged files in quarantine, and those that `quarantine` will give to the files in `found`.

    The workflow has them among a job's params: new damage makes the job run again, and once it has run, nothing
    changes.
    """
    names = {path.name for path in folder.glob(f"{stem}{DAMAGED}*")}
    return sorted(names | {_quarantined(path, DAMAGED).name for path in found})


def _number(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def _quarantined(path: Path, mark: str) -> Path:
    return path.with_name(f"{path.name}{mark}{1 + len(list(path.parent.glob(f'{path.name}{mark}*')))}")


def reset_future_times(root: Path) -> int:
    """Give files with a time in the future the present time; returns how many there were.

    They come from a clock that was set back. Snakemake would delete what is made from them: it would be older.
    """
    now = time.time()
    later = [path for path in root.rglob("*") if path.is_file() and path.stat().st_mtime > now]
    for path in later:
        os.utime(path, (now, now))
    return len(later)


def _differing(sums: Mapping[Path, str]) -> dict[Path, str]:
    """The files that are missing or have another SHA-256 than expected."""
    found = {}
    for path, expected in sums.items():
        if not path.is_file():
            found[path] = "it is missing"
        elif file_sha256(path) != expected:
            found[path] = "its content is not what was written"
    return found
