"""The record of one prompt of one cell, with the method's run and the baseline's. All results are computed from
records.

The records of a cell are one JSONL file, which is written whole or not at all. No torch here, so that any machine can
read them.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from specrig.cell import Cell
from specrig.errors import first_line
from specrig.files import write_atomically

SCHEMA_VERSION: Literal[5] = 5
"""The version of records that this code writes and reads. Since version 5 a record holds every repeat of its prompt."""


class RecordError(ValueError):
    """A record file that cannot be used. The message names the file, the line and the fix."""


MARKERS = {"records": "measured", "traffic": "under_load"}
"""Folder of a study's results -> the folder with a file for each finished job that writes there. Its own files are no
outputs for Snakemake, which misses none."""


def made_again(path: Path) -> str:
    """The fix for a damaged file in a study's results: the commands that make it again. CONFIG is the study's config.

    Without its file in `MARKERS` a job runs again, and measures only what is not there. The records beside an
    `environment.json` go with it: without it nobody knows where they were measured.
    """
    part = next((part for part in path.parts if part in MARKERS), None)
    if part is None:
        return f"make it again: rm {path}; specrig run CONFIG"
    root = Path(*path.parts[: path.parts.index(part)])
    damaged = path.parent if path.name == "environment.json" else path
    return f"make it again: rm -r {damaged} {root / MARKERS[part]}; specrig run CONFIG"


class Rounds(BaseModel):
    """The rounds of one generation. Each list has one entry for each verification pass of the target.

    `drafted`: number of draft tokens that were verified (the nodes of a tree). `depth`: tokens on the longest drafted
    path; the same as `drafted` for a chain. `accepted`: draft tokens that were accepted, without those that the stop
    rule then cut off. `emitted`: tokens that reached the output, with the correction or bonus token. `cut`: whether the stop
    rule (end of sequence or length limit) shortened the last round, which is then left out of `acceptance_length`.
    """

    model_config = ConfigDict(extra="forbid")

    drafted: list[int] = Field(default_factory=list)
    depth: list[int] = Field(default_factory=list)
    accepted: list[int] = Field(default_factory=list)
    emitted: list[int] = Field(default_factory=list)
    cut: bool = False


class Counts(BaseModel):
    """Totals over one generation from an engine that does not report each round.

    `rounds`: verification passes of the target. `drafted`, `accepted`: draft tokens in all rounds, None if it does not
    say. `per_position`: number of rounds that accepted the draft token at position 1, 2, …
    """

    model_config = ConfigDict(extra="forbid")

    rounds: int
    drafted: int | None = None
    accepted: int | None = None
    per_position: list[int] | None = None


class DeviceState(BaseModel):
    """A device's clocks in MHz right after a generation; None if the device does not report one."""

    model_config = ConfigDict(extra="forbid")

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    throttled: list[str] = Field(default_factory=list)
    """Reasons why the clocks were lower than they could be."""


Timing = Literal["rounds", "run", "mean"]
"""How a decode time follows from repeats: the sum of the least times of rounds, the least whole run, or the mean time
per token (`measurement.repeats`)."""


class Repeat(BaseModel):
    """The times of one repeat of a generation, in seconds; in a batch, those of the whole batch."""

    model_config = ConfigDict(extra="forbid")

    tokens: int
    """Tokens that were decoded in `decode_s`, by all prompts of the batch."""
    ttft_s: float
    prefill_s: float
    decode_s: float
    round_s: list[float] = Field(default_factory=list)
    """Seconds of each round, drafting included; they add up to `decode_s`. Empty: the engine reports totals only."""
    energy_j: float | None = None


class Run(BaseModel):
    """What one side generated for one prompt, and how long that takes by its repeats.

    Times are in seconds; in a batch, they are those of the whole batch.
    """

    model_config = ConfigDict(extra="forbid")

    tokens: list[int]
    """Generated token ids, with the end-of-sequence token and without the prompt."""
    stop: Literal["eos", "length"]
    rounds: Rounds
    counts: Counts | None = None
    """Totals from an engine without rounds; `rounds` is then empty. None with empty `rounds`: neither is reported."""
    overlap: float = 0.0
    """Σ_x min(p(x), q(x)) of target p and draft q over the reached positions; `overlap / reached` estimates α."""
    reached: int = 0
    """Draft positions that verification judged: in each round the accepted ones and the first rejected one."""
    ttft_s: float
    """Seconds to the first token: the target's prefill and one sample."""
    prefill_s: float
    """`ttft_s` plus the seconds of the drafter's own prefill."""
    decode_s: float
    """Seconds from the first token to the last one, by `timing` from `repeats`."""
    repeats: list[Repeat] = Field(default_factory=list)
    """The times of every repeat, in the order in which they ran."""
    timing: Timing = "run"
    settled: bool = True
    """Whether the last repeat changed `decode_s` by less than the study's `repeats.agree`."""
    target_passes: dict[int, tuple[int, float]] = Field(default_factory=dict)
    """Width of the target's forward passes in decoding, in tokens -> (number of passes, their seconds)."""
    draft_passes: dict[int, tuple[int, float]] = Field(default_factory=dict)
    """Width of the passes of the drafter's own model or head, in tokens -> (number, seconds); empty if it has none."""
    peak_memory_mb: float = 0.0
    """Peak memory of the generation in MB; 0 if the engine cannot know it."""
    energy_j: float | None = None
    """Joules of the device in the generation, prefill included (in a batch, of the whole batch); None: not counted."""
    device: DeviceState | None = None
    fallbacks: list[str] = Field(default_factory=list, exclude_if=operator.not_)
    """What the process could not do as fast as it should, so far (`runtime.types.FALLBACKS`), and what a server's answer
    lacks (`Generation.notes`)."""
    prefill_tokens: int = 1
    """Tokens generated by `ttft_s`: 1, or more if the engine verifies drafts in the prompt's pass."""


