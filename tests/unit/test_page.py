"""The report's page in a browser: it sorts, filters, answers on hover, switches series off, leads to records, and fits
a phone.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from browser import CHROMIUM, Browser

from specrig.report.documents.html import write_report

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on this machine (Debian: apt-get install chromium)"
)


@pytest.fixture(scope="module")
def page(drawn: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report beside its results, as in a working folder."""
    place = tmp_path_factory.mktemp("page")
    results = shutil.copytree(drawn, place / "results" / "made_up")
    return write_report(results, place / "reports" / "made_up" / "report.html").as_uri()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


def errors(browser: Browser) -> list[Any]:
    kinds = ("Runtime.exceptionThrown", "Log.entryAdded")
    return [event["params"] for event in browser.events if event.get("method") in kinds]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_window(browser: Browser, page: str, width: int, dark: bool) -> None:
    browser.open(page, width, dark=dark)
    browser.run("new Promise((done) => setTimeout(done, 500))")  # a phone unpacks its drawings
    browser.run("document.querySelectorAll('details').forEach((section) => { section.open = true; })")
    beyond = """[...document.querySelectorAll("body *")].filter((part) => !part.parentElement.closest(".wide, svg")
        && part.getBoundingClientRect().right > innerWidth + 1).map((part) => part.outerHTML.slice(0, 80))"""
    assert browser.run(beyond) == []
    assert browser.run("document.documentElement.scrollWidth") == width
    assert errors(browser) == []


def test_a_phone_gets_its_own_drawings_and_a_short_page(browser: Browser, page: str) -> None:
    expression = (
        "[...document.querySelectorAll('#first figure svg')].filter((svg) => svg.getClientRects().length).map((svg) "
        "=> svg.classList[0])"
    )
    browser.open(page, 390)
    browser.run("new Promise((done) => setTimeout(done, 500))")
    assert set(browser.run(expression)) == {"phone"}
    small = """Math.min(...[...document.querySelectorAll("#first svg.phone text")].map((text) =>
        parseFloat(getComputedStyle(text).fontSize) * Math.hypot(text.getScreenCTM().a, text.getScreenCTM().b)))"""
    assert browser.run(small) >= 9, "letters of less than 9 pixels"
    assert browser.run("document.documentElement.scrollHeight") < 9000
    browser.open(page, 1280)
    assert set(browser.run(expression)) == {"screen"}


def test_the_first_table_is_in_view_whole(browser: Browser, page: str) -> None:
    browser.open(page, 920)
    widths = browser.run(
        "(() => { const box = document.querySelector('#first .wide'); return [box.scrollWidth, box.clientWidth]; })()"
    )
    assert widths[0] <= widths[1]


def test_colours_of_the_page_reach_its_figures_in_the_dark(browser: Browser, page: str) -> None:
    colours = """["body", "#first svg text"].map((found) => getComputedStyle(document.querySelector(found)))
        .map((style, place) => place ? style.fill : style.backgroundColor)"""
    browser.open(page)
    light = browser.run(colours)
    browser.open(page, dark=True)
    dark = browser.run(colours)
    assert light[0] == "rgb(255, 255, 255)" and light[0] != dark[0] and light[1] != dark[1]


TABLE = "[...document.querySelectorAll('#cells table')].pop()"


def column(browser: Browser, name: str) -> list[str]:
    place = browser.run(
        f"[...{TABLE}.tHead.rows[0].cells].findIndex((cell) => cell.textContent === {json.dumps(name)})"
    )
    assert place >= 0
    rows = f"[...{TABLE}.querySelectorAll('tbody tr:not(.group)')].filter((row) => !row.hidden)"
    found: list[str] = browser.run(f"{rows}.map((row) => row.cells[{place}].textContent)")
    return found


def test_tables_sort_by_number_both_ways(browser: Browser, page: str) -> None:
    browser.open(page + "#cells")
    press = f"[...{TABLE}.tHead.querySelectorAll('button')].find((found) => found.textContent === 'tokens/s').click()"
    before = [float(text.replace(",", "")) for text in column(browser, "tokens/s")]
    assert before != sorted(before), "the test needs rows out of order"
    browser.run(press)
    assert [float(text.replace(",", "")) for text in column(browser, "tokens/s")] == sorted(before)
    browser.run(press)
    assert [float(text.replace(",", "")) for text in column(browser, "tokens/s")] == sorted(before, reverse=True)


def test_tables_filter_by_words(browser: Browser, page: str) -> None:
    browser.open(page + "#cells")
    assert len(set(column(browser, "method"))) == 4
    browser.run(
        """(() => { const field = document.querySelector("#cells input"); field.value = "Translation ngr";
        field.dispatchEvent(new Event("input")); })()"""
    )
    assert set(column(browser, "method")) == {"ngram"} and set(column(browser, "task")) == {"translation"}


def centre(browser: Browser, element: str) -> tuple[float, float]:
    box = (
        f"(() => {{ const part = {element}; part.scrollIntoView({{block: 'center'}}); const box = "
        "part.getBoundingClientRect();"
    )
    x, y = browser.run(f"{box} return [box.left + box.width / 2, box.top + box.height / 2]; }})()")
    return x, y


