"""Letters beyond Latin, Greek and Cyrillic: which fonts of this machine have them, and what to install for others.

Names of tasks, pairs and methods may be Chinese or Arabic. Typst's own fonts and Matplotlib's have no Chinese letters.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import cache

BEYOND = 0x0530
"""Typst's own fonts have the letters before this one; Armenian ones begin here."""
CJK = range(0x2E80, 0xD7FF)
DEBIAN = {True: "fonts-noto-cjk", False: "fonts-noto-core"}
"""Whether letters are Chinese, Japanese or Korean -> the package of Debian with fonts that have them."""


def foreign(text: str) -> set[str]:
    """The letters of `text` that only a font of this machine may have."""
    return {sign for sign in text if ord(sign) >= BEYOND and unicodedata.category(sign)[0] in "LM"}


def families(text: str) -> list[str]:
    """The families of this machine's fonts with the foreign letters of `text`, most letters first, made known to
    Matplotlib, whose list of fonts may be older than they are.
    """
    from matplotlib.font_manager import fontManager

    left, chosen = foreign(text), []
    while left and (fonts := [font for font in _fonts() if left & font.letters]):
        best = max(fonts, key=lambda font: (len(left & font.letters), "Mono" not in font.family, "Sans" in font.family))
        left -= best.letters
        fontManager.addfont(best.path)
        chosen.append(best.family)
    return chosen


def for_figures(text: str) -> dict[str, list[str]]:
    """Matplotlib's settings for a figure with the letters of `text`; none where its own font has them."""
    found = families(text)
    return {"font.family": ["DejaVu Sans", *found]} if found else {}


def missing(text: str) -> str:
    """A sentence that names the letters of `text` that no font of this machine has, and what to install; or ""."""
    left = foreign(text)
    for font in _fonts() if left else ():
        left -= font.letters
    if not left:
        return ""
    packages = " ".join(sorted({DEBIAN[ord(sign) in CJK] for sign in left}))
    shown = "".join(sorted(left)[:20]) + ("…" if len(left) > 20 else "")
    return f"no font on this machine has the letters {shown} (Debian: apt-get install {packages})"


@dataclass(frozen=True, slots=True)
class _Font:
    """letters: those from `BEYOND` on."""

    path: str
    family: str
    letters: frozenset[str]


@cache
def _fonts() -> list[_Font]:
    """The machine's fonts of usual style that have letters from `BEYOND` on. Reading them takes seconds."""
    from fontTools.ttLib import TTFont, TTLibError
    from matplotlib.font_manager import findSystemFonts, get_font

    fonts = []
    for path in sorted(findSystemFonts()):
        try:
            face = get_font(path)
            if face.style_name not in ("Regular", "Book", "Medium", "Roman"):
                continue
            with TTFont(path, fontNumber=0, lazy=True) as file:
                letters = frozenset(chr(code) for code in file.getBestCmap() or () if code >= BEYOND)
        except (TTLibError, OSError, RuntimeError):  # a broken font, or one without Unicode
            continue
        if letters:
            fonts.append(_Font(path, face.family_name, letters))
    return fonts
