"""The record: one prompt of one cell, method and baseline side by side. Everything later is computed from these.

A cell's records are one JSONL file, written whole or not at all. No torch here: analysis reads records on any machine.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specrig.cell import Cell

SCHEMA_VERSION: Literal[3] = 3
SCHEMA_VERSIONS = (1, 2, 3)
"""What this code reads. 2 added `energy_j` and `device`, 3 `replicate`, `load`, `before` and `after`; older records do not have them."""
NOT_RECORDED = "not recorded"
"""What tables say of a cell whose records are older than `load`, and whose times give nothing against it."""
REPLICATE = "replicate-"
"""What the folder of a further replicate is called, before its number."""


class RecordError(ValueError):
    """A record file that cannot be used; says which file, which line and what to do."""


class Rounds(BaseModel):
    """Per-round accounting of one generation; the lists run in parallel, one entry a target verification pass.

    `drafted`: draft tokens offered (tree nodes for a tree). `depth`: length of the longest offered path (= `drafted` for a
    chain). `accepted`: draft tokens accepted and emitted or cut by the stop rule. `emitted`: tokens that reached the
    output in this round, the correction or bonus token included. `cut` marks a last round that the stop rule
    (end of sequence, length limit) shortened: it is left out of `acceptance_length`.
    """

    model_config = ConfigDict(extra="forbid")

    drafted: list[int] = Field(default_factory=list)
    depth: list[int] = Field(default_factory=list)
    accepted: list[int] = Field(default_factory=list)
    emitted: list[int] = Field(default_factory=list)
    cut: bool = False


class Counts(BaseModel):
    """An engine's own counters, where it does not tell round by round.

    `rounds`: target verification passes. `drafted`, `accepted`: draft tokens over all of them, None where the engine does not say.
    `per_position`: how many rounds accepted the draft token at position 1, 2, …
    """

    model_config = ConfigDict(extra="forbid")

    rounds: int
    drafted: int | None = None
    accepted: int | None = None
    per_position: list[int] | None = None


class DeviceState(BaseModel):
    """What a device said of itself right after a generation; None: it does not tell."""

    model_config = ConfigDict(extra="forbid")

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    throttled: list[str] = Field(default_factory=list)
    """What held the clocks down."""


class Load(BaseModel):
    """What the machine did from right before a generation to right after it. In seconds, those of several processors added up.

    None: not told by the system, or not asked because the work was done by other processes or on another device.
    """

    model_config = ConfigDict(extra="forbid")

    elapsed_s: float
    own_s: float
    """Processor time of the job's own processes."""
    others_s: float
    """Processor time of everything else."""
    steal_s: float
    """Processor time that the host of a virtual machine gave to others while this machine asked for it."""
    waited_s: float | None = None
    """How long the job's threads were ready to run while no processor was free for them."""
    held_s: float | None = None
    """How long the measuring thread neither ran nor was ready to: suspended, or waiting for a disk or another thread."""
    slept_s: float = 0.0
    """How long the whole machine was suspended."""

    def plus(self, other: Load) -> Load:
        """Both stretches together."""
        ours, theirs = self.model_dump(), other.model_dump()
        both = {name: None if None in (value, theirs[name]) else round(value + theirs[name], 4) for name, value in ours.items()}
        return Load.model_validate(both)


class Probe(BaseModel):
    """What the machine could do at one moment between two blocks of cells, measured in the same short way each time."""

    model_config = ConfigDict(extra="forbid")

    when: str
    """UTC, ISO 8601."""
    copy_gb_s: float | None = None
    """Bytes read and written, of a copy larger than the caches."""
    product_gflop_s: float | None = None
    """Of a product of two matrices in float32."""
    load_1min: float | None = None


