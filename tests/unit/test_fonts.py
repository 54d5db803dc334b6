"""Names in any script: in figures, PDF and the folder for papers, or a sentence that says which letters are missing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from synthetic import write_study

from specrig.report import fonts
from specrig.report.documents.contents import contents
from specrig.report.documents.paper import write_paper
from specrig.report.documents.pdf import write_pdf
from specrig.report.figures.drawings import drawings
from specrig.report.figures.panels import COLUMN, PAPER_SHEETS
from specrig.report.figures.style import rc
from specrig.report.study_data import read_study
from specrig.report.study_results import StudyResults

TASKS = ("代码", "çeviri_ığş", "příběh", "ترجمة")


def test_latin_letters_need_no_font_of_the_machine() -> None:
    assert not fonts.foreign("příběh çeviri τ α × — перевод")
    assert fonts.for_figures("příběh") == {} and fonts.missing("příběh") == ""


def test_letters_without_a_font_are_named_with_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "_fonts", lambda: [fonts._Font("", "Arabic alone", frozenset("ترجمة"))])
    assert fonts.missing("ترجمة") == ""
    sentence = fonts.missing("code 代码, ترجمة")
    assert "has the letters 代码 (Debian: apt-get install fonts-noto-cjk)" in sentence
    assert "fonts-noto-core" in fonts.missing("हिन्दी")


@pytest.mark.filterwarnings("error:Glyph")
def test_a_study_named_in_four_scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = write_study(
        tmp_path / "scripts", methods=("ngram", "draft_model"), ks=(2,), tasks=TASKS, prompts=3, length=24
    )
    lacking = fonts.missing("".join(TASKS))
    if lacking:
        pytest.skip(lacking)
    results, paper = StudyResults(read_study(study)), tmp_path / "paper"
    figures = {"heatmap": [("", "heatmap")]}  # each figure has names of tasks, and Chinese fonts are large
    (paper / "figures").mkdir(parents=True)
    with plt.rc_context(rc(COLUMN.size) | fonts.for_figures(str(results.study.config))):
        [heatmap] = (drawing.draw(COLUMN) for drawing in drawings(results) if drawing.name == "heatmap")
        for sheet in PAPER_SHEETS:
            heatmap.savefig(paper / f"figures/heatmap-{sheet.name}.pdf")
        plt.close(heatmap)
    pdf = write_pdf(contents(results, "print", figures), figures, paper / "figures", tmp_path / "report.pdf")
    write_paper(contents(results, "paper", figures), figures, paper)
    assert "no font" not in capsys.readouterr().err
    assert pdf.stat().st_size > 10_000
    if lualatex := shutil.which("lualatex"):
        done = subprocess.run(
            [lualatex, "-interaction=nonstopmode", "-halt-on-error", "main"],
            cwd=paper,
            capture_output=True,
            timeout=300,
        )
        log = (paper / "main.log").read_text(errors="replace")
        assert done.returncode == 0, log[-3000:]
        assert "Missing character: There is no" not in log
