"""Checks of the cells: no cell occurs twice, each has the models it needs, and at least one can be run by an engine."""

from __future__ import annotations

from collections import Counter

from specrig.engines import registry as engines
from specrig.study.problems import Problems
from specrig.study.study import Study


def check_cells(study: Study, problems: Problems) -> None:
    """Add a problem for each entry that repeats a cell, and for each pair that lacks a model which one of its methods
    needs.
    """
    seen: dict[tuple[object, ...], int] = {}
    reported: set[tuple[int, str]] = set()
    for index, cell in study.grid.requested:
        same = (
            *cell.method_key,
            cell.k,
            cell.task,
            cell.temperature,
            cell.batch_size,
            repr(sorted(cell.options.items())),
        )
        if same in seen and (index, cell.method) not in reported:
            reported.add((index, cell.method))
            other = seen[same]
            reason = f"cell {cell.name} is there already" + (f", from methods[{other}]" if other != index else "")
            problems.key(["methods", index], reason, "remove the repeated k, value or entry")
        seen.setdefault(same, index)
    for index, entry in enumerate(study.methods):
        for pair in entry.pairs or study.pairs:
            if all(_served(study, engine, pair, entry.method) for engine in study.engines):
                continue  # the models lie with the servers
            for need in sorted(entry.needs):
                if study.paths.model(pair, need, study.root) is None:
                    column = "draft" if need == "draft" else "heads"
                    problems.key(
                        ["methods", index],
                        f"{entry.method} needs a {need.replace('_', ' ')} and pair {pair!r} has none",
                        f"fill the {column} column of {study.tables.pairs} (`trained`: it is trained here), or restrict the entry with `pairs:`",
                    )


def _served(study: Study, engine: str, pair: str, method: str) -> bool:
    """Whether the cells of a method on a pair are run by servers, so that no model is loaded here."""
    named = any((server.engine, server.pair, server.method) == (engine, pair, method) for server in study.servers)
    return named or not engines()[engine].loads_pairs


def check_refusals(study: Study, problems: Problems) -> None:
    """Add a problem if the engines refuse all cells of the study; it names the three most frequent reasons."""
    if not study.grid.cells:
        reasons = Counter(refusal.reason for refusal in study.grid.refusals)
        listed = "; ".join(f"{reason} ({count} cells)" for reason, count in reasons.most_common(3))
        problems.key(["engines"], f"no engine can run any cell: {listed}", "install the engine, or choose another")