class Run(BaseModel):
    """One generation for one prompt. Times in seconds; in a batch they are the whole batch's."""

    model_config = ConfigDict(extra="forbid")

    tokens: list[int]
    """Emitted token ids, end-of-sequence included; the prompt is not."""
    stop: Literal["eos", "length"]
    rounds: Rounds
    counts: Counts | None = None
    """Instead of `rounds` (then empty) where the engine gives totals only; None with empty rounds: it offers neither."""
    overlap: float = 0.0
    """Sum over reached draft positions of Σ_x min(p(x), q(x)); `overlap / reached` is alpha."""
    reached: int = 0
    """Draft positions that verification looked at: accepted ones and the first rejected one of each round."""
    ttft_s: float
    """Prompt in to first token out: the target's prefill and one sample."""
    prefill_s: float
    """`ttft_s` plus the drafter's own prefill."""
    decode_s: float
    """First token out to last token out."""
    target_passes: dict[int, tuple[int, float]] = Field(default_factory=dict)
    """Width n of a bare target forward pass in decoding -> (calls, seconds)."""
    draft_passes: dict[int, tuple[int, float]] = Field(default_factory=dict)
    """The same for the drafter's own model or head; empty where it has none."""
    peak_memory_mb: float = 0.0
    """0 where the engine cannot know it."""
    energy_j: float | None = None
    """Joules of the device over the whole generation, prefill included; in a batch the whole batch's. None where nothing counts them."""
    device: DeviceState | None = None
    load: Load | None = None
    """In a batch the whole batch's. None: not recorded."""
    prefill_tokens: int = 1
    """Tokens that were out at `ttft_s`: 1, but for an engine that verifies drafts in the prompt's own pass, whose first round it is."""


class Record(BaseModel):
    """One prompt of one cell."""

    model_config = ConfigDict(extra="forbid")

    schema_version: Literal[1, 2, 3] = SCHEMA_VERSION
    cell: Cell
    digest: str
    """Digest of everything that decides the result (cell, study settings, prompts, models, code): a record with another is stale."""
    prompt_id: str
    group: int
    """Index of the batch the prompt ran in; timing is per group. With batch_size 1, one prompt a group."""
    repeat: int = 0
    """Which time in one process."""
    replicate: int = 0
    """Which of the study's replicates: the same cell measured by another process, at another time of the run, with the same prompts."""
    seed: int
    prompt_tokens: int
    text: str
    """The method's output, decoded for people; never counted."""
    baseline_text: str
    baseline_alone: bool = False
    """True: the baseline's prompts ran one by one, so that the times of a group's baselines add up."""
    lossless: bool = True
    """False for a method whose acceptance rule does not keep the target's distribution."""
    simulated_acceptance: float | None = None
    """Not None: random weights, and this the declared chance that a drafted token is accepted; costs are real, texts mean nothing."""
    run: Run
    baseline: Run
    """Where baseline and method could not alternate: times are the mean of a run before the method and one after it."""
    baseline_drift: float | None = None
    """Then: decode seconds per token of the baseline after / before - 1; None where they alternated."""
    before: Probe | None = None
    """The machine before the cell's block; at most `surroundings.RENEWED_S` older than its start. None: not recorded."""
    after: Probe | None = None
    """And at its end."""


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to `path` so that a reader, or a kill at any moment, sees the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a full disk is reported without a name
        raise


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write a cell's records as one JSONL file, atomically."""
    write_atomically(path, "".join(record.model_dump_json() + "\n" for record in records))


def read_records(path: Path) -> Iterator[Record]:
    """Yield a cell's records. Raises RecordError naming the file and line of anything that is not a whole record."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                version = json.loads(line).get("schema_version")
                if version not in SCHEMA_VERSIONS:
                    raise RecordError(
                        f"{path}:{number}: record schema {version}, this SpecRig reads {SCHEMA_VERSIONS}; "
                        "delete the file to measure its cell again"
                    )
                yield Record.model_validate_json(line)
            except (json.JSONDecodeError, ValidationError, AttributeError) as error:
                raise RecordError(
                    f"{path}:{number}: not a record ({str(error).splitlines()[0]}); delete the file to measure its cell again"
                ) from error


def replicate_folder(job: Path, replicate: int) -> Path:
    """Where a replicate's records lie: the first one's in the folder of its job, where studies without replicates have theirs."""
    return job / f"{REPLICATE}{replicate}" if replicate else job


def replicate_of(folder: str | Path) -> int:
    """The replicate whose records lie in a folder, from its name."""
    name = Path(folder).name
    return int(name.removeprefix(REPLICATE)) if name.startswith(REPLICATE) else 0


def study_records(root: Path, replicates: int | None = None) -> list[Record]:
    """Every record that the `index.json` files below `root` (a study's `records/` folder) name, in path order.

    Records of cells, and with `replicates` of replicates, that have left the study stay on disk (they may come back) but are not read.
    """
    found: list[Record] = []
    for index in sorted(root.rglob("index.json")):
        if replicates is None or replicate_of(index.parent) < replicates:
            for entry in json.loads(index.read_text(encoding="utf-8"))["cells"].values():
                found += read_records(index.parent / entry["records"])
    return found
