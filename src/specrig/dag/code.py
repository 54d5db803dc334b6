"""Which packages each stage of the workflow uses: a stage whose code has changed is stale."""

from __future__ import annotations

from specrig.measurement.plan import MEASURING
from specrig.provenance.digests import code_digest

TABLES = ("analysis", "report", "tables")
STAGES = {
    "convert": ("models",),
    "prompts": ("measurement", "tasks"),
    "training": ("heads", "models", "runtime", "seeds", "tasks", "training"),
    "measuring": MEASURING,
    "audit": ("audit", "tables", *MEASURING),
    "tables": TABLES,
    "quality": (*TABLES, "tasks"),
    "figures": TABLES,
    "report": TABLES,
    "paper": TABLES,
    "track": ("analysis", "report", "tables", "tracking"),
}
"""Stage -> the packages that it uses."""


def stage_digest(stage: str) -> str:
    """Digest of the code of a stage in `STAGES`, as Snakemake shows it where the stage runs again."""
    return f"code of {stage}: {code_digest(*STAGES[stage])}"
