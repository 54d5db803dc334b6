"""MkDocs hook: the site's gallery of published studies, each row of which leads to its report.

The page and the reports are made by `specrig gallery` and `specrig publish`; the site copies them, so that building it
needs no other package than MkDocs.
"""

from __future__ import annotations

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
    """Copy the page and what its rows and the reports lead to. The records stay in the repository."""
    root = Path(config.config_file_path).parent / SOURCE
    site = Path(config.site_dir) / FOLDER
    for path in sorted(
        [root / "index.html", *root.glob("*/report.*"), *root.glob("*/tables/*"), *root.glob("*/study.json")]
    ):
        target = site / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
