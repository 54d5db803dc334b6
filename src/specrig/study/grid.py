"""The grid: every cell a study asks for, what each engine refuses of it, and the models it needs. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import product
from typing import NamedTuple

from specrig.cell import Cell
from specrig.decoding.drafters import registry as methods
from specrig.engines import registry as engines
from specrig.models import facts, gguf
from specrig.models.endpoint import endpoint_of
from specrig.study.config import Config
from specrig.study.rows import TRAINED


class Refusal(NamedTuple):
    """A cell that its engine cannot run, and why."""

    cell: Cell
    reason: str


class Grid:
    """Every combination of engine, pair, method, k, options, task, temperature and batch size that a config names is a cell."""

    def __init__(self, config: Config) -> None:
        self._config = config

    @cached_property
    def asked(self) -> list[tuple[int, Cell]]:
        """(index of the entry in `methods`, cell) of everything the study asks for, run or refused, in the config's order."""
        return list(self._expand())

    @cached_property
    def cells(self) -> list[Cell]:
        """The cells that will be measured, in the config's order."""
        refused = {refusal.cell.name for refusal in self.refusals}
        return [cell for _, cell in self.asked if cell.name not in refused]

    @cached_property
    def jobs(self) -> dict[tuple[str, str, str], list[Cell]]:
        """(engine, pair, method) -> its cells, which one process measures."""
        found: dict[tuple[str, str, str], list[Cell]] = {}
        for cell in self.cells:
            found.setdefault(cell.job, []).append(cell)
        return found

    @cached_property
    def refusals(self) -> list[Refusal]:
        """The cells that their engine cannot run, each with the reason."""
        # A missing library refuses every cell of its engine; asked once, since looking for it may import.
        missing = {name: engines()[name].missing() for name in self._config.engines}
        impossible = {job: self._impossible(*job) for job in {cell.job for _, cell in self.asked}}
        reasons = (
            (cell, self._unserved(cell, missing) or impossible[cell.job] or engines()[cell.engine].refuses(cell))
            for _, cell in self.asked
        )
        return [Refusal(cell, reason) for cell, reason in reasons if reason is not None]

    @cached_property
    def trained(self) -> list[tuple[str, str]]:
        """(pair, model) that the DAG trains: targets and drafts so marked, and the heads that methods need on such targets."""
        found: list[tuple[str, str]] = []
        for pair, row in self._config.rows.pairs.items():
            found += [(pair, "target")] if row.trains else []
            found += [(pair, "draft")] if row.draft == TRAINED else []
            found += [(pair, head) for head in self.heads(pair) if row.trains and head not in row.head_folders]
        return found

    @cached_property
    def converted(self) -> dict[str, tuple[str, str]]:
        """Name of a converted folder -> (GGUF file as a row names it, precision) of all that the study's pairs are made of."""
        rows = self._config.rows.pairs.values()
        return {gguf.slug(model, row.dtype): (model, row.dtype) for row in rows for model in row.gguf.values()}

    def heads(self, pair: str) -> list[str]:
        """Names of the trained heads that the study's methods need on a pair, and those that Medusa-2 begins with or makes."""
        config = self._config
        entries = [entry for entry in config.methods if pair in (entry.pairs or config.pairs)]
        needs = {need for entry in entries for need in methods()[entry.method].needs} - {"draft"}
        joint = any(pair in (name, row.base) for name, row in config.rows.pairs.items() if row.base)
        return sorted(needs | ({"medusa"} if joint else set()))

    def prompt_count(self, batch_size: int) -> int:
        """How many prompts a cell of this batch size runs: the study's number, or as many as fill one batch."""
        return max(self._config.prompts, batch_size)

    def prompts_wanted(self, task: str) -> int:
        """How many prompts of a task must be there: those of its cell with the largest batch."""
        return self.prompt_count(max((cell.batch_size for _, cell in self.asked if cell.task == task), default=1))

    def _unserved(self, cell: Cell, missing: dict[str, str | None]) -> str | None:
        """Why nobody is there to run a cell; a server that runs already needs nothing installed here."""
        if endpoint_of(cell, self._config.servers) is not None:
            return None
        if engines()[cell.engine].loads_pairs:
            return missing[cell.engine]
        variant = f" ({cell.variant})" if cell.variant else ""
        return f"no server for {cell.method}{variant} at k = {cell.k} on pair {cell.pair}: name its url under `servers:`"

    def _impossible(self, engine: str, pair: str, method: str) -> str | None:
        """Why a method can never run on a pair, as far as shipped facts and configs at hand say; the gate compares the files themselves."""
        row = self._config.rows.pairs[pair]
        if row.weights == "random" and not engines()[engine].simulates:
            return f"pair {pair!r} has random weights, which {engine} cannot load"
        draft = row.draft if "draft" in methods()[method].needs else None
        if (reason := facts.impossible(row.target, draft)) is not None:
            return reason
        for model in filter(None, (row.target, draft)):
            config = facts.config_at_hand(model)
            if config and (reason := engines()[engine].refuses_model(method, config)) is not None:
                return f"{model}: {reason}"
        return None

    def _expand(self) -> Iterator[tuple[int, Cell]]:
        config = self._config
        variants = [entry.variants() for entry in config.methods]
        for engine, pair, (index, entry) in product(config.engines, config.rows.pairs, enumerate(config.methods)):
            if pair not in (entry.pairs or config.pairs):
                continue
            for (variant, options), k, task, temperature, batch_size in product(
                variants[index],
                entry.ks,
                entry.tasks or config.tasks,
                entry.temperatures or config.temperatures,
                entry.batch_sizes or config.batch_sizes,
            ):
                yield (
                    index,
                    Cell(
                        engine=engine,
                        pair=pair,
                        method=entry.method,
                        k=k,
                        task=task,
                        temperature=temperature,
                        batch_size=batch_size,
                        variant=variant,
                        options=options,
                    ),
                )
