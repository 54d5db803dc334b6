"""Creative writing: a seeded story grammar. No torch here.

A story's hero, place and treasure decide whether it is held out; all three stand in its prompt, so no held-out prompt is
ever trained on. Braces name what is filled in: a bound entity of the story (`{hero}`) or a fresh choice (`{weather}`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from specrig.corpus.example import Example, chance, generator
from specrig.corpus.recipe import Corpus
from specrig.corpus.story_words import BEATS, ENTITIES, OPENINGS, TITLES, WORDS

_FIELD = re.compile(r"\{(\w+)\}")


def creative_writing(seed: int, settings: Corpus) -> Iterator[Example]:
    """Yield stories without end; split by the combination of hero, place and treasure."""
    index = 0
    while True:
        random_ = generator(seed, "story", index)
        index += 1
        bound = _cast(random_)
        source = " + ".join((bound["hero"], bound["place"], bound["treasure"]))
        heldout = chance(seed, "story entities", source) < settings.heldout_share
        title = fill(random_.choice(TITLES), bound, random_)
        opening = fill(random_.choice(OPENINGS), bound, random_)
        paragraphs = [" ".join(fill(random_.choice(choices), bound, random_) for choices in beats) for beats in BEATS]
        prompt = f"Write a story: {title}\n\n{opening}\n"
        yield Example("creative_writing", prompt, "\n" + "\n\n".join(paragraphs) + "\n", source, heldout)


def fill(template: str, bound: dict[str, str], random_: random.Random) -> str:
    """Fill a template's fields, nested ones too; the first letter of each sentence becomes a capital."""
    while match := _FIELD.search(template):
        name = match.group(1)
        value = bound[name] if name in bound else random_.choice(WORDS[name])
        template = template[: match.start()] + value + template[match.end() :]
    return re.sub(r"(^|[.!?] |[\"“])([a-z])", lambda m: m.group(1) + m.group(2).upper(), template)


def _cast(random_: random.Random) -> dict[str, str]:
    """Choose a story's entities; hero and friend differ."""
    bound = {name: random_.choice(choices) for name, choices in ENTITIES.items() if name not in ("names",)}
    (hero, he, him, his), (friend, _, _, _) = random_.sample(ENTITIES_NAMES, 2)
    return bound | {"hero": hero, "he": he, "him": him, "his": his, "friend": friend}


ENTITIES_NAMES: tuple[tuple[str, str, str, str], ...] = tuple(
    (name, *pronouns)
    for name, pronouns in sorted(
        [(name, ("she", "her", "her")) for name in WORDS["women"]] + [(name, ("he", "him", "his")) for name in WORDS["men"]]
    )
)
