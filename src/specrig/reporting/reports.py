"""Write what a reader takes into a paper: the PDF, and the folder with figures, tables and a document that includes
them.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from specrig.reporting.exhibits import Exhibits
from specrig.reporting.figures import draw_for_paper
from specrig.reporting.outline import outline
from specrig.reporting.paper import write_paper
from specrig.reporting.pdf import write_pdf
from specrig.reporting.study_data import read_study


def write_for_paper(study_dir: Path, out: Path) -> list[Path]:
    """Write report.pdf and paper/ of `results/<study>` into the folder `out`; returns the two paths.

    paper/ replaces an older one: what is to be kept is edited in a copy. Raises RecordError for an unreadable record.
    """
    exhibits = Exhibits(read_study(study_dir))
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".paper-") as scratch:
        fresh = Path(scratch) / "paper"
        figures = draw_for_paper(exhibits, fresh / "figures")
        contents = outline(exhibits, figures)
        pdf = write_pdf(contents, figures, fresh / "figures", out / "report.pdf")
        write_paper(contents, figures, fresh)
        paper = out / "paper"
        if paper.exists():
            shutil.rmtree(paper)
        fresh.rename(paper)
    return [pdf, paper]