def test_a_bar_says_its_value_on_hover(browser: Browser, page: str) -> None:
    browser.open(page)
    bar = (
        "[...document.querySelectorAll('#first svg.screen [data-tips]')].find((part) => "
        "part.dataset.tips.startsWith('eagle'))"
    )
    expected = browser.run(f"{bar}.dataset.tips")
    assert "code" in expected and "×" in expected and "[" in expected
    browser.move(*centre(browser, bar))
    assert browser.run("document.querySelector('.tip').hidden") is False
    assert browser.run("document.querySelector('.tip').textContent") == expected
    browser.move(1, 1)
    assert browser.run("document.querySelector('.tip').hidden") is True


def test_every_point_has_a_shape_to_answer_for(browser: Browser, page: str) -> None:
    browser.open(page)
    lost = """[...document.querySelectorAll("[data-tips]")].filter((part) => part.dataset.tips.split("|").length
        !== (part.querySelectorAll("use").length || part.querySelectorAll("path").length)).map((part) => part.dataset.tips)"""
    assert browser.run("document.querySelectorAll('[data-tips]').length") > 40
    assert browser.run(lost) == []


def test_a_click_on_the_legend_switches_a_series_off_and_on(browser: Browser, page: str) -> None:
    browser.open(page + "#k")
    figure = "document.querySelector('#k svg.screen')"
    hidden = f"[...{figure}.querySelectorAll('.off')].map((part) => part.dataset.series)"
    place = centre(
        browser, f"[...{figure}.querySelectorAll('[data-switch=\"ngram\"]')].find((part) => part.role === 'button')"
    )
    browser.click(*place)
    off = browser.run(hidden)
    assert len(off) >= 8 and set(off) == {"ngram"}, "lines and bands of two tasks and two measures"
    browser.click(*place)
    assert browser.run(hidden) == []


def first_links(browser: Browser) -> dict[str, str]:
    """Text -> address of the links in the first row of the cells."""
    found = browser.run(
        "[...document.querySelector('#cells tbody tr:not(.group)').querySelectorAll('a')].map((a) => [a.textContent, a.href])"
    )
    return dict(found)


def test_a_row_leads_to_its_record_and_its_run(browser: Browser, page: str) -> None:
    browser.open(page)
    links = first_links(browser)
    record = Path(unquote(links["record"].removeprefix("file://")))
    cell = json.loads(record.read_text().splitlines()[0])["cell"]
    assert cell["method"] == browser.run("document.querySelector('#cells tbody tr:not(.group) td').textContent")
    name = "/".join([cell["engine"], cell["pair"], cell["method"], record.stem])
    assert unquote(links["run"]).endswith(f"&searchFilter=tags.cell = '{name}'")


def test_only_tables_of_fifteen_rows_and_more_have_a_filter(browser: Browser, page: str) -> None:
    browser.open(page)
    counted = """[...document.querySelectorAll("table")].map((table) => [table.querySelectorAll("tbody tr:not(.group)").length,
        table.parentNode.previousElementSibling?.tagName === "INPUT"])"""
    found = browser.run(counted)
    assert any(filtered for _, filtered in found) and any(1 < rows < 15 for rows, _ in found)
    assert all(filtered == (rows >= 15) for rows, filtered in found)


def test_contents_stay_at_the_side_of_a_wide_window(browser: Browser, page: str) -> None:
    browser.open(page)
    assert browser.run("document.querySelector('.toc details').open")
    browser.run("document.querySelectorAll('main details').forEach((section) => { section.open = true; })")
    place = """(() => { const box = document.querySelector(".toc").getBoundingClientRect();
        return [box.top, box.right, document.querySelector("main").getBoundingClientRect().left]; })()"""
    for position in (0, 2000, 4000):
        browser.run(f"scrollTo(0, {position})")
        top, right, main = browser.run(place)
        assert 0 <= top < 60 and right <= main, "in view, beside the text"


def test_contents_are_a_folded_menu_on_a_phone(browser: Browser, page: str) -> None:
    browser.open(page, 390)
    menu = "document.querySelector('.toc details')"
    assert browser.run(f"{menu}.open") is False
    browser.run("scrollTo(0, 1500)")
    assert browser.run("document.querySelector('.toc').getBoundingClientRect().top") == 0
    assert browser.run("document.querySelector('.toc').getBoundingClientRect().height") < 60
    browser.click(
        *browser.run(
            f"(() => {{ const box = {menu}.firstElementChild.getBoundingClientRect(); return [box.left + 20, box.top + 10]; }})()"
        )
    )
    assert browser.run(f"{menu}.open") is True
    browser.run("document.querySelector('.toc a[href=\"#limits\"]').click()")
    top = "new Promise((done) => setTimeout(() => done(document.querySelector('#limits').getBoundingClientRect().top), 50))"
    assert 0 < browser.run(top) < 200, "the section stands below the menu's bar"
    assert browser.run(f"{menu}.open") is False and browser.run("document.querySelector('#limits').open") is True


def test_a_link_unfolds_its_section(browser: Browser, page: str) -> None:
    browser.open(page)
    assert browser.run("document.querySelector('#audit, #limits').open") is False
    browser.run("document.querySelector('nav a[href=\"#limits\"]').click()")
    assert (
        browser.run("new Promise((done) => setTimeout(() => done(document.querySelector('#limits').open), 50))") is True
    )
