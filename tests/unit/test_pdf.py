"""The PDF and the folder for papers: they compile, hold their fonts and widths, and no template has a number of its
own.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic import write_study

from specrig.decoding.drafters import registry
from specrig.report import citations
from specrig.report.documents.contents import Contents, Paragraph, ReadySection, ReadyTable, contents
from specrig.report.documents.pdf import as_data
from specrig.report.documents.printed import write_for_paper
from specrig.report.figures.panels import COLUMN, PAGE
from specrig.report.grid import Grid, GridEntry
from specrig.report.items import Section, Table
from specrig.report.latex import escape, latex
from specrig.report.outline import captions, figures
from specrig.report.study_data import read_study
from specrig.report.study_results import StudyResults

ROOT = Path(__file__).parents[2]
TEMPLATES = ROOT / "src/specrig/report/documents/templates"
REPORTED = """id,source,target,draft,method,k,task,temperature,hardware,precision,batch,metric,low,high,note
R1,"Leviathan et al. 2023, arXiv 2211.17192, Table 2",T5,,draft_model,4,code,0,,,,speedup,1.2,1.2,
R2,"Leviathan et al. 2023, arXiv 2211.17192, Table 2",T5,,ngram,4,code,0,,,,speedup,3.4,3.4,
R3,"Leviathan et al. 2023, arXiv 2211.17192, Table 2",T5,,adaptive_k,4,code,0,,,,speedup,2.4,2.4,
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Synthetic, with an audit, reported figures, several batches' worth of methods, and more cells than a page has
    rows.
    """
    import json

    folder = tmp_path_factory.mktemp("paper") / "made_up"
    write_study(folder, ks=(2, 4, 6, 8), tasks=("code", "translation"), temperatures=(0.0, 1.0))
    (folder / "reported.csv").write_text(REPORTED)
    config = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps({**config, "tables": {"reported": str(folder / "reported.csv")}}))
    (folder / "audit").mkdir()
    (folder / "audit" / "records.csv").write_text(
        "engine,pair,method,variant,task,temperature,test,ks,samples,p_value,passed,finding\n"
        "native,tiny,ngram,,translation,0.0,token identity,2–4,8,,False,diverges at token 7 & <more>\n"
        "native,tiny,draft_model,,code,1.0,per-position uniformity,2–4,8,0.41,True,\n"
    )
    return folder


@pytest.fixture(scope="module")
def written(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reports")
    write_for_paper(study, folder)
    return folder


def test_the_stage_writes_pdf_and_paper(written: Path) -> None:
    assert sorted(path.name for path in written.iterdir()) == ["paper", "report.pdf"]
    assert (written / "report.pdf").read_bytes().startswith(b"%PDF-")
    assert {"main.tex", "references.bib", "figures", "tables"} == {path.name for path in (written / "paper").iterdir()}


def test_figures_have_the_widths_of_a_paper_and_their_fonts_inside(written: Path) -> None:
    figures = sorted((written / "paper" / "figures").glob("*.pdf"))
    assert {"heatmap-column.pdf", "heatmap-page.pdf", "k_sweep-page.pdf"} <= {path.name for path in figures}
    for path in figures:
        content = path.read_bytes()
        box = re.search(rb"/MediaBox \[ ?([\d. -]+)\]", content)
        assert box, path.name
        left, _, right, _ = map(float, box[1].split())
        expected = (COLUMN if path.stem.endswith("column") else PAGE).width
        assert (right - left) / 72 == pytest.approx(expected, abs=0.01), path.name
        streams = b"".join(inflated(content))
        assert b"/FontFile2" in content and b"/Type3" not in content, path.name
        assert streams, path.name


@pytest.fixture(scope="module")
def pages(written: Path) -> list[str]:
    """The text of each page of the PDF."""
    if shutil.which("pdftotext") is None:
        pytest.skip("pdftotext is not installed (Debian: apt-get install poppler-utils)")
    command = ["pdftotext", "-layout", str(written / "report.pdf"), "-"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout.split("\f")[:-1]


def test_the_first_page_has_the_headline_and_the_ranking_and_the_last_pages_the_machine(
    pages: list[str], study: Path
) -> None:
    results = StudyResults(read_study(study))
    assert "Table 1: Speedup over" in pages[0] and "Figure 1: Geometric mean" in pages[0] and "Use " in pages[0]
    assert results.byline in pages[0]
    version = results.facts[0].split(", ")[-1]
    assert version.startswith("torch ") and version not in pages[0]
    assert any(version in page for page in pages[len(pages) // 2 :])


def test_no_heading_stands_alone_at_a_pages_foot(pages: list[str], study: Path) -> None:
    titles = {section.title for section in contents(StudyResults(read_study(study)), "print", figures()).sections}
    titles |= {"How to read this", "References"}
    found = 0
    for page in pages:
        lines = [line.strip() for line in page.splitlines() if line.strip()]
        headings = [re.sub(r"^(\d+|[A-Z]) +", "", line) in titles for line in lines]
        found += sum(headings)
        assert not any(headings[-2:]), f"the last line of its page (but for the page's number): {lines[-2:]}"
    assert found > 5


def inflated(content: bytes) -> list[bytes]:
    found = []
    for match in re.finditer(rb"stream\r?\n(.*?)\r?\nendstream", content, flags=re.DOTALL):
        try:
            found.append(zlib.decompress(match[1]))
        except zlib.error:
            continue
    return found


def test_the_paper_includes_all_that_lies_beside_it(written: Path) -> None:
    paper = written / "paper"
    text = (paper / "main.tex").read_text(encoding="utf-8")
    tables = set(re.findall(r"\\input\{(.+?)\}", text))
    assert tables == {f"tables/{path.stem}" for path in (paper / "tables").glob("*.tex")}
    assert all((paper / f"{name}.pdf").is_file() for name in re.findall(r"\\includegraphics\{(.+?)\}", text))
    cited = set(
        re.findall(r"\\cite\{(.+?)\}", text + "".join(path.read_text() for path in (paper / "tables").glob("*.tex")))
    )
    assert cited and cited <= citations.keys()


@pytest.mark.skipif(
    shutil.which("pdflatex") is None, reason="pdflatex is not installed: the paper is not compiled here"
)
def test_the_paper_compiles_as_it_is(written: Path, tmp_path: Path) -> None:
    shutil.copytree(written / "paper", tmp_path / "paper")
    for command in (["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "main"], ["bibtex", "main"]) * 2:
        result = subprocess.run(
            command, cwd=tmp_path / "paper", capture_output=True, text=True, errors="replace", timeout=300, check=False
        )
        assert result.returncode == 0, result.stdout[-3000:]
    log = (tmp_path / "paper" / "main.log").read_text(errors="replace")
    wide = [float(points) for points in re.findall(r"Overfull \\hbox \(([\d.]+)pt too wide\)", log)]
    assert not [points for points in wide if points > 5], "something reaches beyond its column"
    assert "Missing character" not in log


def test_a_table_too_long_for_print_is_a_sentence_that_says_where_it_is(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 rows would take Typst gigabytes, and nobody reads them on paper."""
    results = StudyResults(read_study(study))
    whole = contents(results, "print", figures())
    longest = max(len(grid.rows) for grid in whole.tables())
    monkeypatch.setattr("specrig.report.documents.contents.LONGEST", longest - 1)
    items = [item for section in contents(results, "print", figures()).sections for item in section.items]
    notes = [item.text for item in items if isinstance(item, Paragraph) and "too many to print" in item.text]
    assert len(notes) == sum(len(grid.rows) == longest for grid in whole.tables())
    assert f"{longest} rows, too many to print. results/made_up/" in notes[-1]


