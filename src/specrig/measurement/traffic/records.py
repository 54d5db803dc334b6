"""The record of one turn of a server under one load, with every request that was sent. No torch here.

The turns of a point are one JSONL file in `traffic/<engine>/<pair>/<method>`, written whole or not at all. It is a file
of its own kind: records of cells (`measurement.records`) know nothing of load.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specrig.errors import first_line
from specrig.files import file_sha256, write_atomically
from specrig.measurement.records import Counts, RecordError, made_again, read_index
from specrig.study.traffic import Point

FOLDER = "traffic"
"""Folder in a study's results."""
TRAFFIC_VERSION: Literal[2] = 2


class Request(BaseModel):
    """One request. Times are seconds since its turn began.

    part: `warm-up` and `cool-down` keep the load up before and after those that count.
    """

    model_config = ConfigDict(extra="forbid")

    prompt_id: str
    part: Literal["warm-up", "counted", "cool-down"]
    due_s: float
    """When it should be sent: latencies count from here, so a client that is late hides no waiting."""
    sent_s: float
    first_s: float | None = None
    """When the first tokens came; None: none came."""
    first_tokens: int = 0
    """How many tokens came first."""
    last_s: float
    """When the last tokens came, or the error."""
    tokens: list[int] = Field(default_factory=list)
    error: str = ""
    """Why there is no answer; empty: it was answered."""
    timed_out: bool = False
    """Whether the error is a time-out."""


class Turn(BaseModel):
    """One turn of a method or of its baseline at a point."""

    model_config = ConfigDict(extra="forbid")

    schema_version: Literal[2] = TRAFFIC_VERSION
    point: Point
    digest: str
    """Digest of all that decides the result; a file with another digest is stale."""
    turn: int
    is_baseline: bool
    began: str
    """Time in UTC, ISO 8601."""
    client_cpu_s: float
    """Processor time of this process, which sends the requests."""
    counts: Counts | None = None
    """What the server counted of its speculation during the turn; `rounds` are those with a draft."""
    energy_j: float | None = None
    """Joules of the device meanwhile; None where it has no counter."""
    requests: list[Request]

    @property
    def counted(self) -> list[Request]:
        """The requests that count."""
        return [request for request in self.requests if request.part == "counted"]


def first_answers(turns: Sequence[Turn]) -> dict[str, list[int]]:
    """Prompt id -> the first answer that the baseline gave to it in the first of its turns that has one, as token ids."""
    plain = [turn for turn in turns if turn.is_baseline]
    return {
        request.prompt_id: request.tokens
        for turn in reversed(plain)
        for request in reversed(turn.requests)
        if request.tokens
    }


def write_turns(path: Path, turns: Iterable[Turn]) -> None:
    """Write the turns of a point as one JSONL file, whole or not at all."""
    write_atomically(path, "".join(turn.model_dump_json() + "\n" for turn in turns))


def read_turns(path: Path) -> Iterator[Turn]:
    """Yield the turns of a point. Raises RecordError, with file and line, for what is no whole record."""
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            yield Turn.model_validate_json(line)
        except ValidationError as error:
            raise RecordError(f"{path}:{number}: not a turn ({first_line(error)}); {made_again(path)}") from error


def damaged_points(folder: Path) -> list[str]:
    """The points of a job that failed, and those whose files are not as its index says; the index if it is damaged."""
    try:
        index = read_index(folder / "index.json", "points")
    except RecordError:
        return ["index.json"]
    changed = [
        slug
        for slug, entry in index["points"].items()
        if not (path := folder / entry["records"]).is_file() or file_sha256(path) != entry["sha256"]
    ]
    return sorted([*index["failed"], *changed])


def study_turns(root: Path) -> tuple[dict[Path, list[Turn]], dict[str, str]]:
    """(file -> its turns, name of a failed point -> why) of a study's results folder `root`, in the order of paths."""
    found: dict[Path, list[Turn]] = {}
    failed: dict[str, str] = {}
    for index in sorted((root / FOLDER).glob("*/*/*/index.json")):
        content = read_index(index, "points")
        job = index.parent.relative_to(root / FOLDER).as_posix()
        failed |= {f"{job}/{slug}": why for slug, why in content["failed"].items()}
        for entry in content["points"].values():
            path = index.parent / entry["records"]
            found[path] = list(read_turns(path))
    return found, failed
