"""Where the models and prompts of a study lie. No torch here."""

from __future__ import annotations

from pathlib import Path

from specrig.models import gguf
from specrig.models.pair import PairFiles
from specrig.study.config import Config
from specrig.study.grid import Grid


class Paths:
    """Folders and files of a study. The argument `root` of its methods is the study's results folder (`Study.root`)."""

    def __init__(self, config: Config, grid: Grid) -> None:
        self._config = config
        self._grid = grid

    def model(self, pair: str, model: str, root: Path) -> str | None:
        """Folder or hub id of a pair's target, draft or head (`model`); None if the pair has no such model."""
        row = self._config.rows.pairs[pair]
        if (maker := row.trained_in(model)) is not None:
            return str(root / "models" / maker / model)
        if model in row.gguf:
            return str(self.converted(row.gguf[model], row.dtype, root))
        return {"target": row.target, "draft": row.draft, **row.head_folders}.get(model)

    def target_at_hand(self, pair: str, root: Path) -> str | None:
        """A pair's target on this disk: its folder, or the GGUF file from which it is converted, which is there before its
        folder. None: it is neither.
        """
        row, folder = self._config.rows.pairs[pair], self.pair_files(pair, root).target
        if "target" in row.gguf:
            return row.gguf["target"]
        return folder if Path(folder).expanduser().is_dir() else None

    def converted(self, source: str, dtype: str, root: Path) -> Path:
        """The model folder that the GGUF file `source` is converted into; pairs of the same precision share it."""
        return root / "converted" / gguf.slug(source, dtype)

    def pair_files(self, pair: str, root: Path) -> PairFiles:
        """Where the models of a pair lie, and how its row says that they are loaded."""
        row = self._config.rows.pairs[pair]
        target = self.model(pair, "target", root)
        assert target is not None  # the column is required
        heads = [part for part in self._grid.parts(pair) if part != "draft"]
        return PairFiles(
            name=pair,
            target=target,
            draft=self.model(pair, "draft", root),
            target_revision=row.target_revision,
            draft_revision=row.draft_revision,
            dtype=row.dtype,
            random_weights=row.weights == "random",
            simulated_acceptance=row.simulated_acceptance,
            heads={head: Path(folder) for head in heads if (folder := self.model(pair, head, root)) is not None},
            head_revisions=row.head_revisions,
            servers=tuple(server for server in self._config.servers if server.pair == pair),
            tensor_parallel=row.tensor_parallel,
            quantization=row.quantization,
            gpu_memory_utilization=row.gpu_memory_utilization,
            max_model_len=row.max_model_len,
            engine_options=self._config.engine_options,
        )

    def answers(self, pair: str, task: str, root: Path) -> Path:
        """The file with the answers of a pair's target to the turns of a task, or of one of its variants."""
        return root / "answers" / pair / f"{self._config.rows.tasks[task].task}.jsonl"

    def rendered(self, pair: str, task: str, root: Path) -> Path:
        """The file with the prompts of a task, or of one of its variants, as the engines of a pair encode them."""
        return root / "prompts" / pair / f"{task}.json"

    def prompt_file(self, task: str, root: Path) -> Path:
        """The file with a task's prompts."""
        row = self._config.rows.tasks[task]
        if row.kind == "file":
            return Path(row.source).expanduser()
        return root / "data" / f"{row.task}.jsonl"
