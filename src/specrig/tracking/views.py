"""Saved views of the runs' page: which runs it lists, in which order and with which columns. MLflow keeps each as an
experiment's tag.
"""

from __future__ import annotations

import json

TAG = "mlflow.sharedViewState."
"""What MLflow's pages call the tag of a saved view, up to the view's id. Other versions of MLflow ignore what they
cannot read.
"""
MEASURED = ("metrics.`speedup`", "metrics.`speedup_low`", "metrics.`speedup_high`", "metrics.`acceptance_length`")
FASTEST = "metrics.`speedup`"


def saved_views() -> dict[str, str]:
    """Name of an experiment's tag -> its value, one for each view, in the order of the menu."""
    return dict(
        [
            _view("methods", 3, "Methods, fastest first", "method", FASTEST, ["params.`best_k`", *MEASURED]),
            _view(
                "cells",
                2,
                "Cells, fastest first",
                "cell",
                FASTEST,
                ["attributes.`Dataset`", *MEASURED, "metrics.`tokens_per_s`"],
            ),
            _view(
                "report",
                1,
                "Tables, figures and report",
                "pair",
                "attributes.start_time",
                ["params.`engine`", "params.`pair`"],
            ),
        ]
    )


def _view(key: str, place: int, name: str, kind: str, order: str, columns: list[str]) -> tuple[str, str]:
    """key: the view's id in addresses. place: the menu begins with the largest. kind: the runs' tag. order: by what,
    largest first.
    """
    state = {
        "searchFilter": f"tags.kind = '{kind}'",
        "orderByKey": order,
        "orderByAsc": False,
        "selectedColumns": columns,
        "columnOrder": columns,
    }
    return TAG + key, json.dumps({"name": name, "createdAt": place, "updatedAt": place, "state": json.dumps(state)})
