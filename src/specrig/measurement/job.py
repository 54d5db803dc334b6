"""The cells of one method that a process measures in one replicate, and the folder in which their records lie."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specrig.cell import Cell
from specrig.decoding.drafters import registry as methods
from specrig.engines.base import EngineError
from specrig.measurement.freshness import cell_digests, measured
from specrig.measurement.recording import write_index
from specrig.measurement.records import replicate_folder, write_atomically
from specrig.models.pair import PairFiles
from specrig.tasks import Prompt

if TYPE_CHECKING:
    from specrig.study.study import Study


class Job:
    """One engine, pair and method in one replicate. `failed`: reasons by the cells that cannot be measured."""

    def __init__(self, study: Study, name: tuple[str, str, str], replicate: int) -> None:
        """Raises EngineError for what the study does not have."""
        if not 0 <= replicate < study.replicates:
            raise EngineError(
                f"study {study.study} has {study.replicates} replicates, counted from 0: there is no replicate {replicate}"
            )
        if name not in study.grid.by_method:
            raise EngineError(f"study {study.study} has no cells of {'/'.join(name)}")
        self.study, self.name, self.replicate = study, name, replicate
        self.cells = study.grid.by_method[name]
        self.folder = replicate_folder(study.root / "records" / Path(*name), replicate)
        self.digests: dict[Cell, str] = {}
        self.failed: dict[Cell, str] = {}

    def pending(self, pair: PairFiles, prompts: dict[str, list[Prompt]], unusable: Mapping[str, str]) -> list[Cell]:
        """The cells to measure: those whose records are missing or stale. unusable: reasons by the tasks whose prompts
        cannot be had.
        """
        self.failed = {cell: unusable[cell.task] for cell in self.cells if cell.task in unusable}
        usable = [cell for cell in self.cells if cell.task in prompts]
        own = pair.only(methods()[self.name[-1]].needs)  # what other methods need decides nothing here
        self.digests = cell_digests(self.study, usable, own, prompts, self.replicate)
        found = [cell for cell in usable if not measured(self.path(cell), self.digests[cell])]
        if found:
            # What is written from now on is in no index until the end.
            (self.folder / "index.json").unlink(missing_ok=True)
        return found

    def path(self, cell: Cell) -> Path:
        """The file with a cell's records."""
        return self.folder / f"{cell.slug}.jsonl"

    def describe(self, environment: Mapping[str, Any]) -> None:
        """Write the description of the machine beside the records."""
        write_atomically(self.folder / "environment.json", json.dumps(environment, indent=1))

    def close(self) -> None:
        """Write the index of what was measured and of what failed."""
        write_index(self.folder, self.cells, self.digests, {cell.slug: reason for cell, reason in self.failed.items()})