class Record(BaseModel):
    """The record of one prompt of one cell: what was run, the method's run and the baseline's."""

    model_config = ConfigDict(extra="forbid")

    schema_version: Literal[5] = SCHEMA_VERSION
    cell: Cell
    digest: str
    """Digest of all that decides the result (`MeasurementPlan.digests`); a record with another digest is stale."""
    prompt_id: str
    group: int
    """Number of the batch in which the prompt ran; times are those of the batch. Batch size 1: a group a prompt."""
    seed: int
    prompt_tokens: int
    text: str
    """The method's output as text, for people and scorers; tokens are never counted by it."""
    ends: list[int] | None = None
    """For each token of `run`: how many characters of `text` it and the tokens before it make; None: not recorded."""
    baseline_text: str
    baseline_alone: bool = False
    """Whether the baseline's prompts ran one by one; then the baseline times of a group must be added up."""
    lossless: bool = True
    """Whether the method's acceptance rule keeps the target's distribution."""
    simulated_acceptance: float | None = None
    """The declared probability that a drafted token is accepted. Costs are real, texts are not."""
    chosen: dict[str, Any] = Field(default_factory=dict)
    """What the engine chose for the cell by timing, once a job: `pass_costs` by rows of a batch."""
    run: Run
    baseline: Run
    when: str | None = None
    """When the last repeat ended, in UTC, ISO 8601."""

    @property
    def settled(self) -> bool:
        """Whether the times of both method and baseline settled."""
        return self.run.settled and self.baseline.settled


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write the records of a cell as one JSONL file, whole or not at all."""
    write_atomically(path, "".join(record.model_dump_json() + "\n" for record in records))


def read_records(path: Path) -> Iterator[Record]:
    """Yield the records of a cell's file. Raises RecordError, with file and line, for an incomplete record."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                version = json.loads(line.decode("utf-8")).get("schema_version")
                if version != SCHEMA_VERSION:
                    raise RecordError(
                        f"{path}:{number}: record schema {version}, this SpecRig reads {SCHEMA_VERSION}; "
                        f"{made_again(path)}"
                    )
                yield Record.model_validate_json(line)
            except RecordError:
                raise
            except (ValueError, AttributeError, RecursionError) as error:
                raise RecordError(f"{path}:{number}: not a record ({first_line(error)}); {made_again(path)}") from error


def groups(records: Iterable[Record]) -> list[list[Record]]:
    """The records of each batch, in the order of `Record.group`."""
    found: dict[int, list[Record]] = {}
    for record in records:
        found.setdefault(record.group, []).append(record)
    return [found[key] for key in sorted(found)]


def baselines(members: Sequence[Record]) -> list[Run]:
    """The baseline's runs of one group whose times may be summed.

    Where the baseline ran prompt by prompt these are the runs of all rows. Otherwise it is the first row's run alone,
    because every row of a batch carries the times of the whole batch.
    """
    return [record.baseline for record in (members if members[0].baseline_alone else members[:1])]


def study_records(root: Path) -> list[Record]:
    """Read every record that the `index.json` files below `root` (a study's `records/` folder) name, in the order of
    paths.

    Records of cells that were removed from the study stay on disk, since the cells may come back, but are not read.
    """
    found: list[Record] = []
    for index in sorted(root.rglob("index.json")):
        for entry in read_index(index)["cells"].values():
            found += read_records(index.parent / entry["records"])
    return found


def read_index(path: Path, rows: Literal["cells", "points"] = "cells") -> dict[str, Any]:
    """A job's `index.json`: its `rows` (`points` of traffic) and `failed`. Raises RecordError, with the path, for another
    content.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = {rows: dict(content[rows]), "failed": dict(content.get("failed", {}))}
        if all(isinstance(entry["records"], str) for entry in found[rows].values()):
            return found
        reason = f"one of its {rows} has no file of records"
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        reason = "it is not an index of records"
    raise RecordError(f"{path}: damaged ({reason}); {made_again(path)}")
