"""Which code each stage of the workflow runs: a stage whose code has changed is stale."""

from __future__ import annotations

from specrig.measurement.plan import method_modules
from specrig.provenance.digests import code_digest

STAGES = {
    "corpus": "specrig.corpus.gather",
    "prompts": "specrig.measurement.task_prompts",
    "audit": "specrig.audit.run",
    "tables": "specrig.reporting.tables.files",
    "quality": "specrig.reporting.tables.quality",
    "figures": "specrig.reporting.figures.drawings",
    "track": "specrig.tracking",
    "report": "specrig.reporting.documents.html",
    "paper": "specrig.reporting.documents.printed",
}
"""Stage -> the module that its verb of the command line calls."""


def stage_digest(stage: str) -> str:
    """Digest of the code of a stage in `STAGES`."""
    return code_digest(STAGES[stage])


def audit_digest(engine: str, method: str) -> str:
    """Digest of the code that tests the samples of `method` in `engine` against an exact distribution."""
    return code_digest("specrig.audit.exact", "specrig.audit.run", *method_modules(engine, method))
