"""The published studies as one page, to filter by machine, model, engine and method; each row leads to its report."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Any

from markupsafe import Markup

from specrig.analysis.cells import row_dicts
from specrig.reporting.documents.html_templates import html_template
from specrig.results.grid import interval, number
from specrig.results.labels import DISTURBED_NOTE, LOSSY_NOTE, method_order
from specrig.results.summary import CROSS_FITTED, disturbed_in
from specrig.sharing.published_pairs import PublishedPair


def gallery_page(found: Sequence[PublishedPair]) -> str:
    """One HTML file that needs nothing but the reports beside it. Without scripts it shows the fastest method of each."""
    script = (files("specrig.sharing") / "templates" / "gallery.js").read_text(encoding="utf-8")
    rows = [row for each in found for row in _rows(each)]
    filters = [(name, list(dict.fromkeys(row[name] for row in rows))) for name in ("machine", "model", "engine")]
    return html_template("gallery.html.j2", "specrig.sharing").render(
        script=Markup(script),
        script_hash=f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
        rows=rows,
        filters=[*filters, ("method", method_order(row["method"] for row in rows))],
        marks=f"{LOSSY_NOTE} {DISTURBED_NOTE}",
    )


def _rows(each: PublishedPair) -> Iterator[dict[str, Any]]:
    """A row for each method and variant, the fastest first."""
    best = each.best
    rows = each.speedups.assign(_disturbed=disturbed_in(each.speedups, CROSS_FITTED))
    for row in row_dicts(rows.dropna(subset=[CROSS_FITTED]).sort_values(CROSS_FITTED, ascending=False)):
        yield {
            "machine": each.machine,
            "model": each.model,
            "engine": each.engine,
            "method": row["method"],
            "label": each.label(row),
            "speedup": number(row[CROSS_FITTED]),
            "interval": interval(row[f"{CROSS_FITTED}_low"], row[f"{CROSS_FITTED}_high"]),
            "tasks": row["tasks"],
            "date": each.date,
            "folder": each.folder,
            "href": f"{each.folder}/{each.report}",
            "best": best is not None and (row["method"], row["variant"]) == (best["method"], best["variant"]),
        }
