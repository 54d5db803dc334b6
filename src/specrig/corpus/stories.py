"""Makes creative-writing examples: short stories from a seeded grammar. No torch here.

A story's hero, place and treasure decide whether it is held out. All three stand in its prompt, so no held-out prompt
is trained on. A name in braces is filled in: with an entity that stays the same in a story (`{hero}`) or with a new
choice (`{weather}`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from specrig.corpus import instructions
from specrig.corpus.example import Example, generator, hash_fraction
from specrig.corpus.recipe import Corpus
from specrig.corpus.story_words import BEATS, ENTITIES, OPENINGS, TITLES, WORDS

_FIELD = re.compile(r"\{(\w+)\}")


def creative_writing(seed: int, settings: Corpus) -> Iterator[Example]:
    """Yield stories without end; the combination of hero, place and treasure decides which are held out."""
    index = 0
    while True:
        random_ = generator(seed, "story", index)
        index += 1
        bound = _cast(random_)
        source = " + ".join((bound["hero"], bound["place"], bound["treasure"]))
        heldout = hash_fraction("story entities", source) < settings.heldout_share
        title = fill(random_.choice(TITLES), bound, random_)
        opening = fill(random_.choice(OPENINGS), bound, random_)
        paragraphs = [" ".join(fill(random_.choice(choices), bound, random_) for choices in beats) for beats in BEATS]
        prompt = f"Write a story: {title}\n\n{opening}\n"
        story = "\n\n".join(paragraphs)
        request = instructions.story(title, opening)
        yield Example("creative_writing", prompt, f"\n{story}\n", source, heldout, request, f"{opening}\n\n{story}")


def fill(template: str, bound: dict[str, str], random_: random.Random) -> str:
    """Fill the fields of a template, also those in filled-in texts, and begin each sentence with a capital."""
    while match := _FIELD.search(template):
        name = match.group(1)
        value = bound[name] if name in bound else random_.choice(WORDS[name])
        template = template[: match.start()] + value + template[match.end() :]
    return re.sub(r"(^|[.!?] |[\"“])([a-z])", lambda m: m.group(1) + m.group(2).upper(), template)


def _cast(random_: random.Random) -> dict[str, str]:
    """Choose the entities of a story; its hero and its friend differ."""
    bound = {name: random_.choice(choices) for name, choices in ENTITIES.items()}
    (hero, he, him, his), (friend, _, _, _) = random_.sample(ENTITIES_NAMES, 2)
    return bound | {"hero": hero, "he": he, "him": him, "his": his, "friend": friend}


ENTITIES_NAMES: tuple[tuple[str, str, str, str], ...] = tuple(
    (name, *pronouns)
    for name, pronouns in sorted(
        [(name, ("she", "her", "her")) for name in WORDS["women"]]
        + [(name, ("he", "him", "his")) for name in WORDS["men"]]
    )
)
