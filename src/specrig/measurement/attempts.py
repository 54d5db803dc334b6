"""Several attempts at the same cell: which one counts, and where the others stay.

A load that comes and goes within seconds moves the ratio of method to baseline, now up, now down. So the cells that the
machine's signs call disturbed are measured again at the end of the job, and the least disturbed attempt counts.
`least_disturbed` reads what the system counted, and no time of a run: an attempt that looks fast is no likelier to
count than one that looks slow. `benchmarks/attempts.py` simulates what choosing by speed would do. No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specrig.measurement.records import Record, write_records
from specrig.measurement.signs import Loads, disturbance

OTHER = ".attempt-"
"""Added to the name of a record file, with the attempt's number from 1, for attempts that do not count."""


def least_disturbed(attempts: Sequence[Loads], environment: Mapping[str, Any]) -> int:
    """The index of the attempt that counts: the one with the smallest `signs.disturbance`, of equal ones the first.

    attempts: for each, what the machine did during its generations. environment: environment.json of the job.
    """
    found = [disturbance(loads, environment) for loads in attempts]
    return found.index(min(found))


def write_attempts(path: Path, attempts: Sequence[Sequence[Record]], counted: int) -> None:
    """Write the attempt with the index `counted` as the cell's record file, and each other one beside it."""
    for old in other_attempts(path).values():
        old.unlink()
    for index, records in enumerate(attempts):
        if index != counted:
            write_records(attempt_file(path, index + 1), records)
    write_records(path, attempts[counted])


def attempt_file(path: Path, number: int) -> Path:
    """The file of an attempt that does not count, beside the record file `path`. number: from 1, in order of time."""
    return path.with_name(f"{path.name}{OTHER}{number}")


def other_attempts(path: Path) -> dict[int, Path]:
    """Number -> file of the attempts beside the record file `path`. The missing number is that of the one that counts."""
    found = {int(other.name.rpartition("-")[2]): other for other in path.parent.glob(f"{path.name}{OTHER}*")}
    return dict(sorted(found.items()))
