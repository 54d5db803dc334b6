"""What of a study's results is no longer as it was written. It is found before a run and set aside, so that the run
makes it again.

Files are written whole or not at all, but a disk that fails, a copy that broke off or an editor may cut or change them
later. Records are held against the sums in their job's `index.json`, trained models against the `SHA256SUMS` beside
them. No torch here, and nothing that measures or trains imports this file, so that a change here makes no result stale.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from hashlib import file_digest
from pathlib import Path

from specrig.measurement.records import RecordError, read_records, write_atomically

SUMS = "SHA256SUMS"
"""File with the sums of the files beside it, in the format of `sha256sum -c`."""
ASIDE = ".damaged-"
"""Added with a number to the name of a damaged file or model folder that is set aside."""


def write_hashes(folder: Path, names: Iterable[str] | None = None) -> None:
    """Write the sums of a folder's files, which have just been made, into its `SHA256SUMS`; of all files if no `names`
    are given.
    """
    if names is None:
        names = [path.name for path in folder.iterdir() if path.is_file() and path.name != SUMS]
    write_atomically(folder / SUMS, "".join(f"{_sum(folder / name)}  {name}\n" for name in sorted(names)))


def damaged_files(folder: Path) -> dict[Path, str]:
    """The files of a folder that are not as its `SHA256SUMS` says -> what is wrong. Empty without such a file."""
    sums = folder / SUMS
    if not sums.is_file():
        return {}
    lines = [line.partition("  ") for line in sums.read_text(encoding="utf-8", errors="replace").splitlines()]
    return _differing({folder / name: expected for expected, _, name in lines if name})


def damaged_records(job: Path) -> dict[Path, str]:
    """The files in a job's folder of records that are not as they were written -> what is wrong.

    A file that the index does not name (the job was cut before it wrote the index, or the cell left the study) must at
    least be readable to its end.
    """
    index = job / "index.json"
    found: dict[Path, str] = {}
    sums: dict[Path, str] = {}
    if index.is_file():
        try:
            cells = json.loads(index.read_text(encoding="utf-8"))["cells"]
            sums = {job / entry["records"]: entry["sha256"] for entry in cells.values()}
        except (ValueError, LookupError, TypeError, AttributeError):
            found[index] = "it is no index of records"
    found |= _differing(sums)
    for path in sorted(job.glob("*.jsonl")):
        if path in sums and path not in found:
            continue
        try:
            if not list(read_records(path)):
                found[path] = "it is empty"
        except (RecordError, UnicodeDecodeError) as error:
            # The message begins with the path and ends with what a user would have to do, which the run does by itself.
            found[path] = str(error).replace(f"{path}:", "line ").partition("; ")[0]
    return found


def quarantine(found: Mapping[Path, str]) -> list[str]:
    """Rename what is damaged to `<name>.damaged-<number>` and return a sentence about each. An empty file stands for a
    missing one.

    A job's index goes, since it would name files that are not there; the job, which runs again, writes a new one.
    """
    said = []
    for path, reason in found.items():
        aside, kept = _aside(path), path.exists()
        if kept:
            path.replace(aside)
        else:
            aside.touch()
        (path.parent / "index.json").unlink(missing_ok=True)
        said.append(
            f"{path} is damaged and will be made again: {reason}.{f' It is kept as {aside.name}.' if kept else ''}"
        )
    return said


def reset_future_times(root: Path) -> int:
    """Give files that seem to be written later than now the time of now; returns how many there were.

    They are left when the clock is set back. Snakemake deletes what is made from them, since it would be older than
    they are.
    """
    now = time.time()
    later = [path for path in root.rglob("*") if path.is_file() and path.stat().st_mtime > now]
    for path in later:
        os.utime(path, (now, now))
    return len(later)


def quarantined_names(folder: Path, found: Iterable[Path], stem: str = "*") -> list[str]:
    """Names under which damaged files of a folder lie aside, or will once `quarantine` has renamed those in `found`.

    The workflow has them among a job's params: new damage makes the job run again, and once it has run, nothing
    changes.
    """
    names = {path.name for path in folder.glob(f"{stem}{ASIDE}*")} | {_aside(path).name for path in found}
    return sorted(names)


def _aside(path: Path) -> Path:
    return path.with_name(f"{path.name}{ASIDE}{1 + len(list(path.parent.glob(f'{path.name}{ASIDE}*')))}")


def _differing(sums: Mapping[Path, str]) -> dict[Path, str]:
    """The files that are missing or have another SHA-256 than expected."""
    found = {}
    for path, expected in sums.items():
        if not path.is_file():
            found[path] = "it is missing"
        elif _sum(path) != expected:
            found[path] = "its content is not what was written"
    return found


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
