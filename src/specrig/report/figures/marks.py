"""Name what a figure draws. The report's script reads the names: it shows a point's values on hover and switches series
off.

Matplotlib hands only one text of an artist through to its SVG file, the id. `mark` and `switch` put the names there,
and `named` turns such ids into data attributes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html import escape

from matplotlib.artist import Artist

BETWEEN = "|"
"""Stands between the series of one artist, and between the texts of its points."""
_MARK = re.compile(r'id="(mark|switch)-([0-9a-f]+)"')


def mark(artists: Artist | Sequence[Artist], series: str | Sequence[str], tips: Sequence[str] = ()) -> None:
    """Name artists as parts of `series` (labels of the legend). tips: the text of each point or bar."""
    names = [series] if isinstance(series, str) else series
    for artist in [artists] if isinstance(artists, Artist) else artists:
        artist.set_gid(f"mark-{_hex(names, tips)}")


def switch(artists: Sequence[Artist], series: str) -> None:
    """Name artists as the legend entry of `series`."""
    for artist in artists:
        artist.set_gid(f"switch-{_hex([series], ())}")


def tip(what: str, value: float, low: float = float("nan"), high: float = float("nan"), *, unit: str = "") -> str:
    """The text of a point: what it is, its value with four digits, and its interval where that is known."""
    spread = f" [{low:.4g}, {high:.4g}]" if low == low and high == high else ""
    return f"{what}: {value:.4g}{unit}{spread}"


def named(svg: str) -> str:
    """The text of an SVG file with data attributes instead of the ids that `mark` and `switch` gave."""

    def attributes(found: re.Match[str]) -> str:
        names, tips = json.loads(bytes.fromhex(found[2]))
        kind = "series" if found[1] == "mark" else "switch"
        attribute = f' data-tips="{escape(BETWEEN.join(tips))}"' if tips else ""
        return f'data-{kind}="{escape(BETWEEN.join(names))}"{attribute}'

    return _MARK.sub(attributes, svg)


def _hex(names: Sequence[str], tips: Sequence[str]) -> str:
    clean = [[text.replace(BETWEEN, "/") for text in texts] for texts in (names, tips)]
    return json.dumps(clean).encode().hex()
