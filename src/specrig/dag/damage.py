"""The damaged files of a study, looked for once, before the jobs are planned. No torch here.

Rules have the quarantined names among their params: new damage makes a job run again, and once it has run, nothing
changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, cached_property
from pathlib import Path

from specrig.measurement.quarantine import (
    ENVIRONMENT,
    HASHES,
    damaged_files,
    damaged_listed,
    damaged_records,
    quarantined_names,
)
from specrig.measurement.records import replicate_folder
from specrig.study.study import Study
from specrig.training.stages import STAGES, TEXT


class Damage:
    """What is damaged in a study's folder, until it is set aside."""

    def __init__(self, study: Study) -> None:
        self.study, self.root = study, study.root
        self._files: Callable[[Path], dict[Path, str]] = cache(damaged_files)
        self.of_records: Callable[[Path], dict[Path, str]] = cache(self._of_records)
        """The damaged files in a folder of `records_folder` -> what is wrong."""

    def found(self) -> dict[Path, str]:
        """Every damaged file that a stage of the study reads, or its folder -> what is wrong."""
        found = dict(self._listed)
        for key in self.study.grid.by_method:
            for number in range(self.study.replicates):
                found |= self.of_records(self.records_folder(*key, number))
        for pair in dict.fromkeys(pair for pair, _ in self.study.grid.trained):
            for model in (*STAGES, TEXT):
                found |= self._of_model(pair, model)
        return found

    def forget(self) -> None:
        """All that was found is in quarantine now: it is not damaged once more where params are computed again."""
        self._listed, self._files, self.of_records = {}, _undamaged, _undamaged

    def records_folder(self, engine: str, pair: str, method: str, number: int) -> Path:
        """The folder with the records of a method in one replicate."""
        return replicate_folder(self.root / "records" / engine / pair / method, number)

    def remade(self, *patterns: str) -> str:
        """Quarantined names of the files that these patterns of the results folder name, joined; see `models`."""
        found = []
        for folder, stem in {(folder, Path(each).name) for each in patterns for folder in self._folders(each)}:
            own = [path for path in self._listed if path.parent == folder and path.match(stem)]
            found += [f"{folder.name}/{name}" for name in quarantined_names(folder, own, stem)]
        return "".join(sorted(found))

    def models(self, pair: str, models: Iterable[str]) -> str:
        """Quarantined names of a pair's models, joined: "" if none was ever damaged, so that nothing becomes stale."""
        folder = self.root / "models" / pair
        found = (quarantined_names(folder, self._of_model(pair, model), model) for model in models)
        return "".join(name for names in found for name in names)

    @cached_property
    def _listed(self) -> dict[Path, str]:
        return damaged_listed(self.root)

    def _folders(self, pattern: str) -> list[Path]:
        """The folders that the pattern of a file names."""
        parent = str(Path(pattern).parent)
        return list(self.root.glob(parent)) if "*" in parent else [self.root / parent]

    def _of_records(self, folder: Path) -> dict[Path, str]:
        """Without a whole environment nobody knows where the other records were measured."""
        found = damaged_records(folder)
        if folder / ENVIRONMENT in self._listed:
            reason = f"{ENVIRONMENT}, which says where it was measured, is damaged"
            found = dict.fromkeys(sorted(folder.glob("*.jsonl")), reason) | found
            found[folder / ENVIRONMENT] = self._listed[folder / ENVIRONMENT]
        return found

    def _of_model(self, pair: str, model: str) -> dict[Path, str]:
        """The folder of a trained model (or the text of a pair's target) -> what is wrong with one of its files."""
        folder = self.root / "models" / pair
        if model == TEXT:
            found = self._files(folder)
            return {folder / TEXT: found[folder / HASHES]} if folder / HASHES in found else found
        for path, reason in self._files(folder / model).items():
            return {folder / model: f"{path.name}: {reason}"}
        return {}


def _undamaged(folder: Path) -> dict[Path, str]:
    return {}
