"""The index of published studies says what their records say."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from browser import CHROMIUM, Browser

from specrig.cli import main
from specrig.sharing.gallery import FIGURE, INDEX, PAGE, declared, draw_figure, index_markdown
from specrig.sharing.gallery_page import gallery_page
from specrig.sharing.manifest import PublicationError
from specrig.sharing.published_pairs import PublishedPair, published_pairs

LARGEST = 200_000
"""Bytes that the picture may have."""


def entry(rows: list[tuple[str, float, bool]]) -> PublishedPair:
    """An entry with (method, speedup, sound) rows."""
    frame = pd.DataFrame(
        {
            "method": [method for method, _, _ in rows],
            "variant": "",
            "k": 4,
            "tasks": 2,
            "lossless": True,
            "disturbed": "",
            "cross_fitted": [speedup for _, speedup, _ in rows],
            "cross_fitted_low": [speedup - 0.1 for _, speedup, _ in rows],
            "cross_fitted_high": [speedup + 0.1 for _, speedup, _ in rows],
            "cross_fitted_ks": ["4, 4" for _ in rows],
        }
    )
    sound = pd.Series([kept for _, _, kept in rows])
    return PublishedPair(
        "there",
        "report.html",
        "a machine",
        "native",
        "some_pair",
        "float32",
        8,
        ("0" * 40,),
        "2000-01-01",
        frame,
        sound,
    )


@pytest.fixture(scope="module")
def published(repository: Path) -> list[PublishedPair]:
    return published_pairs(repository / "reports/published")


def test_the_index_in_the_repository_is_of_its_publications(
    published: list[PublishedPair], repository: Path, tmp_path: Path
) -> None:
    """Fails after a study was published or the code changed what tables say: `specrig gallery` writes the index anew."""
    folder = repository / "reports/published"
    others = declared(folder, published)
    assert others == ["nvidia-h200-shapes"], "every other study measured acceptance"
    assert (folder / INDEX).read_text() == index_markdown(published, others)
    assert (folder / PAGE).read_text() == gallery_page(published)
    # Its bytes depend on matplotlib's version, so the picture is only compared with itself.
    drawn = [draw_figure(published, tmp_path / name) for name in ("one.svg", "other.svg")]
    assert drawn[0].read_bytes() == drawn[1].read_bytes()
    assert max(path.stat().st_size for path in (*drawn, folder / FIGURE)) < LARGEST


def test_the_headline_is_the_fastest_method_without_fault() -> None:
    lines = index_markdown(
        [entry([("medusa", 3.0, False), ("ngram", 1.2, True), ("draft_model", 1.5, True)])]
    ).splitlines()
    row = next(line for line in lines if "a machine" in line)
    assert "| draft\\_model, k = 4 | **1.50** [1.40, 1.60] | 2 |" in row
    assert "| some\\_pair (float32) |" in row
    assert "[report](there/report.html)" in row
    none = index_markdown([entry([("medusa", 3.0, False)])])
    assert "none without a fault" in none


def test_where_all_was_disturbed_the_headline_is_the_best_of_it_with_its_mark() -> None:
    all_of_it = entry([("ngram", 1.2, True), ("medusa", 3.0, False), ("draft_model", 1.5, True)])
    all_of_it.speedups["cross_fitted_disturbed"] = "code"
    assert "| draft\\_model ‡, k = 4 | **1.50** [1.40, 1.60] | 2 |" in index_markdown([all_of_it])
    all_of_it.speedups.loc[0, "cross_fitted_disturbed"] = ""
    assert "| ngram, k = 4 | **1.20** [1.10, 1.30] | 2 |" in index_markdown([all_of_it])


def test_each_row_of_the_page_leads_to_its_report(published: list[PublishedPair], repository: Path) -> None:
    page = gallery_page(published)
    links = set(re.findall(r'href="([^"]+)"', page))
    assert links == {f"{each.folder}/{each.report}" for each in published}
    assert all((repository / "reports/published" / link).is_file() for link in links)
    assert "://" not in page  # nothing is fetched
    # Without scripts: one row of each study, engine and pair.
    assert len(re.findall("<tr[^>]* data-best>", page)) == sum(each.best is not None for each in published)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (Debian: apt-get install chromium)")
def test_the_page_filters_by_machine_model_engine_and_method(tmp_path: Path) -> None:
    several = entry([("ngram", 1.2, True), ("draft_model", 1.5, True)])
    other = replace(several, machine="another machine", engine="vllm", folder="elsewhere")
    (tmp_path / PAGE).write_text(gallery_page([several, other]))
    rows = """[...document.querySelectorAll("tbody tr")].filter((row) => row.getClientRects().length)
        .map((row) => [...row.cells].map((cell) => cell.textContent.trim()))"""

    def choose(name: str, value: str) -> str:
        return (
            f"document.forms[0].elements.{name}.value = {value!r};"
            "document.forms[0].dispatchEvent(new Event('change', {bubbles: true}))"
        )

    with Browser(tmp_path / "profile") as browser:
        for width in (1280, 390):
            browser.open((tmp_path / PAGE).as_uri(), width)
            assert [row[3] for row in browser.run(rows)] == ["draft_model, k = 4"] * 2
            assert browser.run("document.documentElement.scrollWidth") <= width
            browser.run(choose("method", "ngram"))
            assert [(row[0], row[3]) for row in browser.run(rows)] == [
                ("a machine", "ngram, k = 4"),
                ("another machine", "ngram, k = 4"),
            ]
            browser.run(choose("engine", "vllm"))
            assert [row[-1] for row in browser.run(rows)] == ["elsewhere"]
            browser.run(choose("machine", "a machine"))
            assert browser.run(rows) == []
            assert browser.run("document.querySelector('[role=status]').textContent") == "No published study fits."
        # The choice stands in the address.
        browser.open(f"{(tmp_path / PAGE).as_uri()}#method=*&engine=vllm")
        assert len(browser.run(rows)) == 2


def test_a_study_of_one_method_is_no_picture_beside_one_of_several(tmp_path: Path) -> None:
    several, single = entry([("ngram", 1.2, True), ("medusa", 0.9, False)]), entry([("eagle", 1.4, True)])
    both = draw_figure([several, single], tmp_path / "both.svg").read_bytes()
    assert both == draw_figure([several], tmp_path / "one.svg").read_bytes()
    assert draw_figure([single], tmp_path / "single.svg").stat().st_size > 0


def test_the_picture_begins_with_most_methods_whatever_their_order(tmp_path: Path) -> None:
    few, many = (
        entry([("ngram", 1.2, True), ("eagle", 1.4, True)]),
        entry([("ngram", 1.2, True), ("eagle", 1.4, True), ("medusa", 0.9, True)]),
    )
    assert (
        draw_figure([few, many], tmp_path / "a.svg").read_bytes()
        == draw_figure([many, few], tmp_path / "b.svg").read_bytes()
    )


def test_machines_of_one_name_are_told_apart_where_they_can_be(published: list[PublishedPair]) -> None:
    found = {each.folder: each.machine for each in published}
    assert found["amd-epyc-smollm2"] == "AMD EPYC"
    assert found["amd-epyc-zen5-smollm2"] == "AMD EPYC (family 26, model 2)"


def test_a_publication_without_a_report_is_refused(repository: Path, tmp_path: Path) -> None:
    manifest = json.loads((repository / "reports/published/amd-epyc-quick/manifest.json").read_text())
    del manifest["files"]["report.html"]
    (tmp_path / "one").mkdir()
    (tmp_path / "one/manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(PublicationError, match=r"manifest.json: it names no report.html"):
        published_pairs(tmp_path)


def test_a_folder_without_publications_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["gallery", str(tmp_path)]) == 2
    assert "holds no published study: `specrig publish CONFIG` makes one" in capfd.readouterr().err
