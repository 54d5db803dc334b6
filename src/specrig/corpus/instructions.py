"""Puts the corpus' examples as a person would ask an assistant: short requests in plain words. No torch here.

Each function returns the text of one request. Which of several wordings it takes depends on what is asked alone.
"""

from __future__ import annotations

import re

from specrig.corpus.example import number

_VERB_LIST = """
add adjust append apply assert attach build calculate call change check clean clear close collect combine compare
compile compress compute connect construct convert copy count create decode decompress delete deserialize determine
disable dispatch display download draw dump enable encode ensure escape estimate evaluate execute expand extract
fetch fill filter find finish fit flatten format generate get give handle help hide identify implement import
initialize insert install invoke iterate join list load locate look lookup make map mark match merge modify move
normalize open pack parse perform pick pop prepare print process produce provide push put quote raise read receive
record reduce register release reload remove rename render replace report request reset resolve restore retrieve
return reverse run sample save scan search select send serialize set show shuffle sort split start stop store strip
sum swap sync test transform translate trim truncate try turn unescape unpack update upload use validate verify wait
walk warn wrap write yield
"""
_VERBS = frozenset(_VERB_LIST.split())
"""First words of docstrings that say what a function does, in the imperative."""


def code(signature: str, doc: str) -> str:
    """Ask for a function. signature: `def …:`, on one line or several; doc: what its docstring says first."""
    call = re.sub(r"\s+", " ", signature.strip()).removeprefix("async ").removeprefix("def ").rstrip(":")
    what = "method" if re.search(r"\((self|cls)\b", call) else "function"
    first, _, rest = doc.partition(" ")
    does = _third_person(first)
    if does is None:
        return f"Write the Python {what} `{call}`. Its documentation says: {doc}"
    return f"Write a Python {what} `{call}` that {does} {rest}"


def explanation(function: str) -> str:
    """Ask what a function does. function: its source text."""
    return f"Explain what this Python function does:\n\n```python\n{function}\n```"


def translation(language: str, english: str) -> str:
    """Ask for the translation of a text into a language."""
    return f"Translate into {language}:\n\n{english}"


def summary(text: str) -> str:
    """Ask for a summary of a text."""
    return f"Summarize the following documentation in one sentence:\n\n{text}"


def story(title: str, opening: str) -> str:
    """Ask for a story with this opening, or this title and opening."""
    wordings = (
        f'Write a short story that begins: "{opening}"',
        f'Write a short story called "{title}". It begins: "{opening}"',
        f"Continue this story: {opening}",
    )
    return wordings[number("wording", opening) % len(wordings)]


def _third_person(verb: str) -> str | None:
    """`Return` and `Returns` as `returns`; None for a word that is no known verb."""
    word = verb.lower()
    if word not in _VERBS:
        known = {word.removesuffix("s"), word.removesuffix("es"), word.removesuffix("ies") + "y"} & _VERBS
        return word if known and word.endswith("s") else None
    if re.search(r"([sxz]|ch|sh)$", word):
        return word + "es"
    return re.sub(r"(?<![aeiou])y$", "ie", word) + "s"
