"""Which papers a text rests on. An arXiv number in a text, as methods and claims state it, is the key in
`references.bib`.

Whatever names a paper so is cited in print without a list of its own. Two short tables name the papers of methods and
sources whose own text does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

BIBLIOGRAPHY = Path(__file__).with_name("references.bib")
ARXIV = re.compile(r"(?:arXiv )?(\d{4}\.\d{5})(?:v\d+)?")
AUTHORS = 4
"""A list of references names so many authors of a paper, of others the first."""
METHODS = {
    "ngram": ("2304.04487",),
    "medusa_draft": ("2401.10774",),
    "adaptive_k": ("2211.17192",),
}
"""Method -> papers that its summary does not name."""
SOURCES = {"Spec-Bench": "2401.07851", "SGLang": "2312.07104"}
"""How a source in reported.csv begins -> its paper, where the row names none."""


@cache
def keys() -> frozenset[str]:
    """The keys of `references.bib`."""
    return frozenset(re.findall(r"^@\w+\{([^,\s]+),", BIBLIOGRAPHY.read_text(encoding="utf-8"), flags=re.MULTILINE))


def further(method: str) -> tuple[str, ...]:
    """The papers behind a method that its summary does not name."""
    return METHODS.get(method, ())


def with_paper(source: str) -> str:
    """A source of reported figures, with the arXiv number of its paper where it is known but not in the text."""
    found = next((number for name, number in SOURCES.items() if source.startswith(name)), "")
    return source if ARXIV.search(source) or not found else f"{source}, arXiv {found}"


def cited(text: str, cite: Callable[[str], str]) -> str:
    """`text` with each arXiv number that `references.bib` has replaced by `cite` of its key."""
    return ARXIV.sub(lambda found: cite(found[1]) if found[1] in keys() else found[0], text)


def reference(key: str) -> str:
    """The entry of a key as a line of a list of references."""
    text = BIBLIOGRAPHY.read_text(encoding="utf-8")
    entry = text[text.index(f"{{{key},") :].split("\n}")[0]
    fields = {
        name: re.sub(r"[{}\\]", "", value)
        for name, value in re.findall(r"^ *(\w+) *= *\{(.*)\},?$", entry, flags=re.MULTILINE)
    }
    authors = fields["author"].split(" and ")
    if len(authors) > AUTHORS or "others" in authors:
        authors = [authors[0], "et al."]
    where = (
        f"{fields['journal']} {fields['volume']}({fields['number']}), {fields['pages'].replace('--', '–')}"
        if "journal" in fields
        else fields["note"]
    )
    return f"{', '.join(authors)}. {fields['title']}. {where}, {fields['year']}.".replace("?.", "?").replace(
        ", et al..", " et al."
    )
