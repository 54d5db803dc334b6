"""CSV for spreadsheets: nothing becomes a date, a number or a formula."""

from __future__ import annotations

import csv
import io

import pandas as pd
import pytest

from specrig.report.spreadsheet import BYTE_ORDER_MARK, spreadsheet


@pytest.mark.parametrize(
    "name", ["007", "1e5", "true", "3-4", "1/2", "mar1", "1-Sep", "10:30", "4, 5", "=1+1", "-x", "@a"]
)
def test_a_name_that_would_be_changed_stays_a_name(name: str) -> None:
    text = spreadsheet(pd.DataFrame({"task": [name, "code", "", 'say "1"'], "k": [1, 2, 3, 4]}))
    assert text.startswith(BYTE_ORDER_MARK)
    header, *rows = csv.reader(io.StringIO(text.removeprefix(BYTE_ORDER_MARK)))
    assert header == ["task", "k"]
    assert [row[0] for row in rows] == [f'="{name}"', "code", "", 'say "1"']


@pytest.mark.parametrize(
    "name", ["code", "suffix_p_eagle", "2024_01", "decode", "marvel", "příběh", "代码", "Llama-3.1-8B"]
)
def test_other_names_and_numbers_stay_as_they_are(name: str) -> None:
    assert spreadsheet(pd.DataFrame({"task": [name], "speedup": [-1 / 3]})) == f"\ufefftask,speedup\n{name},{-1 / 3}\n"
