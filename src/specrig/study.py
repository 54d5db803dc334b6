"""A study: what to run, typed. Read from YAML, checked before anything starts, expanded into cells. No torch here.

`load_study` reads a config (`configs/*.yaml`) with its tables, or a resolved `results/<study>/study.json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from specrig import facts
from specrig.cell import Cell
from specrig.decoding.drafters import registry as methods
from specrig.engines import registry as engines
from specrig.engines.base import Endpoint, PairFiles, endpoint_of
from specrig.entries import BatchSizes, MethodEntry, Names, Part, Temperatures
from specrig.problems import Problem, StudyError
from specrig.rows import TRAINED, Name, Pair, Task
from specrig.tasks import Prompt, PromptError, read_prompts
from specrig.training.recipe import Recipe

__all__ = ["Refusal", "Study", "StudyError", "load_study"]


class Refusal(NamedTuple):
    """A cell that its engine cannot run, and why."""

    cell: Cell
    reason: str


class Tables(Part):
    """Files with one row a pair, one row a task, one row a reported figure."""

    pairs: Path = Path("configs/pairs.tsv")
    tasks: Path = Path("configs/tasks.tsv")
    reported: Path | None = Path("configs/reported.csv")
    """null: hold the study against nothing."""


class Rows(Part):
    """The rows of the tables that a study uses; `load_study` fills them in, so that a resolved study stands alone."""

    pairs: dict[str, Pair] = Field(default_factory=dict)
    tasks: dict[str, Task] = Field(default_factory=dict)


class Study(Part):
    """A resolved study. Every combination of engine, pair, method, k, options, task, temperature and batch size is a cell."""

    study: Name
    """Its name: results go to results/<study>, the report to reports/<study>."""
    seed: int = 0
    engines: Names = Field(default_factory=lambda: ["native"])
    engine_options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Engine -> its own options, e.g. `vllm: {eager: true}`; `specrig methods` lists them."""
    pairs: Names = Field(default_factory=list)
    """Rows of pairs.tsv; an entry of `methods` may name others for itself."""
    tasks: Names = Field(default_factory=list)
    """Rows of tasks.tsv."""
    methods: list[MethodEntry] = Field(default_factory=list)
    servers: list[Endpoint] = Field(default_factory=list)
    """Servers that already run, for engines that measure by URL: one without speculation a pair, one a method and k."""
    temperatures: Temperatures = Field(default_factory=lambda: [0.0])
    batch_sizes: BatchSizes = Field(default_factory=lambda: [1])
    prompts: int = 8
    """Prompts a task; a batch larger than that takes as many as it holds, so that it is full."""
    max_new_tokens: int = Field(128, ge=2)
    warmup: int = Field(1, ge=0)
    """Rounds of warm-up, not recorded, before each block of cells."""
    repeats: int = Field(1, ge=1)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: cuda where there is a GPU."""
    threads: int | None = Field(None, ge=1)
    """CPU threads; null: all."""
    audit_samples: int = Field(20_480, ge=1_000)
    """Continuations that each method samples for the exact test of its distribution."""
    run_generated_code: bool = False
    """Let scorers (pass@1) execute the code that models wrote, in a limited subprocess. That is no sandbox: use a container."""
    training: Recipe = Field(default_factory=lambda: Recipe.model_validate({}))
    """How `trained` pairs are made."""
    tables: Tables = Tables()
    results: Path = Path("results")
    reports: Path = Path("reports")
    rows: Rows = Rows()

    @property
    def root(self) -> Path:
        """Folder of everything the study makes, but for the report."""
        return self.results / self.study

    @property
    def report(self) -> Path:
        """The report's file."""
        return self.reports / self.study / "report.html"

    def cells(self) -> list[Cell]:
        """The cells that will be measured, in the config's order."""
        return list(self._cells)

    def refusals(self) -> list[Refusal]:
        """The cells that their engine cannot run, each with the reason."""
        return self._refusals

    def jobs(self) -> dict[tuple[str, str, str], list[Cell]]:
        """(engine, pair, method) -> its cells, which one process measures."""
        return self._jobs

    @cached_property
    def _jobs(self) -> dict[tuple[str, str, str], list[Cell]]:
        found: dict[tuple[str, str, str], list[Cell]] = {}
        for cell in self._cells:
            found.setdefault(cell.job, []).append(cell)
        return found

    @cached_property
    def _cells(self) -> list[Cell]:
        refused = {refusal.cell.name for refusal in self._refusals}
        return [cell for cell in self._grid if cell.name not in refused]

    @cached_property
    def _grid(self) -> list[Cell]:
        return [cell for _, cell in self.grid]

    @cached_property
    def grid(self) -> list[tuple[int, Cell]]:
        """(index of the entry in `methods`, cell) of everything the study asks for, run or refused."""
        return list(self._expand())

    @cached_property
    def _refusals(self) -> list[Refusal]:
        # A missing library refuses every cell of its engine; asked once, since looking for it may import.
        missing = {name: engines()[name].missing() for name in self.engines}
        impossible = {job: self._impossible(*job) for job in {cell.job for cell in self._grid}}
        reasons = (
            (cell, self._unserved(cell, missing) or impossible[cell.job] or engines()[cell.engine].refuses(cell))
            for cell in self._grid
        )
        return [Refusal(cell, reason) for cell, reason in reasons if reason is not None]

    def _unserved(self, cell: Cell, missing: dict[str, str | None]) -> str | None:
        """Why nobody is there to run a cell; a server that runs already needs nothing installed here."""
        if endpoint_of(cell, self.servers) is not None:
            return None
        if engines()[cell.engine].loads_pairs:
            return missing[cell.engine]
        variant = f" ({cell.variant})" if cell.variant else ""
        return f"no server for {cell.method}{variant} at k = {cell.k} on pair {cell.pair}: name its url under `servers:`"

    def _impossible(self, engine: str, pair: str, method: str) -> str | None:
        """Why a method can never run on a pair, as far as the shipped facts say; the gate compares the files themselves."""
        row = self.rows.pairs[pair]
        if row.weights == "random" and not engines()[engine].simulates:
            return f"pair {pair!r} has random weights, which {engine} cannot load"
        return facts.impossible(row.target, row.draft if "draft" in methods()[method].needs else None)

    def _expand(self) -> Iterable[tuple[int, Cell]]:
        variants = [entry.variants() for entry in self.methods]
        for engine, pair, (index, entry) in product(self.engines, self.rows.pairs, enumerate(self.methods)):
            if pair not in (entry.pairs or self.pairs):
                continue
            for (variant, options), k, task, temperature, batch_size in product(
                variants[index],
                entry.ks,
                entry.tasks or self.tasks,
                entry.temperatures or self.temperatures,
                entry.batch_sizes or self.batch_sizes,
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

    def trained(self) -> list[tuple[str, str]]:
        """(pair, model) that the DAG trains: targets and drafts so marked, and the heads that methods need on such targets."""
        found: list[tuple[str, str]] = []
        for pair, row in self.rows.pairs.items():
            found += [(pair, "target")] if row.trains else []
            found += [(pair, "draft")] if row.draft == TRAINED else []
            found += [(pair, head) for head in self.heads(pair) if row.trains and head not in row.head_folders]
        return found

    def heads(self, pair: str) -> list[str]:
        """Names of the trained heads that the study's methods need on a pair, and those that Medusa-2 begins with or makes."""
        entries = [entry for entry in self.methods if pair in (entry.pairs or self.pairs)]
        needs = {need for entry in entries for need in methods()[entry.method].needs} - {"draft"}
        joint = any(pair in (name, row.base) for name, row in self.rows.pairs.items() if row.base)
        return sorted(needs | ({"medusa"} if joint else set()))

    def model(self, pair: str, model: str, root: Path) -> str | None:
        """Folder or hub id of a pair's target, draft or head; None for one it does not have."""
        row = self.rows.pairs[pair]
        if model not in ("target", "draft"):
            trained = str(root / "models" / pair / model) if row.trains else None
            return row.head_folders.get(model, trained)
        source: str | None = getattr(row, model)
        made = row.trains if model == "target" else source == TRAINED
        return str(root / "models" / pair / model) if made else source

    def pair_files(self, pair: str, root: Path) -> PairFiles:
        """Where the parts of a pair lie; `root` is the study's results folder."""
        row = self.rows.pairs[pair]
        target = self.model(pair, "target", root)
        assert target is not None  # the column is required
        return PairFiles(
            name=pair,
            target=target,
            draft=self.model(pair, "draft", root),
            target_revision=row.target_revision,
            draft_revision=row.draft_revision,
            dtype=row.dtype,
            simulated_acceptance=row.simulated_acceptance,
            heads={head: Path(folder) for head in self.heads(pair) if (folder := self.model(pair, head, root)) is not None},
            head_revisions=row.head_revisions,
            servers=tuple(server for server in self.servers if server.pair == pair),
            tensor_parallel=row.tensor_parallel,
            quantization=row.quantization,
            gpu_memory_utilization=row.gpu_memory_utilization,
            max_model_len=row.max_model_len,
            engine_options=self.engine_options,
        )

    def prompt_file(self, task: str, root: Path) -> Path:
        """The file with a task's prompts."""
        row = self.rows.tasks[task]
        folder = {"corpus": "prompts", "url": "data", "hub": "data"}.get(row.kind)
        return root / folder / f"{task}.jsonl" if folder else Path(row.source).expanduser()

    def prompt_count(self, batch_size: int) -> int:
        """Prompts that cells of a batch size run."""
        return max(self.prompts, batch_size)

    def prompts_wanted(self, task: str) -> int:
        """Prompts of a task that some cell runs."""
        return self.prompt_count(max((cell.batch_size for cell in self._grid if cell.task == task), default=1))

    def prompts_of(self, task: str, root: Path) -> list[Prompt]:
        """The first prompts of a task, as many as its largest batch asks for. Raises PromptError for a file that holds none or breaks its format."""
        row, file = self.rows.tasks[task], self.prompt_file(task, root)
        if row.fetched and not file.is_file():
            raise PromptError(
                f"{file} is not there yet: `specrig prompts --study {root / 'study.json'} --task {task}` fetches it"
            )
        own = {} if row.kind != "file" else {"sha256": row.sha256, **row.mapping}
        return read_prompts(file, limit=self.prompts_wanted(task), **own)

    def uses_gpu(self) -> bool:
        """Whether jobs will want a GPU, as far as this machine can tell without torch (it may not be the one they run on)."""
        return self.device == "cuda" or (self.device == "auto" and Path("/proc/driver/nvidia/version").exists())

    def resolved_device(self) -> str:
        """`cuda` or `cpu`, as the machine it is asked on has it. Imports torch. Raises StudyError for a GPU that is not there."""
        if self.device == "cpu":
            return self.device
        import torch

        found = torch.cuda.is_available()
        if self.device == "cuda" and not found:
            fix = "say `device: cpu` or `auto`; on a machine with a GPU install its driver and a CUDA build of PyTorch"
            raise StudyError([Problem("", "device", f"cuda, but PyTorch {torch.__version__} finds no GPU on this machine", fix)])
        return "cuda" if found else "cpu"


def load_study(config: dict[str, Any] | Path, files: Sequence[Path] = ()) -> Study:
    """Read and check a study: a config file, a resolved study.json, or a config already read from `files`.

    Raises StudyError, whose message lists every problem with its place and the fix.
    """
    from specrig.planning import resolve  # it builds Studies, so it imports this module

    return resolve(config, files)
