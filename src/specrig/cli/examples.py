"""Examples for the help of each verb, in one place, so that a test can parse all of them."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "run": (
        "specrig run",
        "specrig run configs/gpu_shapes.yaml --profile gpu",
        "specrig run configs/quick.yaml -n",
        "specrig run configs/quick.yaml --config prompts=4",
    ),
    "decode": (
        'specrig decode "def area(width, height):" --compare',
        'specrig decode --method p_eagle --k 4 --option nodes=12 --temperature 1 "Once upon a time"',
        "specrig decode --target models/my-llama --method ngram < notes.txt",
        'specrig decode --target model.gguf "Which months have 30 days?"',
        'specrig decode --target TARGET --draft DRAFT --chat "Which months have 30 days?"',
    ),
    "doctor": ("specrig doctor", "specrig doctor configs/smollm2.yaml --json"),
    "plan": ("specrig plan", "specrig plan configs/paper.yaml", "specrig plan --json | jq .cells"),
    "advise": (
        'specrig advise llama31_8b --device "RTX 4090"',
        "specrig advise smollm2_135m --study results/quick",
    ),
    "pin": ("specrig pin configs/hub.yaml", "specrig pin configs/hub.yaml --check"),
    "methods": ("specrig methods", "specrig methods eagle2", "specrig methods --json | jq '.methods | keys'"),
    "schema": ("specrig schema",),
    "stage prompts": ("specrig stage prompts --study configs/hub.yaml --task humaneval",),
    "stage convert": ("specrig stage convert --study configs/smollm2.yaml --source NAME",),
    "stage train": ("specrig stage train --study configs/test.yaml --pair tiny --model medusa",),
    "stage write-text": ("specrig stage write-text --study configs/test.yaml --pair tiny",),
    "stage train-jointly": ("specrig stage train-jointly --study results/mine/study.json --pair smollm2_135m_medusa2",),
    "stage answers": (
        "specrig stage answers --study configs/turns.yaml --pair smollm2_135m_shipped --task spec_bench_turns_chat",
    ),
    "stage measure": (
        "specrig stage measure --study configs/test.yaml --engine native --pair tiny",
        "specrig stage measure --study configs/test.yaml --engine native --pair tiny --method ngram",
    ),
    "tune": ("specrig tune configs/quick.yaml",),
    "stage traffic": (
        "specrig stage traffic --study configs/load.yaml --engine llamacpp --pair smollm2_135m_shipped_fp32 --method ngram",
    ),
    "stage audit": ("specrig stage audit", "specrig stage audit --study results/quick/study.json"),
    "stage audit-exact": ("specrig stage audit-exact --study configs/test.yaml --engine native",),
    "stage tables": ("specrig stage tables", "specrig stage tables --study results/quick/study.json"),
    "stage quality": ("specrig stage quality", "specrig stage quality --study results/quick/study.json"),
    "stage figures": ("specrig stage figures", "specrig stage figures --study results/quick/study.json"),
    "stage track": ("specrig stage track", "specrig stage track --study results/quick/study.json"),
    "stage report": ("specrig stage report", "specrig stage report --study results/quick/study.json"),
    "stage paper": ("specrig stage paper", "specrig stage paper --study results/quick/study.json"),
    "publish": ("specrig publish", "specrig publish configs/quick.yaml --as my-laptop-quick"),
    "verify": (
        "specrig verify reports/published/intel-xeon-default",
        "specrig verify reports/published/intel-xeon-default --json",
    ),
    "compare": (
        "specrig compare results/quick reports/published/intel-xeon-default",
        "specrig compare results/quick reports/published/intel-xeon-default --html changes.html",
        "specrig compare acceptance/reference results/acceptance --tolerance 0.02",
    ),
    "serve draft": ("specrig serve draft models/my-draft --port 8002",),
    "serve target": ("specrig serve target models/my-llama --port 8001 --batch 8",),
    "serve coordinator": ("specrig serve coordinator --target http://127.0.0.1:8001 --draft http://127.0.0.1:8002",),
}
"""Verb -> command lines."""


def epilog(verb: str) -> str:
    """The end of a verb's help. Paragraphs, since typer joins the lines of one."""
    return "\n\n".join(["Examples:", *(f"  {line}" for line in EXAMPLES.get(verb, ()))])
