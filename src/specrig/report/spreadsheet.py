"""A table as a CSV that a spreadsheet opens as it is: UTF-8 that it recognises, and no text that it takes for a date, a
number or a formula.
"""

from __future__ import annotations

import re

import pandas as pd

FOLDER = "excel"
"""The folder beside the tables' own CSV files, which are for programs."""
BYTE_ORDER_MARK = "\ufeff"
_TAKEN_FOR_ELSE = re.compile(
    r"[-=+@\t].*"  # a formula
    r"|\d[\d.,:/ -]*(e[+-]?\d+)?( ?[ap]m)?"  # numbers, dates and times: 007, 1e5, 3-4, 1/2, 10:30
    r"|(\d+[-/. ]*)?(jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|sept?(ember)?|oct(ober)?"
    r"|nov(ember)?|dec(ember)?)[-/. ]*(\d+[-/. ]*)*"
    r"|true|false",
    re.IGNORECASE | re.DOTALL,
)


def spreadsheet(frame: pd.DataFrame) -> str:
    """`frame` as CSV, with `="text"` for every text that would become something else. Numbers keep their precision.

    Separators are commas and decimal signs points, as Excel expects them where Windows has such a format.
    """
    texts = [name for name in frame if not pd.api.types.is_numeric_dtype(frame[name])]
    return BYTE_ORDER_MARK + frame.assign(**{str(name): frame[name].map(_kept) for name in texts}).to_csv(index=False)


def _kept(value: object) -> object:
    """A text that a spreadsheet would change, as a formula that gives it; anything else as it is."""
    if isinstance(value, str) and _TAKEN_FOR_ELSE.fullmatch(value):
        return '="' + value.replace('"', '""') + '"'
    return value
