"""Which packages each stage of the workflow uses: a stage whose code has changed is stale."""

from __future__ import annotations

from specrig.heads import trained
from specrig.measurement.plan import MEASURING, job_digest
from specrig.provenance.digests import code_digest

TRAINING = ("corpus", "heads", "models", "runtime", "tasks", "training")
TABLES = ("analysis", "report")
STAGES = {
    "convert": ("models",),
    "corpus": ("corpus",),
    "prompts": ("measurement.task_prompts", "tasks"),
    "text": TRAINING,
    "audit": ("audit", *MEASURING),
    "tables": TABLES,
    "quality": (*TABLES, "tasks"),
    "figures": TABLES,
    "report": TABLES,
    "paper": TABLES,
    "track": ("analysis", "report", "tracking"),
}
"""Stage -> the packages that it uses."""


def stage_digest(stage: str) -> str:
    """Digest of the code of a stage in `STAGES`, as Snakemake shows it where the stage runs again."""
    return f"code of {stage}: {code_digest(*STAGES[stage])}"


def audit_digest(engine: str, method: str) -> str:
    """Digest of the code that tests the samples of `method` in `engine` against an exact distribution."""
    return f"code of the audit: {code_digest('audit')} {job_digest(engine, method)}"


def training_digest(model: str) -> str:
    """Digest of the code that trains a pair's target, its draft or a head."""
    head = (f"heads.{trained()[model].name}",) if model in trained() else ()
    return f"code of training: {code_digest(*TRAINING, *head)}"
