"""Templates of HTML pages: one environment for reports and comparisons."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from specrig.report.grid import unbroken


def html_template(name: str) -> Template:
    """The template `name` of `templates/`."""
    return Environment(
        loader=PackageLoader("specrig.report.documents"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # What was escaped by hand (outputs) stays as it is.
        finalize=lambda value: unbroken(value) if type(value) is str else value,
    ).get_template(name)
