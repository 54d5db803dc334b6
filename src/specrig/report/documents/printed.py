"""Write the PDF, and the folder for papers with figures, tables and a document."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from specrig.report.documents.contents import contents
from specrig.report.documents.paper import write_paper
from specrig.report.documents.pdf import write_pdf
from specrig.report.figures.drawings import draw_for_paper
from specrig.report.study_data import read_study
from specrig.report.study_results import StudyResults


def write_printed(study_dir: Path, out: Path, *, tags: bool = True) -> Path:
    """Write the report of `results/<study>` as PDF to the file `out`, and return it. tags: for screen readers."""
    results = StudyResults(read_study(study_dir))
    with tempfile.TemporaryDirectory() as scratch:
        figures = draw_for_paper(results, Path(scratch))
        return write_pdf(contents(results, "print", figures), figures, Path(scratch), out, tags=tags)


def write_for_paper(study_dir: Path, out: Path) -> list[Path]:
    """Write report.pdf and paper/ of `results/<study>` into the folder `out`; returns the two paths.

    paper/ replaces an older one: what is to be kept is edited in a copy. Raises RecordError for an unreadable record.
    """
    results = StudyResults(read_study(study_dir))
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".paper-") as scratch:
        fresh = Path(scratch) / "paper"
        figures = draw_for_paper(results, fresh / "figures")
        ready = contents(results, "print", figures)
        pdf = write_pdf(ready, figures, fresh / "figures", out / "report.pdf")
        write_paper(contents(results, "paper", figures), figures, fresh)
        paper = out / "paper"
        if paper.exists():
            shutil.rmtree(paper)
        fresh.rename(paper)
    return [pdf, paper]
