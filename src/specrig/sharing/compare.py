"""`specrig compare`: two finished studies, cell by cell. Speedup and acceptance length (τ) of each, the ratios of both, and
whether outputs are equal.

The unit is a batch of prompts, which is one prompt at batch size 1. Where a prompt (the same id and length in tokens) ran
in both studies, its two speedups are compared, so that what is particular to a prompt cancels; where too few did, the
two sides are independent samples (Welch). The interval holds what chance of prompts does. It does not hold how whole
runs differ: that shows in the median cell's ratio, since a slower day moves all cells alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from specrig.analysis.acceptance import acceptance_length_estimate, emitted_by_prompt
from specrig.analysis.cells import IDENTITY, identity, row_dicts, row_identity
from specrig.analysis.speedup import group_times, log_speedups
from specrig.analysis.statistics import LEAST_UNITS, LEVEL, Estimate, average, interval, mean, ratio_difference
from specrig.measurement.records import SCHEMA_VERSION, Record
from specrig.report.documents.html_templates import html_template
from specrig.report.grid import Column, Grid, GridEntry, number, percent, range_of, text
from specrig.report.grid import interval as interval_text
from specrig.report.labels import method_order, named, task_name
from specrig.report.machine import commit, machine
from specrig.report.study_data import StudyData, read_study
from specrig.sharing.archive import is_publication, unpacked
from specrig.sharing.manifest import read_manifest
from specrig.study.load import load_study

LEVELS = ("engine", "pair", "temperature", "batch_size")
"""The columns that the table shows where they have more than one value."""


class ComparisonError(ValueError):
    """Raised for studies that cannot be compared. It says which and what to do."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Study A compared with study B. a, b: one line about each. cells: a row for each drafting cell that both measured,
    see `compare_cells`. only_a, only_b: names of the cells that one study alone measured.
    """

    a: str
    b: str
    cells: pd.DataFrame
    only_a: list[str]
    only_b: list[str]

    @property
    def sentences(self) -> list[str]:
        """What the table shows as a whole."""
        ratios, equal = self.cells["ratio"].dropna(), self.cells["equal_outputs"] == self.cells["common_outputs"]
        tested = self.cells.dropna(subset=["ratio_low"])
        apart = int(((tested["ratio_low"] > 1) | (tested["ratio_high"] < 1)).sum())
        plain = (self.cells["plain_tokens_per_s_b"] / self.cells["plain_tokens_per_s_a"]).median()
        common = self.cells["common_outputs"] > 0
        sentences = [
            f"{len(self.cells)} drafting cells were measured in both studies; {len(self.only_a)} cells only in A, "
            f"{len(self.only_b)} only in B.",
            f"The median cell's speedup in B is {number(ratios.median())} times A's; plain decoding ran at "
            f"{number(plain)} times A's tokens/s.",
            f"Of {len(tested)} intervals of B / A {apart} exclude 1. By chance of prompts alone expect "
            f"{number((1 - LEVEL) * len(tested), 0)}.",
        ]
        if common.any():
            sentences.append(
                f"In {int((equal & common).sum())} of {int(common.sum())} cells all outputs on common prompts are equal."
            )
        return sentences

    def lower_acceptance(self, tolerance: float) -> pd.DataFrame:
        """The rows of `cells` of the settings whose mean τ fell by more than the share `tolerance`: the interval of the
        setting's B / A ends below 1 minus it.

        Raises ComparisonError where no setting has such an interval, since then nothing was tested.
        """
        high = self.cells["setting_acceptance_ratio_high"]
        if high.isna().all():
            raise ComparisonError(
                f"no method has an interval of its acceptance: a task needs {LEAST_UNITS} prompts in both studies, and an "
                "engine that reports how many tokens it accepted; raise `prompts`"
            )
        return self.cells[high < 1 - tolerance]

    def acceptance_sentences(self, tolerance: float) -> list[str]:
        """In how many settings τ fell by more than `tolerance`, then these, each with its cells."""
        tested = self.cells.dropna(subset=["setting_acceptance_ratio_high"])["setting"].nunique()
        lower = self.lower_acceptance(tolerance).groupby("setting", sort=False)
        sentences = [
            f"The mean acceptance length τ fell by more than {percent(tolerance, 1)} beyond its interval in {len(lower)} of "
            f"{tested} methods, each at its k, engine, pair, temperature and batch size."
        ]
        for setting, rows in lower:
            low, high = (rows[f"setting_acceptance_ratio_{end}"].iloc[0] for end in ("low", "high"))
            mean_ratio = number(rows["setting_acceptance_ratio"].iloc[0])
            sentences.append(f"{setting}: B / A {mean_ratio} {interval_text(low, high)}")
            sentences += [
                f"  {row['cell']}: τ {number(row['acceptance_length_a'])} in A, {number(row['acceptance_length_b'])} in B"
                for row in row_dicts(rows)
            ]
        return sentences

    @property
    def table(self) -> Grid:
        """The cells for readers."""
        levels = [name for name in LEVELS if len(set(self.cells[name])) > 1]
        return Grid.of(
            row_dicts(self.cells),
            {
                **{name.replace("_", " "): text(name) for name in levels},
                "method": lambda row: named(row, lossless=row["lossless"]),
                "k": text("k"),
                "task": lambda row: task_name(row["task"]),
                "speedup in A": range_of("speedup_a", "speedup_a_low", "speedup_a_high"),
                "speedup in B": range_of("speedup_b", "speedup_b_low", "speedup_b_high"),
                "B / A": _ratio("ratio"),
                "τ, B / A": _ratio("acceptance_ratio"),
                "prompts": lambda row: str(row["prompts"]) + ("" if row["paired"] else ", not the same"),
                "equal outputs": lambda row: (
                    f"{row['equal_outputs']} of {row['common_outputs']}" if row["common_outputs"] else "–"
                ),
            },
            labels=len(levels) + 3,
            trailing=2,
            groups=len(levels),
            caption="Speedup over plain decoding in each study, and the ratios of speedup and acceptance length τ, with "
            f"{percent(LEVEL)} intervals. In bold: an interval that excludes 1. Equal outputs: generations of the same prompt "
            "with the same tokens.",
        )


def _ratio(name: str) -> Column:
    """A ratio B / A with its interval, in bold where that excludes 1."""

    def entry(row: dict[str, Any]) -> GridEntry:
        low, high = row[f"{name}_low"], row[f"{name}_high"]
        return GridEntry(number(row[name]), interval_text(low, high), bold=low > 1 or high < 1)

    return entry


def compare(a: Path, b: Path) -> Comparison:
    """Compare two studies, each a results folder, a publication or a config. Raises ComparisonError where no cell is
    common.
    """
    with opened(a) as one, opened(b) as other:
        cells = compare_cells(one, other)
        if cells.empty:
            raise ComparisonError(
                f"{a} and {b} have no drafting cell in common: engine, pair, method, variant, k, task, temperature and "
                "batch size must be the same"
            )
        alone = [[name for name in x.cells if name not in y.cells] for x, y in ((one, other), (other, one))]
        return Comparison(_about("A", a, one), _about("B", b, other), cells, *alone)


def compare_cells(a: StudyData, b: StudyData) -> pd.DataFrame:
    """One row for each cell with drafts that both studies measured, by method.

    Columns: `cell` (its name), `IDENTITY`, `lossless`; `speedup`, `acceptance_length` and `plain_tokens_per_s` of A (`_a`)
    and B (`_b`), the speedups with intervals; `ratio` of the speedups and `acceptance_ratio`, B / A with intervals;
    `setting` (all but the task) and `setting_acceptance_ratio`, the geometric mean of `acceptance_ratio` over its tasks
    with its interval; `prompts`, how many units `ratio` rests on, and whether they are the same (`paired`); of
    `common_outputs` generations with the same prompt, `equal_outputs` have the same tokens.
    """
    rows = {side: {row_identity(row): row for row in row_dicts(study.table)} for side, study in (("a", a), ("b", b))}
    compared: list[dict[str, Any]] = []
    changes: dict[str, list[Estimate]] = {}
    for name, records in a.cells.items():
        cell = records[0].cell
        if name not in b.cells or not cell.k:
            continue
        row = {"cell": name} | dict(zip(IDENTITY, identity(cell), strict=True))
        row["lossless"] = rows["a"][identity(cell)]["lossless"]
        for side, of_cell in rows.items():
            measured = of_cell[identity(cell)]
            row |= {f"speedup_{side}{end}": measured[f"speedup{end}"] for end in ("", "_low", "_high")}
            row[f"acceptance_length_{side}"] = measured["acceptance_length"]
            row[f"plain_tokens_per_s_{side}"] = measured["baseline_tokens_per_s"]
        estimate, units, paired = _difference(_log_speedups(records), _log_speedups(b.cells[name]))
        acceptance = _acceptance_difference(records, b.cells[name])
        row |= _quotient("ratio", estimate) | _quotient("acceptance_ratio", acceptance)
        row["setting"] = cell.model_copy(update={"task": "*"}).name
        changes.setdefault(row["setting"], []).append(acceptance)
        equal, common = _equal_outputs(records, b.cells[name])
        compared.append({**row, "prompts": units, "paired": paired, "equal_outputs": equal, "common_outputs": common})
    for row in compared:
        tested = [change for change in changes[row["setting"]] if np.isfinite(interval(change)).all()]
        row |= _quotient("setting_acceptance_ratio", average(tested))
    order = method_order(row["method"] for row in compared)
    compared.sort(
        key=lambda row: (*(row[name] for name in LEVELS), order.index(row["method"]), row["variant"], row["k"])
    )
    return pd.DataFrame(compared)


def comparison_page(comparison: Comparison) -> str:
    """The comparison as one HTML page."""
    return html_template("comparison.html.j2").render(version=version("specrig"), comparison=comparison)


@contextmanager
def opened(path: Path) -> Iterator[StudyData]:
    """Yield the study at `path`, which may be removed again afterwards.

    path: `results/<study>`, `reports/published/<name>` or a study's config. Raises ComparisonError where there is no
    study, where it has no records, and where a publication's records have another schema than this code reads.
    """
    folder = load_study(path).root if path.is_file() else path
    if is_publication(folder):
        manifest = read_manifest(folder)
        if manifest.record_schema != SCHEMA_VERSION:
            raise ComparisonError(
                f"{path}: its record schema is {manifest.record_schema}, this SpecRig reads {SCHEMA_VERSION}; to compare "
                f"it with a study of its time: {manifest.checkout}"
            )
        with unpacked(folder) as results:
            yield _with_records(read_study(results), path)
    elif (folder / "study.json").is_file():
        yield _with_records(read_study(folder), path)
    else:
        raise ComparisonError(
            f"{path} is no study: name a results folder (results/<study>), a published study or a study's config"
        )


def _with_records(study: StudyData, path: Path) -> StudyData:
    if not any(job.files for job in study.jobs):
        raise ComparisonError(
            f"{path} holds no records: nothing of it was measured yet; the study's `make` measures it"
        )
    return study


def _about(side: str, path: Path, study: StudyData) -> str:
    """A study, its machine, day and code in one line."""
    environment = next((job.environment for job in study.jobs if job.environment), {})
    code = commit(environment)
    facts = [
        f"{side}: {path}",
        f"study {study.name}",
        machine(environment),
        f"measured {study.captured[:10]}" if study.captured else "",
        f"code {code}" if code else "",
    ]
    return ", ".join(filter(None, facts))


def _log_speedups(records: Sequence[Record]) -> pd.Series:
    """Log speedups indexed by unit: its prompts as ids and lengths, equal in both studies if the prompts are."""
    prompts: dict[int, set[str]] = {}
    for record in records:
        prompts.setdefault(record.group, set()).add(f"{record.prompt_id} ({record.prompt_tokens})")
    units = {group: ", ".join(sorted(members)) for group, members in prompts.items()}
    return log_speedups(group_times(records)).rename(units)


def _difference(a: pd.Series, b: pd.Series) -> tuple[Estimate, int, bool]:
    """(mean of `b` minus mean of `a`, units of the smaller side, whether these are the same units in both)."""
    common = a.index.intersection(b.index)
    if len(common) >= LEAST_UNITS:
        return mean((b[common] - a[common]).to_numpy(dtype=float)), len(common), True
    ours, theirs = (mean(side.to_numpy(dtype=float)) for side in (a, b))
    return theirs + replace(ours, value=-ours.value), min(len(a), len(b)), False


def _quotient(name: str, log: Estimate) -> dict[str, float]:
    """The columns of a ratio with its interval, from its logarithm."""
    low, high = interval(log, scale=np.exp)
    return {name: float(np.exp(log.value)), f"{name}_low": low, f"{name}_high": high}


def _acceptance_difference(a: Sequence[Record], b: Sequence[Record]) -> Estimate:
    """Log τ of `b` minus log τ of `a`, over the prompts of both; where these are too few, over all prompts of each side."""
    ours, theirs = (_emitted(side) for side in (a, b))
    if len(common := sorted(ours.keys() & theirs.keys())) >= LEAST_UNITS:
        before, after = (np.array([side[prompt] for prompt in common]).T for side in (ours, theirs))
        return ratio_difference((after[0], after[1]), (before[0], before[1]), np.log)
    one, other = (acceptance_length_estimate(side).log() for side in (a, b))
    return replace(other + replace(one, value=-one.value), units=min(len(ours), len(theirs)))


def _emitted(records: Sequence[Record]) -> dict[tuple[str, int], tuple[float, float]]:
    """(id, length) of each prompt that had a whole round -> (tokens emitted, target passes)."""
    lengths = {record.prompt_id: record.prompt_tokens for record in records}
    units = emitted_by_prompt(records).items()
    return {(prompt, lengths[prompt]): unit for prompt, unit in units if unit[1] > 0}


def _equal_outputs(a: Sequence[Record], b: Sequence[Record]) -> tuple[int, int]:
    """(how many have the same tokens, of how many) generations of the same prompt."""
    ours, theirs = ({(record.prompt_id, record.prompt_tokens): record.run.tokens for record in side} for side in (a, b))
    common = ours.keys() & theirs.keys()
    return sum(ours[key] == theirs[key] for key in common), len(common)
