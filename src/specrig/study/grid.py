"""The grid: every cell of a study, the cells that an engine refuses, and the models to train. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import NamedTuple

from specrig.cell import Cell
from specrig.decoding.drafters import registry as methods
from specrig.engines import registry as engines
from specrig.engines.base import foreign, lacks_layers
from specrig.models import facts, gate, gguf
from specrig.models.endpoint import endpoint_of
from specrig.models.pair import ModelError
from specrig.study.config import Config
from specrig.study.rows import Pair
from specrig.study.traffic import Point
from specrig.tasks.variants import variant_of

TOGETHER = "together"
"""Name of a job that measures all methods of an engine and a pair."""


class Refusal(NamedTuple):
    """A cell that its engine cannot run, and why."""

    cell: Cell
    reason: str


class Grid:
    """A study's cells: each combination of engine, pair, method, k, options, task, temperature and batch size."""

    def __init__(self, config: Config) -> None:
        self._config = config

    @cached_property
    def requested(self) -> list[tuple[int, Cell]]:
        """Every cell that the study asks for, refused ones included, as (index of its entry in `methods`, cell)."""
        return list(self._expand())

    @cached_property
    def cells(self) -> list[Cell]:
        """The cells that will be measured, in the config's order."""
        refused = {refusal.cell.name for refusal in self.refusals}
        return [cell for _, cell in self.requested if cell.name not in refused]

    @cached_property
    def by_method(self) -> dict[tuple[str, str, str], list[Cell]]:
        """(engine, pair, method) -> the cells whose records lie together, in the folder of that name."""
        found: dict[tuple[str, str, str], list[Cell]] = {}
        for cell in self.cells:
            found.setdefault(cell.method_key, []).append(cell)
        return found

    @cached_property
    def jobs(self) -> dict[tuple[str, str, str], list[str]]:
        """(engine, pair, job's name: `together`, or its only method's) -> the methods it measures in one process."""
        found: dict[tuple[str, str, str], list[str]] = {}
        for engine, pair, method in self.by_method:
            together = self._config.jobs == "pair" and engines()[engine].paired
            found.setdefault((engine, pair, TOGETHER if together else method), []).append(method)
        return found

    @cached_property
    def points(self) -> dict[tuple[str, str, str], list[Point]]:
        """(engine, pair, method) -> its cells of the smallest batch size, under each load of `traffic:`.

        Only engines that serve, and methods that draft; the baseline takes turns with them.
        """
        found: dict[tuple[str, str, str], list[Point]] = {}
        traffic = self._config.traffic
        if traffic is None:
            return found
        for key, cells in self.by_method.items():
            if engines()[key[0]].serves and methods()[key[2]].uses_k:
                smallest = min(cell.batch_size for cell in cells)
                own = [cell for cell in cells if cell.batch_size == smallest]
                found[key] = [point for cell in own for point in traffic.points(cell)]
        return found

    @cached_property
    def refusals(self) -> list[Refusal]:
        """The cells that their engine cannot run, each with the reason."""
        # A missing library refuses every cell of its engine; asked once, since looking for it may import.
        missing = {name: engines()[name].missing() for name in self._config.engines}
        impossible = {job: self.impossible(*job) for job in {cell.method_key for _, cell in self.requested}}
        reasons = (
            (
                cell,
                self._unserved(cell, missing)
                or impossible[cell.method_key]
                or engines()[cell.engine].refuses(cell)
                or self.speechless(cell),
            )
            for _, cell in self.requested
        )
        return [Refusal(cell, reason) for cell, reason in reasons if reason is not None]

    @cached_property
    def trained(self) -> list[tuple[str, str]]:
        """The models that the workflow trains, as (pair, model).

        These are the targets marked `trained`, and the drafts and heads that the study's methods need and whose rows
        say `trained`.
        """
        rows = self._config.rows.pairs.items()
        return [
            (pair, part) for pair, row in rows for part in ("target", *self.parts(pair)) if row.trained_in(part) == pair
        ]

    @cached_property
    def conversations(self) -> list[tuple[str, str]]:
        """(pair, task) whose target answers the turns of the task, because a later turn is measured on it."""
        found = ((cell.pair, variant_of(cell.task)) for cell in self.cells)
        return list(dict.fromkeys((pair, variant.task) for pair, variant in found if variant.turn > 1))

    @cached_property
    def converted(self) -> dict[str, tuple[str, str]]:
        """The GGUF files of the study's pairs: name of the converted folder -> (the row's file, precision)."""
        rows = self._config.rows.pairs.values()
        return {gguf.slug(model, row.dtype): (model, row.dtype) for row in rows for model in row.gguf.values()}

    def parts(self, pair: str) -> list[str]:
        """What a pair needs besides its target, the draft first, then heads: for the study's methods on it and on pairs
        that take what is trained for it, and the Medusa heads that Medusa-2 starts from or makes.
        """
        return sorted(self._parts.get(pair, ()), key=lambda need: (need != "draft", need))

    def prompt_count(self, batch_size: int) -> int:
        """How many prompts a cell with this batch size runs: `prompts`, or more if these do not fill a batch."""
        return max(self._config.prompts, batch_size)

    def prompts_read(self, task: str) -> int:
        """How many prompts the study reads of a task: as many as its or a variant's largest batch, or its traffic, needs."""
        sent = self._config.traffic.prompts if self._config.traffic else 0
        return max(self.prompt_count(self._largest_batches.get(variant_of(task).task, 1)), sent)

    @cached_property
    def _parts(self) -> dict[str, set[str]]:
        """Pair -> its `parts`. All at once: asked pair by pair, each would go through all pairs again."""
        config = self._config
        found: dict[str, set[str]] = {}
        for entry in config.methods:
            for name, need in product(entry.pairs or config.pairs, entry.needs):
                for pair in filter(None, (name, config.rows.pairs[name].trained_in(need))):
                    row = config.rows.pairs.get(pair)
                    found.setdefault(pair, set()).update({need} if row is None else row.parts_for({need}))
        for name, row in config.rows.pairs.items():
            for pair in (name, row.base) if row.base else ():
                found.setdefault(pair, set()).add("medusa")
        return found

    @cached_property
    def _largest_batches(self) -> dict[str, int]:
        """Task -> the largest batch size of its cells and of its variants'."""
        found: dict[str, int] = {}
        for _, cell in self.requested:
            task = variant_of(cell.task).task
            found[task] = max(cell.batch_size, found.get(task, 1))
        return found

    def _unserved(self, cell: Cell, missing: dict[str, str | None]) -> str | None:
        """Why no server or installed engine runs a cell; None if one does. A server needs nothing installed here."""
        if endpoint_of(cell, self._config.servers) is not None:
            return None
        if engines()[cell.engine].loads_pairs:
            return missing[cell.engine]
        variant = f" ({cell.variant})" if cell.variant else ""
        return (
            f"no server for {cell.method}{variant} at k = {cell.k} on pair {cell.pair}: name its url under `servers:`"
        )

    def impossible(self, engine: str, pair: str, method: str) -> str | None:
        """Why a method can never run on a pair, by shipped facts and local configs; None: nothing is against it."""
        row = self._config.rows.pairs[pair]
        if row.weights == "random" and not engines()[engine].makes_weights:
            return f"pair {pair!r} has random weights, which {engine} cannot load"
        if row.simulated_acceptance is not None and not engines()[engine].simulates:
            return f"pair {pair!r} declares its acceptance, which {engine} cannot simulate"
        known = foreign(engine).get(method)
        if known is not None and known.on_gpus_alone and not self._config.uses_gpu():
            return f"{engine} runs {method} on a GPU alone: use another engine, or a machine with one"
        if gguf.is_gguf(row.target) and (reason := lacks_layers(engine, engine, method, {})) is not None:
            return f"{row.target}: {reason}"  # no GGUF file that is read here has such layers
        draft = row.draft if "draft" in methods()[method].needs else None
        if (reason := facts.impossible(row.target, draft)) is not None:
            return reason
        for model in filter(None, (row.target, draft)):
            config = facts.config_at_hand(model)
            if config and (reason := engines()[engine].refuses_model(method, config)) is not None:
                return f"{model}: {reason}"
        return None

    def speechless(self, cell: Cell) -> str | None:
        """Why the draft of a cell cannot draft, since its vocabulary is not the target's; None: nothing is against it."""
        difference = self.differences[cell.pair] if "draft" in methods()[cell.method].needs else None
        if difference is None or (reason := engines()[cell.engine].refuses_other_vocabulary(cell)) is None:
            return None
        return f"{difference}: {reason}"

    @cached_property
    def differences(self) -> dict[str, str | None]:
        """Pair -> in what the draft's vocabulary is another than the target's, by shipped facts and local folders."""
        return {name: self._difference(row) for name, row in self._config.rows.pairs.items()}

    def _difference(self, row: Pair) -> str | None:
        if row.draft is None or row.weights == "random":
            return None
        folders = [Path(model).expanduser() for model in (row.target, row.draft)]
        if all((folder / "config.json").is_file() for folder in folders):
            with suppress(ModelError):  # told of the model itself
                return gate.other_vocabulary(*map(str, folders))
        return facts.other_vocabulary(row.target, row.draft)

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
