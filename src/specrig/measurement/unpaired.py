"""Measures with engines that cannot alternate: the baseline runs once before the methods and once after them.

Starting such an engine takes long. So all cells with the same k and options run in one engine, and a job starts the
baseline's engine only twice. Finished runs are kept as parts until the baseline's second run completes the records: a
job that was killed, or whose engine died in a baseline, continues from them. A cell that failed is measured again
between two new baseline runs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from pydantic import TypeAdapter

from specrig.cell import Cell, digest
from specrig.files import write_atomically
from specrig.measurement.records import Run

Runs = list[list[Run]]
"""The runs of one cell: for each (repeat, group), in the order in which they ran, a Run for each prompt."""
_RUNS = TypeAdapter(Runs)


class Block(Protocol):
    """Cells that share task, temperature, batch size and baseline, with ways to run them and write records."""

    baseline: Cell
    cells: list[Cell]
    failed: dict[Cell, str]

    def run_alone(self, cell: Cell) -> Runs | None:
        """Warm up and run all prompts of a cell; None if the cell fails, with the reason in `failed`."""

    def write(self, cell: Cell, runs: Runs, baseline: Runs, drifts: Sequence[float | None]) -> None:
        """Write the cell's record file."""


def measure_unpaired(blocks: Sequence[Block], digests: Mapping[Cell, str], folder: Path) -> dict[Cell, str]:
    """Run the blocks' cells between two runs of their baselines; returns the reason for each failed cell."""
    parts = folder / "parts"

    def both(block: Block, when: str) -> Runs | None:
        mark = digest([digests[cell] for cell in block.cells])
        return _kept(parts / _baseline_part(block, when), mark, lambda: block.run_alone(block.baseline))

    before = [both(block, "before") for block in blocks]
    runs: dict[Cell, Runs] = {}
    failed: dict[Cell, str] = {}
    standing = [
        (block, cell) for block, base in zip(blocks, before, strict=True) if base is not None for cell in block.cells
    ]
    order = list(dict.fromkeys(_engine_of(cell) for _, cell in standing))
    for block, cell in sorted(standing, key=lambda entry: order.index(_engine_of(entry[1]))):
        found = _kept(parts / _part(cell), digests[cell], partial(block.run_alone, cell))
        if found is None:
            failed[cell] = block.failed[cell]  # at once: a cell may be the baseline, which runs again
        else:
            runs[cell] = found
    after = [base and both(block, "after") for block, base in zip(blocks, before, strict=True)]
    unfinished: set[str] = set()
    for block, first, second in zip(blocks, before, after, strict=True):
        if first is None or second is None:
            reason = block.failed[block.baseline]
            failed |= dict.fromkeys(block.cells, f"the baseline failed: {reason}")
            unfinished |= {_baseline_part(block, "before"), *map(_part, block.cells)}
            continue
        means, drifts = _mean(first, second)
        for cell in block.cells:
            if cell in runs:
                block.write(cell, runs[cell], means, drifts)
    if unfinished:
        for path in parts.glob("*"):
            if path.name not in unfinished:
                path.unlink()
    else:
        shutil.rmtree(parts, ignore_errors=True)
    return failed


def _part(cell: Cell) -> str:
    return f"{cell.slug}.json"


def _baseline_part(block: Block, when: str) -> str:
    # Named by a cell, not by the block's place: where other blocks are done, the job's next run has fewer.
    return f"{block.cells[0].slug}-{when}.json"


def _engine_of(cell: Cell) -> str:
    """Digest of k and options; cells of a job with the same digest run in one started engine."""
    return digest([cell.k, cell.options])


def _kept(path: Path, mark: str, produce: Callable[[], Runs | None]) -> Runs | None:
    """Return what `produce` returns and keep it at `path`, or what an interrupted job left there with this `mark`."""
    if path.is_file():
        with suppress(ValueError, LookupError, TypeError, RecursionError):  # damaged: they are measured again
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["digest"] == mark:
                return _RUNS.validate_python(content["runs"])
    found = produce()
    if found is not None:
        write_atomically(path, json.dumps({"digest": mark, "runs": _RUNS.dump_python(found, mode="json")}))
    return found


def _mean(before: Runs, after: Runs) -> tuple[Runs, list[float | None]]:
    """Return (the first run with mean times of both runs, drift of each group).

    The drift is seconds per token of the second run / the first - 1; None where a run has no time or no token.
    """
    means: Runs = []
    drifts: list[float | None] = []
    for first, second in zip(before, after, strict=True):
        # Sampled outputs may differ in length between two starts of an engine: the second's time is taken per token.
        tokens = [sum(len(run.tokens) - run.prefill_tokens for run in runs) for runs in (first, second)]
        scale = tokens[0] / tokens[1] if all(tokens) else 1.0
        group = []
        for one, other in zip(first, second, strict=True):
            times = {name: (getattr(one, name) + getattr(other, name)) / 2 for name in ("ttft_s", "prefill_s")}
            if one.energy_j is not None and other.energy_j is not None:
                times["energy_j"] = (one.energy_j + scale * other.energy_j) / 2
            load = one.load and other.load and one.load.plus(other.load)
            times["decode_s"] = (one.decode_s + scale * other.decode_s) / 2
            group.append(one.model_copy(update={**times, "load": load}))
        means.append(group)
        spent = [sum(run.decode_s for run in runs) for runs in (first, second)]
        drifts.append(scale * spent[1] / spent[0] - 1 if spent[0] > 0 and all(tokens) else None)
    return means, drifts
