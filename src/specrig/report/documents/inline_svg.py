"""Put an SVG file of matplotlib's into a page: in the page's colours and a third of the size."""

from __future__ import annotations

import re
from pathlib import Path

from markupsafe import Markup

from specrig.report.figures.panels import NOTHING
from specrig.report.figures.style import GRID, INK, PAPER

LEAST = 0.6
"""A drawing is shrunk to its window, but not below this part of its size: then it scrolls, so that it stays readable.
"""
_UNUSED = r"<metadata>.*?</metadata>|<title>.*?</title>|<style.*?</style>"
_FONT = r"font-family: [^;\"]*;? ?| transform=\"rotate\(-0 [^)]*\)\""
_COLOURS = ((INK, "currentColor"), (PAPER, "var(--paper)"), (GRID, "var(--line)"))


def has_data(path: Path) -> bool:
    """Whether an SVG file shows anything."""
    return f'id="{NOTHING}"' not in path.read_text(encoding="utf-8")


def inline_svg(path: Path, kind: str, prefix: str) -> Markup:
    """An SVG file of a figure with data as an HTML element of the class `kind`.

    prefix: how its ids and classes begin; no other drawing of the page may have the same.
    """
    text = path.read_text(encoding="utf-8")
    text = text[text.index("<svg") :]
    match = re.search(r"<title>(.*?)</title>", text, flags=re.DOTALL)
    title = match[1] if match else ""
    text = re.sub(rf"{_UNUSED}|{_FONT}", "", text, flags=re.DOTALL)  # the page's style names the fonts

    def head(found: re.Match[str]) -> str:
        width = float(found[2])
        size = f"max-width:{width:.6g}pt;min-width:{LEAST * width:.0f}pt"
        return f'<svg class="{kind}" style="{size}" role="img" aria-label="{title}"{found[1]}'

    text = re.sub(r'<svg([^>]*?) width="([\d.]+)pt" height="[\d.]+pt"', head, text, count=1)
    # A tenth of a point is finer than a screen's pixels.
    text = re.sub(r' (?:d|x|y|transform)="[^"]*"', lambda found: re.sub(r"(\.\d)\d+", r"\1", found[0]), text)
    for colour, name in _COLOURS:
        text = text.replace(colour, name)
    text = _short(text, prefix)
    return Markup(text)  # drawn by this program from numbers and configured names, which matplotlib escapes


def _short(text: str, prefix: str) -> str:
    """The same drawing with short ids, a class instead of each repeated style, and no element around a single one."""
    used = list(dict.fromkeys(re.findall(r'(?:href="|url\()#([^")]+)', text)))
    ids = {name: f"{prefix}-{number}" for number, name in enumerate(used)}
    text = re.sub(r' id="([^"]*)"', lambda found: f' id="{ids[found[1]]}"' if found[1] in ids else "", text)
    text = re.sub(r'(?:xlink:)?href="#([^"]+)"', lambda found: f'href="#{ids[found[1]]}"', text)
    text = re.sub(r"url\(#([^)]+)\)", lambda found: f"url(#{ids[found[1]]})", text)
    start = text.index(">") + 1
    head, body = text[:start], re.sub(r"<g/>|\s+(?=<)", "", text[start:])
    body = re.sub(r' d="[^"]*"', lambda found: re.sub(r"\s*([MLCQzZ])\s*", r"\1", found[0]), body)
    styles: dict[str, str] = {}
    body = re.sub(
        r'style="([^"]*)"', lambda found: f'class="{styles.setdefault(found[1], f"{prefix}_{len(styles)}")}"', body
    )
    # The points of a line: what they share belongs to their group.
    body = re.sub(r'<g([^>]*)>((?:<use [^>]*( class="\w+")/>)(?:<use [^>]*\3/>)+)</g>', _hoisted, body)
    leaf = re.compile(r"<g>(<[^>]*/>|<text[^>]*>[^<]*</text>)</g>")
    while (shorter := leaf.sub(r"\1", body)) != body:
        body = shorter
    rules = "".join(f".{name}{{{style}}}" for style, name in styles.items())
    return f"{head}<style>{rules}</style>{body}"


def _hoisted(group: re.Match[str]) -> str:
    attributes, points, shared = group.groups()
    return f"<g{attributes}{shared}>{points.replace(shared, '')}</g>"