def test_html_pdf_and_tex_show_the_same_tables(study: Path, written: Path, report_text: Callable[[Path], str]) -> None:
    results = StudyResults(read_study(study))
    items = results.speedup.formatted
    assert (written / "paper" / "tables" / "made-up-speedup.tex").read_text() == latex(replace(items, notes=[]))
    assert any(grid.rows == items.rows for grid in contents(results, "paper", ()).tables())
    page = report_text(study)
    assert all(entry.text in page for row in items.rows for entry in row)


def test_a_heading_breaks_only_where_it_is_wider_than_its_column() -> None:
    shares = Grid(["position 8", "tokens a second"], [[GridEntry("89 %", "(4 %)"), GridEntry("1.5")]])
    section = ReadySection(Section("", "", ()), [ReadyTable(Table("", lambda results: shares), shares)])
    [table] = as_data(Contents("", [], [], [], [section], {}), {})["sections"][0]["items"]
    assert [column["name"] for column in table["columns"]] == ["position 8", "tokens a\nsecond"]


def test_no_template_has_a_number_of_its_own() -> None:
    """What a reader reads as a number must come from the tables or from a constant of the code."""
    for path in sorted(TEMPLATES.glob("*.html.j2")):
        text = re.sub(r"<style>.*?</style>", "", path.read_text(), flags=re.DOTALL)
        text = re.sub(r"\{[{%#].*?[}%#]\}", "", text, flags=re.DOTALL)
        text = re.sub(r"<[^>]*>", "", text)
        assert not re.findall(r".*\d.*", text), path.name
    body = (TEMPLATES / "main.tex.j2").read_text().split(r"\begin{document}")[1]
    assert not re.findall(r".*\d.*", re.sub(r"<[<%#].*?[>%#]>", "", body)), "main.tex.j2"
    code = re.sub(r"//.*", "", (TEMPLATES / "report.typ").read_text())
    assert not re.findall(
        r"^[^#\s(){}.\]].*\d.*$", re.sub(r"#(let|set|show)\b.*?\n(?=#|\n|=)", "", code, flags=re.DOTALL), re.MULTILINE
    )
    prose = [
        *re.findall(r'"([^"\n]*)"', code),
        *re.findall(r"\[([^\[\]#]*)\]", code),
        *re.findall(r"^=+ (.*)$", code, re.MULTILINE),
    ]
    layout = {"a4", "1"}  # the paper, and how pages and headings count
    assert not [text for text in prose if re.search(r"\d", text) and text not in layout and "\\d" not in text]


