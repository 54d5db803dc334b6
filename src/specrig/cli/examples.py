"""Examples for the help of each verb, in one place, so that a test can parse all of them."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "run": (
        "specrig run",
        "specrig run configs/standard.yaml --profile gpu",
        "specrig run configs/quick.yaml -n",
        "specrig run configs/quick.yaml --config prompts=4 replicates=1",
    ),
    "decode": (
        'specrig decode "def area(width, height):" --compare',
        'specrig decode --method p_eagle --k 4 --option nodes=12 --temperature 1 "Once upon a time"',
        "specrig decode --target models/my-llama --method ngram < notes.txt",
        'specrig decode --target model.gguf "Which months have 30 days?"',
        'specrig decode --target TARGET --draft DRAFT --chat "Which months have 30 days?"',
    ),
    "doctor": ("specrig doctor", "specrig doctor configs/standard.yaml --json"),
    "plan": ("specrig plan", "specrig plan configs/paper.yaml", "specrig plan --json | jq .cells"),
    "where": ("specrig where", "specrig where configs/standard.yaml --json"),
    "clean": ("specrig clean", "specrig clean configs/embedded.yaml --json"),
    "advise": (
        'specrig advise llama31_8b --device "RTX 4090"',
        "specrig advise embedded --study results/embedded",
    ),
    "pin": ("specrig pin configs/hub.yaml", "specrig pin configs/hub.yaml --check"),
    "methods": ("specrig methods", "specrig methods eagle2", "specrig methods --json | jq '.methods | keys'"),
    "schema": ("specrig schema",),
    "prompts": ("specrig prompts --study configs/hub.yaml --task humaneval",),
    "corpus": ("specrig corpus --study configs/embedded.yaml",),
    "convert": ("specrig convert --study configs/smollm2.yaml --source NAME",),
    "train": ("specrig train --study configs/embedded.yaml --pair embedded --model draft",),
    "write-text": ("specrig write-text --study configs/embedded.yaml --pair embedded",),
    "train-jointly": ("specrig train-jointly --study configs/embedded.yaml --pair embedded_medusa2",),
    "pack-weights": (
        "specrig pack-weights --study configs/smollm2_train.yaml --pair smollm2_135m --model p_eagle "
        "--to weights/smollm2_135m --licence Apache-2.0",
    ),
    "answers": ("specrig answers --study configs/turns.yaml --pair smollm2_135m_shipped --task spec_bench_turns_chat",),
    "measure": (
        "specrig measure --study configs/embedded.yaml --engine native --pair embedded",
        "specrig measure --study configs/embedded.yaml --engine native --pair embedded --method ngram --replicate 1",
    ),
    "tune": (
        "specrig tune configs/quick.yaml",
        "specrig tune --from-records reports/published/amd-epyc-quick",
    ),
    "remeasure": ("specrig remeasure", "specrig remeasure configs/standard.yaml --json"),
    "traffic": (
        "specrig traffic --study configs/load.yaml --engine llamacpp --pair smollm2_135m_shipped_fp32 --method ngram",
    ),
    "audit": ("specrig audit", "specrig audit --study results/quick/study.json"),
    "audit-exact": ("specrig audit-exact --study configs/embedded.yaml --engine native --method draft_model",),
    "tables": ("specrig tables", "specrig tables --study results/quick/study.json"),
    "quality": ("specrig quality", "specrig quality --study results/quick/study.json"),
    "figures": ("specrig figures", "specrig figures --study results/quick/study.json"),
    "track": ("specrig track", "specrig track --study results/quick/study.json"),
    "report": ("specrig report", "specrig report --study results/quick/study.json"),
    "paper": ("specrig paper", "specrig paper --study results/quick/study.json"),
    "publish": ("specrig publish", "specrig publish configs/quick.yaml --as my-laptop-quick"),
    "verify": (
        "specrig verify reports/published/amd-epyc-quick",
        "specrig verify reports/published/amd-epyc-quick --json",
    ),
    "compare": (
        "specrig compare results/embedded reports/published/amd-epyc-quick",
        "specrig compare results/embedded reports/published/amd-epyc-quick --html changes.html",
    ),
    "gallery": ("specrig gallery", "specrig gallery reports/published"),
    "serve draft": ("specrig serve draft models/my-draft --port 8002",),
    "serve target": ("specrig serve target models/my-llama --port 8001 --batch 8",),
    "serve coordinator": ("specrig serve coordinator --target http://127.0.0.1:8001 --draft http://127.0.0.1:8002",),
}
"""Verb -> command lines."""


def epilog(verb: str) -> str:
    """The end of a verb's help. Paragraphs, since typer joins the lines of one."""
    return "\n\n".join(["Examples:", *(f"  {line}" for line in EXAMPLES.get(verb, ()))])
