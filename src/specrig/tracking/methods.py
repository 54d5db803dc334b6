"""The runs of methods in MLflow: one for each method in each setting, all with the same metrics, above the runs of
their cells.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specrig.analysis.cells import Identity, row_dicts, row_identity
from specrig.cell import digest
from specrig.results import grid
from specrig.results.labels import method_name
from specrig.results.study_data import MeasuredJob, StudyData
from specrig.results.summary import CROSS_FITTED, LEVELS, MEAN, acceptance_summary, speedup_summary
from specrig.tracking.entry import NOTE, Entry, digests, setting_names, span, surroundings

SWEPT = ("speedup", "tokens_per_s", "acceptance_rate", "acceptance_length")
"""The columns of cells that become lines over k, one for each task."""


def method_entries(study: StudyData, cells: Mapping[Identity, Entry]) -> list[Entry]:
    """The runs of all methods, in the order of the tables. cells: what identifies a cell -> its run."""
    if study.table.empty:
        return []
    audit, table = study.audit(), study.table.assign(variant=study.table["variant"].fillna(""))
    taken = {_key(row): row for row in row_dicts(acceptance_summary(table, study.records, study.tasks, audit))}
    jobs = {job.key: job for job in reversed(study.jobs)}  # of several replicates the first
    members: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in row_dicts(table):
        members.setdefault(_key(row), []).append(row)
    found = []
    for row in row_dicts(speedup_summary(table, study.records, study.tasks, audit)):
        own = members[_key(row)]
        children = [cells[row_identity(each)] for each in own]
        job = jobs[row["engine"], row["pair"], row["method"]]
        found.append(_entry(study, job, row, taken.get(_key(row), {}), own, children))
    return found


def _entry(
    study: StudyData,
    job: MeasuredJob,
    row: dict[str, Any],
    taken: dict[str, Any],
    cells: list[dict[str, Any]],
    children: list[Entry],
) -> Entry:
    """row, taken: the method's rows in the tables of speedup and of acceptance. A method that failed the audit has no
    speedup.
    """
    # MLflow cuts long names: the study's first engine and pair go without saying.
    others = [str(row[each]) for each in ("engine", "pair") if row[each] != study.table[each].iloc[0]]
    setting = setting_names(row["temperature"], row["batch_size"])
    name = ", ".join([method_name(row["method"], variant=row["variant"]), *setting, *others])
    speeds = {"speedup": row[MEAN], "speedup_low": row[f"{MEAN}_low"], "speedup_high": row[f"{MEAN}_high"]}
    speeds |= {"speedup_k_chosen_on_other_prompts": row[CROSS_FITTED]} | {
        f"speedup/{task}": row[task] for task in study.tasks
    }
    accepted = {name: taken.get(f"mean_{name}") for name in ("acceptance_length", "acceptance_rate", "alpha")}
    accepted |= {f"acceptance_length/{task}": taken.get(f"{task}_acceptance_length") for task in study.tasks}
    metrics = {
        name: float(value) for name, value in ({} if row["failed"] else speeds | accepted).items() if value is not None
    }
    environment = job.environment
    return Entry(
        key="/".join(str(row[level]) for level in LEVELS),
        name=name,
        sha=digest([*(child.content for child in children), bool(row["failed"])]),
        tags={
            "kind": "method",
            "lossless": str(row["lossless"]).lower(),
            "audit": "failed" if row["failed"] else "",
            NOTE: _note(row),
            **surroundings(environment),
        },
        params={
            **{level: row[level] for level in LEVELS},
            "best_k": row["k"],
            **digests(environment, "target", "draft"),
        },
        metrics=metrics,
        series={} if row["failed"] else _sweeps(cells),
        artifacts=[
            path for path in (study.folder / "records" / "/".join(job.key) / "environment.json",) if path.is_file()
        ],
        children=children,
        measured=span(children),
        prompts=list(dict.fromkeys(each for child in children for each in child.prompts)),
    )


def _sweeps(cells: list[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Metric -> its values at each k; none for a method that ran at one k."""
    if len({cell["k"] for cell in cells}) < 2:
        return {}
    found: dict[str, list[tuple[int, float]]] = {}
    for cell in sorted(cells, key=lambda cell: cell["k"]):
        for name in SWEPT:
            found.setdefault(f"by_k/{name}/{cell['task']}", []).append((cell["k"], float(cell[name])))
    return found


def _note(row: dict[str, Any]) -> str:
    if row["failed"]:
        return "**The audit failed this method: its output is not the target's own.**"
    said = f"{grid.number(row[MEAN])} {grid.interval(row[f'{MEAN}_low'], row[f'{MEAN}_high'])}".strip()
    disturbed = f" Disturbed: {row['disturbed'].replace(' ', ', ')}." if row["disturbed"] else ""
    best = f" at k = {row['k']}, its best" if row["k"] else ""
    return f"Speedup **{said}** over plain decoding, geometric mean over {row['tasks']} tasks{best}.{disturbed} Its cells are the runs below."


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[level] for level in LEVELS)
