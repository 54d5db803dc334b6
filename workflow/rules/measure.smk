# A job measures all cells of an engine and a pair, or those of one method (the study's key `jobs`). It loads the models
# once, and keeps finished cells when it resumes. Each method has a folder for its records.

# Before it, the target of a pair answers the turns of conversations, once: all that is measured gets the same prompts.


rule answers:
    input:
        prompts=lambda wildcards: dag.prompt_files([wildcards.task]),
        models=dag.answers_models,
    output:
        f"{ROOT}/answers/{{pair}}/{{task}}.jsonl",
    log:
        f"{ROOT}/logs/answers/{{pair}}-{{task}}.log",
    conda:
        "../../environment.yml"
    threads: dag.job_cores
    resources:
        gpu=dag.answering_gpus,
        mem_mb=memory(dag.answering),
        runtime=minutes(dag.answering),
    params:
        study=STUDY_FILE,
        settings=dag.answers_settings,
        code=stage_digest("measuring"),
    message:
        "Answering the turns of {wildcards.task} with the target of {wildcards.pair}"
    shell:
        ": > {log:q}; SPECRIG_ENGINE_LOG={log:q}"
        " python -m specrig stage answers --study {params.study:q} --pair {wildcards.pair} --task {wildcards.task}"
        " 2>&1 | tee -a {log:q} >&2"


rule measure:
    input:
        prompts=dag.job_prompts,
        models=dag.job_models,
    output:
        f"{ROOT}/measured/{{engine}}/{{pair}}/{{process}}",
    log:
        f"{ROOT}/logs/measure/{{engine}}-{{pair}}-{{process}}.log",
    conda:
        "../../environment.yml"
    threads: dag.job_cores
    resources:
        gpu=dag.measuring_gpus,
        mem_mb=memory(dag.measuring),
        runtime=minutes(dag.measuring),
    params:
        study=STUDY_FILE,
        cells=dag.job_cell_names,
        prompts=dag.job_tasks,
        settings=dag.job_settings,
        models=dag.pair_row,
        code=stage_digest("measuring"),
        failed=dag.failed_cells,
        methods=dag.job_methods,
        chosen=dag.method_options,
    message:
        "Measuring {params.methods} on {wildcards.pair} with {wildcards.engine}"
    shell:
        ": > {log:q}; SPECRIG_ENGINE_LOG={log:q}"
        " python -m specrig stage measure --study {params.study:q} --engine {wildcards.engine} --pair {wildcards.pair}"
        " {params.chosen} 2>&1 | tee -a {log:q} >&2"
        # Snakemake takes a small file of the same content for unchanged: tables would stay old if a run is cut before.
        " && date > {output:q}"
