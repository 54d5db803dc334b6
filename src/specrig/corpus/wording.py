"""Whether two prompts say the same: what was trained on is no evaluation. No torch here."""

from __future__ import annotations

import re
import unicodedata


def normalized(text: str) -> str:
    """`text` as compared with others: letters and digits alone, in lower case, one space between words.

    A text without letters and digits is compared as it stands.
    """
    return " ".join(re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())) or text.strip()
