"""MkDocs hook: the site's gallery of published studies, each row of which leads to its report.

The page and the reports are made by `specrig gallery` and `specrig publish`; the site copies them, so that building it
needs no other package than MkDocs.
"""

from __future__ import annotations

import html
import shutil
from pathlib import Path
from typing import Any

from mkdocs.structure.nav import Link

SOURCE = Path("reports/published")
FOLDER = "published"
"""In the site."""


def on_nav(nav: Any, **_: Any) -> Any:
    """The gallery is the navigation's second entry, behind the start page."""
    nav.items.insert(1, Link("Gallery of studies", f"{FOLDER}/index.html"))
    return nav


def on_post_build(config: Any, **_: Any) -> None:
    """Copy the page and what its rows and the reports lead to."""
    root = Path(config.config_file_path).parent / SOURCE
    site = Path(config.site_dir) / FOLDER
    for pattern in ("index.html", "*/report.*", "*/tables/*", "*/study.json", "*/records/**/*"):
        for path in filter(Path.is_file, root.glob(pattern)):
            target = site / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    # Reports link to the folders of records, and a site of files alone lists none.
    for job in site.glob("*/records/*/*/*"):
        files = sorted(path.relative_to(job).as_posix() for path in job.rglob("*") if path.is_file())
        _write_listing(job / "index.html", " / ".join(job.parts[-5:]), files)


def _write_listing(page: Path, title: str, files: list[str]) -> None:
    links = "".join(f'<li><a href="{html.escape(file)}">{html.escape(file)}</a></li>' for file in files)
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
    page.write_text(f"{head}<h1>{html.escape(title)}</h1><ul>{links}</ul></html>\n", encoding="utf-8")
