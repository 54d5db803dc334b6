"""Write all that a reader takes away: the page, the PDF, and the folder for papers."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from specrig.reporting.document import write_page
from specrig.reporting.exhibits import Exhibits
from specrig.reporting.figures import draw_for_paper
from specrig.reporting.outline import outline
from specrig.reporting.paper import write_paper
from specrig.reporting.pdf import write_pdf
from specrig.reporting.study_data import read_study


def write_reports(study_dir: Path, out: Path) -> list[Path]:
    """Write report.html, report.pdf and paper/ of `results/<study>` into the folder `out`; returns the three paths.

    paper/ replaces an older one: what is to be kept is edited in a copy. Raises RecordError for an unreadable record.
    """
    exhibits = Exhibits(read_study(study_dir))
    page = write_page(exhibits, out / "report.html")
    with tempfile.TemporaryDirectory(dir=page.parent, prefix=".paper-") as scratch:
        fresh = Path(scratch) / "paper"
        figures = draw_for_paper(exhibits, fresh / "figures")
        contents = outline(exhibits, figures)
        pdf = write_pdf(contents, figures, fresh / "figures", out / "report.pdf")
        write_paper(contents, figures, fresh)
        paper = out / "paper"
        if paper.exists():
            shutil.rmtree(paper)
        fresh.rename(paper)
    return [page, pdf, paper]
