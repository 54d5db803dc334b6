"""The index of published studies says what their records say."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from specrig.cli import main
from specrig.sharing.gallery import FIGURE, INDEX, PublishedPair, draw_figure, index_markdown, published_pairs

LARGEST = 200_000
"""Bytes that the picture may have."""


def entry(rows: list[tuple[str, float, bool]]) -> PublishedPair:
    """An entry with (method, speedup, fair) rows."""
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
    reliable = pd.Series([kept for _, _, kept in rows])
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
        reliable,
    )


@pytest.fixture(scope="module")
def published(repository: Path) -> list[PublishedPair]:
    return published_pairs(repository / "reports/published")


def test_the_index_in_the_repository_is_of_its_publications(
    published: list[PublishedPair], repository: Path, tmp_path: Path
) -> None:
    """Fails after a study was published or the code changed what tables say: `specrig gallery` writes the index anew."""
    folder = repository / "reports/published"
    assert {each.folder for each in published} == {path.parent.name for path in folder.glob("*/manifest.json")}
    assert (folder / INDEX).read_text() == index_markdown(published)
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


def test_a_folder_without_publications_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["gallery", str(tmp_path)]) == 2
    assert "holds no published study: `specrig publish CONFIG` makes one" in capfd.readouterr().err
