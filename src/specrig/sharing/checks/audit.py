"""Does the audit agree with the records? Its greedy part is counted again; p-values and verdicts must fit each other."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from specrig.analysis.cells import row_dicts
from specrig.audit.identity import Answer, answer, served_answers
from specrig.audit.multiple_testing import (
    BASELINE_TESTS,
    EXACT,
    IDENTITY,
    LOSSY,
    UNDER_LOAD,
    UNIFORMITY,
    audited_cells,
    strictest_level,
)
from specrig.cell import Cell
from specrig.measurement.blocks import is_lossless
from specrig.measurement.records import Record
from specrig.measurement.traffic.records import Turn
from specrig.sharing.checks import Located
from specrig.study.study import Study

Key = tuple[str, str, str, str, str, str, float]
"""test, engine, pair, method, variant, task, temperature."""


def audit_differences(
    folder: Path, study: Study, cells: Sequence[Cell], found: Sequence[Located], points: Iterable[Sequence[Turn]] = ()
) -> list[str]:
    """What the `audit/*.csv` of a publication cannot say. cells: those measured or failed. points: turns under load."""
    rows = [
        (f"audit/{path.name}:{number}", {name: "" if pd.isna(value) else value for name, value in row.items()})
        for path in sorted((folder / "audit").glob("*.csv"))
        for number, row in enumerate(row_dicts(pd.read_csv(path)), 2)
    ]
    tested: dict[Key, list[Record]] = defaultdict(list)
    for _, record in found:
        if record.simulated_acceptance is None:
            test = IDENTITY if record.cell.temperature == 0 else UNIFORMITY
            tested[_key(test, record.cell)].append(record)
    compared = {key: [answer(record) for record in records] for key, records in tested.items()}
    for turns in points:
        cell = turns[0].point.cell
        if cell.temperature == 0 and (answers := served_answers(turns)):
            compared.setdefault(_key(UNDER_LOAD, cell), []).extend(answers)
    expected = {*compared, *(_key(EXACT, cell) for cell in audited_cells(cells))}
    level = strictest_level(cells)
    lossy = {(cell.engine, cell.method, cell.variant): not is_lossless(cell) for cell in cells}
    differences, seen = [], Counter[Key]()
    for location, row in rows:
        key = _row_key(row)
        seen[key] += 1
        if row["test"] not in BASELINE_TESTS and key not in expected:
            differences.append(f"{location}: a test of {_named(key)}, of which there are no records")
            continue
        _, engine, _, method, variant, *_ = key
        is_lossy = lossy.get((engine, method, variant), False)
        wrong = _row(row, tested.get(key, []), compared.get(key, []), is_lossy, level)
        differences += [f"{location}: {_named(key)}: {what}" for what in wrong]
    probes = Counter(_key(EXACT, cell) for cell in audited_cells(cells))
    for key in sorted(expected, key=str):
        if seen[key] != (probes[key] or 1):
            differences.append(f"audit: {_named(key)}: {seen[key]} rows, {probes[key] or 1} expected")
    return differences


def _row(
    row: Mapping[str, Any], records: Sequence[Record], answers: Sequence[Answer], lossy: bool, level: float
) -> Iterator[str]:
    finding, passed, p_value = str(row["finding"]), str(row["passed"]), row["p_value"]
    if lossy != finding.startswith(LOSSY) and row["test"] not in BASELINE_TESTS:
        yield f"the finding {finding!r}, and the method is {'lossy' if lossy else 'lossless'}"
        return
    finding = finding.removeprefix(LOSSY)
    if answers and row["samples"] != len(answers):
        yield f"{row['samples']} samples, there are {len(answers)} records"
    if finding.startswith("not tested"):
        if not lossy and not _is(passed, False):
            yield "not tested, and without the verdict that follows, failed"
    elif row["test"] in BASELINE_TESTS:
        same, tie = ": the same " in finding, finding.startswith("numerical tie")
        if not finding.startswith("not compared") and not _is(passed, same or tie):
            yield f"the verdict {passed or 'none'} on the finding {finding!r}"
    elif row["test"] in (IDENTITY, UNDER_LOAD):
        yield from _identity(row, answers, lossy)
    else:
        yield from _distribution(finding, passed, p_value, lossy, level)
        tokens = sum(len(record.run.tokens) for record in records)
        if records and not finding.startswith(f"{tokens} tokens, "):
            yield f"the finding {finding!r}, and its records have {tokens} tokens"


def _identity(row: Mapping[str, Any], answers: Sequence[Answer], lossy: bool) -> Iterator[str]:
    """Count the identical outputs again. Whether a divergence is a tie, only the target's logits show."""
    same, of, finding = sum(each.found == each.expected for each in answers), len(answers), str(row["finding"])
    counted = row.get("identical", same)
    if counted != same or f"{same} of {of} outputs identical" not in finding:
        yield f"{counted:g} outputs identical to plain decoding's, in the records {same} of {of}; {finding!r}"
        return
    ties, failed = (
        sum(int(number) for number in re.findall(rf"(\d+) differ {kind}", finding))
        for kind in ("at numerical ties", "otherwise")
    )
    if ties + failed != of - same:
        yield f"{of - same} outputs differ, the finding explains {ties + failed}"
    elif not _is(str(row["passed"]), lossy or not failed):
        yield f"the verdict {row['passed']} with {failed} outputs that differ otherwise than at ties"


def _distribution(finding: str, passed: str, p_value: Any, lossy: bool, level: float) -> Iterator[str]:
    """A p-value that decides has no verdict in the file: Holm's procedure gives all of them when the tables are made."""
    if not isinstance(p_value, float | int) or not 0 <= p_value <= 1 or not math.isfinite(p_value):
        if passed or "no tokens" not in finding:
            yield f"p-value {p_value or 'missing'}"
        return
    if not _is(passed, True if lossy else None):
        yield f"the verdict {passed or 'none'} beside the p-value {p_value:.3g}, from which Holm's procedure gives it"
    rejected = "not uniform" in finding or "not the target's distribution" in finding
    if rejected != (p_value <= level):
        yield f"p-value {p_value:.3g} at the level {level:.3g}, and the finding {finding!r}"


def _is(passed: str, expected: bool | None) -> bool:
    """Whether the column `passed` says so; pandas reads it as 1.0 where others of the file are empty."""
    return {"": None, "True": True, "1.0": True, "False": False, "0.0": False}.get(passed, passed) == expected


def _key(test: str, cell: Cell) -> Key:
    return test, cell.engine, cell.pair, cell.method, cell.variant, cell.task, cell.temperature


def _row_key(row: Mapping[str, Any]) -> Key:
    names = "test", "engine", "pair", "method", "variant", "task"
    texts = [str(row[name]) for name in names]
    return texts[0], texts[1], texts[2], texts[3], texts[4], texts[5], float(row["temperature"])


def _named(key: Key) -> str:
    test, *location, temperature = key
    return f"{test} of {'/'.join(part for part in location if part)} at temperature {temperature:g}"