def test_sentences_have_no_figures_of_their_own() -> None:
    """Citations and the names of theorems apart, whatever number stands in the shared prose is a constant's."""
    import ast

    for name in ("report/prose", "report/conclusions", "report/outline"):
        tree = ast.parse((ROOT / f"src/specrig/{name}.py").read_text())
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
        texts = [
            part.value
            for node in ast.walk(tree)
            for part in ([node] if isinstance(node, ast.Constant) else [])
            if isinstance(part.value, str) and " " in part.value
        ]
        documentation = {
            ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, documented)
        }
        for text in texts:
            if text in documentation or text in _attribute_docs(tree):
                continue
            rest = re.sub(
                r"\d{4}\.\d{5}|Theorem 3\.8|v = 1|k\+1|temperature 0|is 1 for|-1 for|contains? 1|95 %|4-grams", "", text
            )
            assert not re.search(r"\d", rest), f"{name}.py: {text}"


def _attribute_docs(tree: object) -> set[str]:
    import ast

    assert isinstance(tree, ast.AST)
    found = set()
    for node in ast.walk(tree):
        for child in getattr(node, "body", []) if isinstance(getattr(node, "body", None), list) else []:
            if (
                isinstance(child, ast.Expr)
                and isinstance(child.value, ast.Constant)
                and isinstance(child.value.value, str)
            ):
                found.add(child.value.value)
    return found


def test_every_paper_that_a_method_or_a_claim_names_has_its_reference() -> None:
    named = "".join(method.summary for method in registry().values()) + (ROOT / "configs/reported.csv").read_text()
    named += "".join(number for numbers in citations.METHODS.values() for number in numbers) + " ".join(
        citations.SOURCES.values()
    )
    expected = set(re.findall(r"\d{4}\.\d{5}", named))
    assert expected <= citations.keys(), f"add to references.bib: {sorted(expected - citations.keys())}"


def test_an_arxiv_number_becomes_a_citation() -> None:
    assert escape("Leviathan et al., arXiv 2211.17192, Table 2") == r"Leviathan et al., \cite{2211.17192}, Table 2"
    assert escape("arXiv 2406.16858v2") == r"\cite{2406.16858}" and escape("1234.56789") == "1234.56789"
    assert citations.with_paper("Spec-Bench leaderboard, Xia et al.").endswith("arXiv 2401.07851")
    assert citations.with_paper("a tutorial") == "a tutorial"


def test_a_study_without_records_has_its_paper_in_place_of_an_older_one(tmp_path: Path) -> None:
    folder, out = tmp_path / "s", tmp_path / "out"
    folder.mkdir()
    (folder / "study.json").write_text('{"study": "s", "tasks": ["code"]}')
    (out / "paper").mkdir(parents=True)
    (out / "paper/stale.tex").write_text("old")
    pdf, paper = write_for_paper(folder, out)
    assert pdf.read_bytes().startswith(b"%PDF-") and (paper / "main.tex").is_file()
    assert not (paper / "stale.tex").exists() and not list(out.glob(".*"))


def test_the_captions_of_snakemakes_report_are_the_outlines() -> None:
    """`specrig schema` writes them anew."""
    folder = ROOT / "workflow/report"
    assert {path.name: path.read_text() for path in folder.glob("*-*.rst")} == captions()
