"""Whether two prompts say the same: what was trained on is no evaluation. No torch here."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable

NGRAM = 5
"""Words of the n-grams by which near-duplicates are found."""
COMMON = 0.5
"""Two texts are near-duplicates where they share this part of the shorter one's n-grams."""


def normalized(text: str) -> str:
    """`text` as compared with others: letters and digits alone, in lower case, one space between words.

    A text without letters and digits is compared as it stands.
    """
    return " ".join(re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())) or text.strip()


class Overlap:
    """Texts that others must not repeat."""

    def __init__(self, texts: Iterable[str]) -> None:
        """`texts`: as `normalized` writes them."""
        self.whole = frozenset(texts)
        self._size: list[int] = []
        self._texts: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        for number, text in enumerate(sorted(self.whole)):
            found = _ngrams(text)
            self._size.append(len(found))
            for gram in found:
                self._texts[gram].append(number)

    def near(self, text: str) -> bool:
        """Whether `text` is one of the texts or nearly one; of fewer than `NGRAM` words only the same words count."""
        words = normalized(text)
        if words in self.whole:
            return True
        own = _ngrams(words)
        common = Counter(number for gram in own for number in self._texts.get(gram, ()))
        return any(count >= COMMON * min(len(own), self._size[number]) for number, count in common.items())


def _ngrams(text: str) -> set[tuple[str, ...]]:
    words = text.split()
    return {tuple(words[at : at + NGRAM]) for at in range(len(words) - NGRAM + 1)}
