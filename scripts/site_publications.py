"""MkDocs hook: the index of published studies as a page of the site, with the files to which it and the reports lead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

SOURCE = Path("reports/published")
FILES = ("headline.svg", "*/report.*", "*/study.json", "*/tables/*.csv", "*/records.tar.xz")


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add the page and the files."""
    root = Path(config.config_file_path).parent / SOURCE
    for path in (path for pattern in FILES for path in sorted(root.glob(pattern))):
        files.append(File.generated(config, f"published/{path.relative_to(root)}", abs_src_path=str(path)))
    files.append(File.generated(config, "published/index.md", abs_src_path=str(root / "README.md")))
    return files
