"""Templates of HTML pages: one environment for reports, comparisons and the gallery."""

from __future__ import annotations

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, Template

from specrig.results.grid import unbroken

REPORTS = "specrig.reporting.documents"


def html_template(name: str, package: str = REPORTS) -> Template:
    """The template `name` of a package, which may include those of reports (`templates/`)."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader(REPORTS)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # What was escaped by hand (outputs) stays as it is.
        finalize=lambda value: unbroken(value) if type(value) is str else value,
    ).get_template(name)
