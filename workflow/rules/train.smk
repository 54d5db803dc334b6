# From the study to trained models: the resolved study, the corpus, the target, the draft distilled from it.


rule plan:
    output:
        study=f"{ROOT}/study.json",
    log:
        f"{ROOT}/logs/plan.log",
    conda:
        "../../environment.yml"
    params:
        study=STUDY.model_dump_json(indent=1),
    message:
        "Writing the resolved study"
    shell:
        "printf '%s\\n' {params.study:q} > {output.study} 2> {log}"


rule corpus:
    input:
        study=ancient(f"{ROOT}/study.json"),
    output:
        train=f"{ROOT}/corpus/train.jsonl",
        heldout=f"{ROOT}/corpus/heldout.jsonl",
        prompts=PROMPTS,
    log:
        f"{ROOT}/logs/corpus.log",
    conda:
        "../../environment.yml"
    params:
        recipe=recipe("corpus"),
        code=stage_digest("corpus"),
    message:
        "Gathering training text and held-out prompts"
    shell:
        "python -m specrig corpus --study {input.study} 2>&1 | tee {log} >&2"


rule train_target:
    input:
        study=ancient(f"{ROOT}/study.json"),
        corpus=rules.corpus.output.train,
        heldout=rules.corpus.output.heldout,
    output:
        expand(f"{ROOT}/models/{{{{pair}}}}/target/{{file}}", file=MODEL_FILES),
    log:
        f"{ROOT}/logs/train/{{pair}}-target.log",
    conda:
        "../../environment.yml"
    threads: ALL_CORES
    resources:
        gpu=GPU,
    params:
        recipe=recipe("vocabulary", "target", "target_training"),
        threads=STUDY.threads,
        code=stage_digest("target"),
    message:
        "Training the target of {wildcards.pair}"
    shell:
        "python -m specrig train --study {input.study} --pair {wildcards.pair} --model target 2>&1 | tee {log} >&2"


rule train_draft:
    input:
        study=ancient(f"{ROOT}/study.json"),
        corpus=rules.corpus.output.train,
        heldout=rules.corpus.output.heldout,
        target=rules.train_target.output,
    output:
        expand(f"{ROOT}/models/{{{{pair}}}}/draft/{{file}}", file=MODEL_FILES),
    log:
        f"{ROOT}/logs/train/{{pair}}-draft.log",
    conda:
        "../../environment.yml"
    threads: ALL_CORES
    resources:
        gpu=GPU,
    params:
        recipe=recipe("draft", "draft_training", "distillation"),
        threads=STUDY.threads,
        code=stage_digest("draft"),
    message:
        "Distilling the draft of {wildcards.pair}"
    shell:
        "python -m specrig train --study {input.study} --pair {wildcards.pair} --model draft 2>&1 | tee {log} >&2"
