"""Find the study of a path: a results folder, a published study, or a config whose results lie in `results/`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specrig.results.study_data import StudyData, read_study
from specrig.sharing.manifest import FILE
from specrig.sharing.publish import unpacked
from specrig.study.load import load_study


class ComparisonError(ValueError):
    """Raised for studies that cannot be compared. It says which and what to do."""


@contextmanager
def opened(path: Path) -> Iterator[StudyData]:
    """Yield the study at `path`, which may be removed again afterwards.

    path: `results/<study>`, `reports/published/<name>`, a study's config, or a folder that holds one such folder.
    Raises ComparisonError where there is no study or where it has no records.
    """
    folder = _folder(path)
    if (folder / FILE).is_file():
        with unpacked(folder) as results:
            yield _with_records(read_study(results), path)
    else:
        yield _with_records(read_study(folder), path)


def _folder(path: Path) -> Path:
    if path.is_file():
        return load_study(path).root
    if not path.is_dir():
        raise ComparisonError(
            f"{path} does not exist: name a results folder (results/<study>), a published study or a study's config"
        )
    if (path / "study.json").is_file():
        return path
    inside = sorted(each.parent for each in path.glob("*/study.json"))
    if len(inside) == 1:
        return inside[0]
    if inside:
        raise ComparisonError(f"{path} holds {len(inside)} studies: name one of {', '.join(map(str, inside))}")
    raise ComparisonError(f"{path} is no study: a results folder and a published study have a study.json")


def _with_records(study: StudyData, path: Path) -> StudyData:
    if not any(job.files for job in study.jobs):
        raise ComparisonError(
            f"{path} holds no records: nothing of it was measured yet; the study's `make` measures it"
        )
    return study
