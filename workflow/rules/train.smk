# Lets targets write text, and trains on it every model of `training.stages` that the study needs.


rule write_text:
    input:
        target=lambda wildcards: dag.model_files(wildcards.pair, ["target"]),
        sources=dag.text_sources,
    output:
        f"{ROOT}/models/{{pair}}/{TEXT}",
    log:
        f"{ROOT}/logs/train/{{pair}}-text.log",
    conda:
        "../../environment.yml"
    threads: dag.job_cores
    resources:
        gpu=dag.gpu,
        mem_mb=memory(dag.training("draft")),
        runtime=minutes(dag.training("draft")),
    params:
        study=STUDY_FILE,
        recipe=dag.recipe("text", "prompts", "own_requests", "chat"),
        target=dag.target_row,
        excluded=dag.excluded_prompts,
        threads=STUDY.threads,
        code=stage_digest("training"),
    message:
        "Writing, with the target of {wildcards.pair}, the text from which its draft and heads learn"
    shell:
        "python -m specrig stage write-text --study {params.study:q} --pair {wildcards.pair} 2>&1 | tee {log:q} >&2"


rule train:
    input:
        teachers=dag.training_inputs,
    output:
        expand(f"{ROOT}/models/{{{{pair}}}}/{{{{model}}}}/{{file}}", file=FILES),
    log:
        f"{ROOT}/logs/train/{{pair}}-{{model}}.log",
    conda:
        "../../environment.yml"
    threads: dag.training_threads
    resources:
        gpu=dag.gpu,
        mem_mb=memory(dag.training()),
        runtime=minutes(dag.training()),
    params:
        study=STUDY_FILE,
        recipe=dag.training_recipe,
        target=dag.target_row,
        threads=STUDY.threads,
        code=stage_digest("training"),
    message:
        "Training the {wildcards.model} of {wildcards.pair}"
    shell:
        "python -m specrig stage train --study {params.study:q} --pair {wildcards.pair} --model {wildcards.model}"
        " --threads {threads} 2>&1 | tee {log:q} >&2"


# Medusa-2: one training makes both a target and its heads.
rule train_jointly:
    input:
        teachers=dag.joint_inputs,
    output:
        expand(
            f"{ROOT}/models/{{{{pair}}}}/{{model}}/{{file}}",
            model=["target", "medusa"],
            file=FILES,
        ),
    log:
        f"{ROOT}/logs/train/{{pair}}-joint.log",
    wildcard_constraints:
        pair="|".join(name for name, row in STUDY.rows.pairs.items() if row.base) or "-",
    conda:
        "../../environment.yml"
    threads: dag.job_cores
    resources:
        gpu=dag.gpu,
        mem_mb=memory(dag.training("joint")),
        runtime=minutes(dag.training("joint")),
    params:
        study=STUDY_FILE,
        recipe=dag.recipe(*JOINT.keys),
        threads=STUDY.threads,
        code=stage_digest("training"),
    message:
        "Training the target of {wildcards.pair} together with its Medusa heads"
    shell:
        "python -m specrig stage train-jointly --study {params.study:q} --pair {wildcards.pair} 2>&1 | tee {log:q} >&2"


ruleorder: train_jointly > train
