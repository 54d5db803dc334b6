"""Translation text from the Unicode CLDR data in Babel: English to German, Czech, Turkish and Chinese. No torch here.

Source: Unicode Common Locale Data Repository, https://cldr.unicode.org, through Babel. An example is a list of phrases.
The entities of a phrase (its date, its amount and unit, its territories) decide whether it is held out, so that no
held-out phrase is trained on in any language.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Iterator
from functools import cache, partial

from babel import Locale
from babel.dates import format_date, format_timedelta
from babel.lists import format_list
from babel.numbers import format_currency, format_decimal
from babel.units import format_unit

from specrig.corpus import instructions
from specrig.corpus.example import Example, generator, hash_fraction
from specrig.corpus.recipe import Corpus

LANGUAGES = {"de": "German", "cs": "Czech", "tr": "Turkish", "zh": "Chinese"}
PHRASES = 7
"""Number of phrases in an example."""
_UNITS = (
    "length-kilometer", "length-meter", "length-mile", "length-foot", "length-centimeter", "area-hectare",
    "area-square-kilometer", "area-square-meter", "volume-liter", "volume-cubic-meter", "volume-gallon",
    "mass-kilogram", "mass-gram", "mass-ton", "mass-pound", "duration-year", "duration-month", "duration-week",
    "duration-day", "duration-hour", "duration-minute", "duration-second", "speed-kilometer-per-hour",
    "speed-mile-per-hour",
    "speed-meter-per-second", "temperature-celsius", "temperature-fahrenheit", "digital-megabyte", "digital-gigabyte",
    "power-kilowatt", "power-watt", "energy-kilowatt-hour", "energy-kilocalorie", "electric-volt",
    "pressure-hectopascal", "frequency-megahertz",
)  # fmt: skip
_CURRENCIES = (
    "USD", "EUR", "GBP", "JPY", "CHF", "CZK", "TRY", "CNY", "INR", "BRL", "PLN", "SEK", "NOK", "DKK", "HUF", "CAD",
    "AUD", "MXN", "KRW", "ZAR",
)  # fmt: skip
_Phrase = tuple[str, Callable[[str], str]]
"""(text that names the phrase's entities, function from a locale to the phrase in it)"""


def translation(seed: int, settings: Corpus) -> Iterator[Example]:
    """Yield translation examples without end, one language after the other; the entities decide which are held out."""
    heldout_share = settings.heldout_share
    kinds = (_date, partial(_names, "territories"), _quantity, _money, _relative, partial(_names, "languages"))
    index = 0
    while True:
        heldout = hash_fraction(seed, "translation", index) < heldout_share
        language = list(LANGUAGES)[index % len(LANGUAGES)]
        random_ = generator(seed, "translation phrases", index)
        phrases: list[_Phrase] = []
        for make in random_.choices(kinds, k=PHRASES):
            while True:
                phrase = make(random_)
                if (hash_fraction("phrase", phrase[0]) < heldout_share) == heldout:
                    break
            phrases.append(phrase)
        english = "\n".join(render("en") for _, render in phrases)
        foreign = "\n".join(render(language) for _, render in phrases)
        name = LANGUAGES[language]
        prompt = f"Translate from English to {name}.\n\n{english}\n\n{name}:\n"
        source = " + ".join(key for key, _ in phrases)
        yield Example(
            "translation", prompt, foreign + "\n", source, heldout, instructions.translation(name, english), foreign
        )
        index += 1


def _date(random_: random.Random) -> _Phrase:
    day = datetime.date(1900, 1, 1) + datetime.timedelta(days=random_.randrange(73_000))
    style = random_.choice(("full", "long"))
    return f"date {day}", lambda locale: format_date(day, style, locale=locale)


def _names(table: str, random_: random.Random) -> _Phrase:
    """Some entries of a table of `Locale`, `territories` or `languages`."""
    codes = random_.sample(_codes(table), random_.randint(2, 5))
    names = {code: getattr(Locale(code), table) for code in ("en", *LANGUAGES)}
    return f"{table} {' '.join(sorted(codes))}", lambda locale: format_list(
        [names[locale][code] for code in codes], locale=locale
    )


def _quantity(random_: random.Random) -> _Phrase:
    unit = random_.choice(_UNITS)
    amount = random_.choice((random_.randint(2, 999), random_.randint(1_000, 99_999), random_.randint(11, 999) / 10))
    return f"{amount} {unit}", lambda locale: format_unit(amount, unit, "long", locale=locale)


def _money(random_: random.Random) -> _Phrase:
    currency = random_.choice(_CURRENCIES)
    amount = random_.choice((random_.randint(2, 99_999), random_.randint(200, 999_999) / 100))
    return f"{amount} {currency}", lambda locale: format_currency(
        amount, currency, locale=locale, format_type="name", currency_digits=isinstance(amount, float)
    )


def _relative(random_: random.Random) -> _Phrase:
    unit, most = random_.choice((("year", 99), ("month", 11), ("week", 3), ("day", 6), ("hour", 23), ("minute", 59)))
    seconds = {"year": 31_536_000, "month": 2_592_000, "week": 604_800, "day": 86_400, "hour": 3_600, "minute": 60}[
        unit
    ]
    amount, ahead = random_.randint(2, most), random_.random() < 0.5
    share = random_.randint(2, 98)
    span = datetime.timedelta(seconds=amount * seconds * (1 if ahead else -1))

    def render(locale: str) -> str:
        when = format_timedelta(span, granularity=unit, threshold=99, add_direction=True, locale=locale)
        return f"{when} ({format_decimal(share, locale=locale)} %)"

    return f"{amount} {unit} {ahead} {share}", render


@cache
def _codes(table: str) -> list[str]:
    """The table's two-letter codes that have a name in all five locales, sorted."""
    tables = [getattr(Locale(code), table) for code in ("en", *LANGUAGES)]
    return sorted(
        code
        for code in tables[0]
        if len(code) == 2 and code not in ("XA", "XB") and all(code in each for each in tables)
    )
