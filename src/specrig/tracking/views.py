"""The description of an experiment in MLflow, and its saved views: which runs they list, in which order and columns."""

from __future__ import annotations

import json

DESCRIPTION = """\
The views above list methods, cells, drafts and heads, and the run with the report. A method has one run in each setting \
(temperature, batch size, options): `speedup` is the geometric mean over tasks at its best k, `speedup/<task>` that of a \
task, `by_k/…` a sweep with k as the step. Select runs and Compare, or open the charts. Below each method are its cells, \
one run each. Models lists drafts and heads, with the acceptance length (τ) that methods reached with them.

Search: methods `tags.kind = 'method'`; cells of a task `tags.kind = 'cell' and params.task = 'code'`; failed audits \
`tags.audit = 'failed'`; trainings `tags.kind = 'model'`; runs of a model `params.target_sha256 LIKE 'c159%'`.

Units: speedup in times plain decoding (95 % interval: `_low`, `_high`), acceptance_length in tokens a target pass, \
acceptance_rate and alpha as shares of 1, times and memory as their names say. Created and Duration are those of the \
job that measured; methods are measured in turns, so their times overlap."""
VIEW_TAG = "mlflow.sharedViewState."
"""The tag of a saved view, up to the view's id. Versions of MLflow without views ignore it."""
MEASURED = ["metrics.`speedup`", "metrics.`speedup_low`", "metrics.`speedup_high`", "metrics.`acceptance_length`"]
VIEWS: tuple[tuple[str, str, str, str, list[str]], ...] = (
    ("methods", "Methods, fastest first", "method", MEASURED[0], ["params.`best_k`", *MEASURED]),
    (
        "cells",
        "Cells, fastest first",
        "cell",
        MEASURED[0],
        ["attributes.`Dataset`", *MEASURED, "metrics.`tokens_per_s`"],
    ),
    ("models", "Drafts and heads", "model", "attributes.start_time", ["params.`pair`", "params.`source`"]),
    ("report", "Report, tables and figures", "study", "attributes.start_time", []),
)
"""In the order of the menu: id in addresses, name, tag `kind` of the runs, order (largest first), columns."""
SECTION = {"uuid": "speedup", "display": True, "isReordered": True, "deleted": False, "isGenerated": False}
CHART = {
    "type": "BAR",
    "uuid": "speedup",
    "metricSectionId": SECTION["uuid"],
    "metricKey": "speedup",
    "runsCountToCompare": 20,
    "deleted": False,
    "isGenerated": False,
}
"""The first chart of methods; MLflow adds one of each metric below, in sections of its own."""


def saved_views() -> dict[str, str]:
    """Name of an experiment's tag -> its value, one for each view."""
    found = {}
    for rank, (key, name, kind, order, columns) in zip(range(len(VIEWS), 0, -1), VIEWS, strict=True):
        state: dict[str, object] = {
            "searchFilter": f"tags.kind = '{kind}'",
            "orderByKey": order,
            "orderByAsc": False,
            "selectedColumns": columns,
            "columnOrder": columns,
        }
        if kind == "method":
            state |= {
                "compareRunSections": [SECTION | {"name": "Speedup by method"}],
                "compareRunCharts": [CHART],
                "isAccordionReordered": True,  # else sections stand in the order of their names
                "runsHiddenMode": "FIRST_20_RUNS",
            }
        # The menu begins with the view that was created last.
        view = {"name": name, "createdAt": rank, "updatedAt": rank, "state": json.dumps(state)}
        found[VIEW_TAG + key] = json.dumps(view)
    return found
